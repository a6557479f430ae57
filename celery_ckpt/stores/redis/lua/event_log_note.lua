--[[ event_log_note: append entries that belong to no write.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  attempts and entries of the event log
  ARGV[1]  log (see shared.lua)
  returns  {"ok"} | {"none"} if the agent does not exist
]]
if redis.call('EXISTS', KEYS[1]) == 0 then return {'none'} end
note(ARGV[1], KEYS[2], KEYS[3])
return {'ok'}

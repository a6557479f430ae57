--[[ event_log_stream: append live entries, if the agent has a follower.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2]  live entries of the event log
  ARGV[1]  lease  ARGV[2...]  entries as JSON
  returns  {"ok", 1 if the agent has a follower} | refusal
]]
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'followed')
local refused = lease_refusal(agent, ARGV[1])
if refused then return refused end
local is_told = tell(KEYS[2], agent[5], function()
  local entries = {}
  for i = 2, #ARGV do entries[i - 1] = ARGV[i] end
  return entries
end)
return {'ok', is_told and 1 or 0}

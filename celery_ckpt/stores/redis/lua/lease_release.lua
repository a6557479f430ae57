--[[ lease_release: release a lease, if the caller still holds it, and replace the record of a run if given.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  attempts and entries of the event log
  KEYS[4]  runs (see run_add.lua), if a run is given
  ARGV[1]  lease  ARGV[2]  name of this call, so that it can be repeated  ARGV[3]  log (see shared.lua)
  ARGV[4]  run_id  ARGV[5]  the run's line after the number and the usage
  returns  {"ok"} if this call released it | {"not_held"} | {"none"} if the run does not exist
]]
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'released')
if agent[5] == ARGV[2] then return {'ok'} end
if lease_refusal(agent, ARGV[1]) then return {'not_held'} end
if KEYS[4] then
  local stored = redis.call('HGET', KEYS[4], ARGV[4])
  if not stored then return {'none'} end
  redis.call('HSET', KEYS[4], ARGV[4], string.match(stored, '^%d+ %S+ ') .. ARGV[5])
end
note(ARGV[3], KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'nonce', '', 'released', ARGV[2])
return {'ok'}

--[[ agent_set_policy: replace the policy of an agent, if it is still the one that the caller read.
  KEYS[1]  hash of the agent (see shared.lua)
  ARGV[1]  policy before  ARGV[2]  policy after; "": none
  returns  1 | 0 if the policy has changed, or the agent does not exist
]]
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if (redis.call('HGET', KEYS[1], 'policy') or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('HDEL', KEYS[1], 'policy') else redis.call('HSET', KEYS[1], 'policy', ARGV[2]) end
return 1

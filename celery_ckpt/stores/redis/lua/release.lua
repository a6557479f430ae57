--[[ release: give up a lease, if it is still the caller's.
  KEYS[1]  hash of the agent (see fence.lua)
  ARGV[1]  lease  ARGV[2]  name of this call, so that it may be repeated
  returns  1 if this call released it, else 0
]]
if redis.call('HGET', KEYS[1], 'released') == ARGV[2] then return 1 end
if refusal(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'nonce', '', 'released', ARGV[2])
return 1

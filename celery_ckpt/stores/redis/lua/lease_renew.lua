--[[ lease_renew: extend a lease that the caller still holds.
  KEYS[1]  hash of the agent (see shared.lua)
  ARGV[1]  lease  ARGV[2]  ttl_ms
  returns  {"ok", expires_ms} | {"lost"}
]]
local refused = refusal(ARGV[1])
if refused then return refused end
local expires_ms = string.format('%d', now_ms() + ARGV[2])
redis.call('HSET', KEYS[1], 'expires_ms', expires_ms)
return {'ok', expires_ms}

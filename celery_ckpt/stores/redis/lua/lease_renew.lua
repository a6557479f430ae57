--[[ lease_renew: extend a lease that the caller still holds.
  KEYS[1]  hash of the agent (see shared.lua)
  ARGV[1]  lease  ARGV[2]  ttl_ms
  ARGV[3]  a space and the JSON of the current call, if there is one; "": there is no event log
  returns  {"ok", expires_ms} | {"lost"}
]]
local refused = refusal(ARGV[1])
if refused then return refused end
local now = now_ms()
local expires_ms = string.format('%d', now + ARGV[2])
if ARGV[3] == '' then
  redis.call('HSET', KEYS[1], 'expires_ms', expires_ms)
else
  redis.call('HSET', KEYS[1], 'expires_ms', expires_ms, 'renewed', string.format('%d', now) .. ARGV[3])
end
return {'ok', expires_ms}

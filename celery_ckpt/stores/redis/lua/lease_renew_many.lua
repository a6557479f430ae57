--[[ lease_renew_many: extend leases of several agents that the caller still holds. Not for a cluster.
  KEYS     hash of each agent (see shared.lua)
  ARGV[1]  ttl_ms  ARGV[2], ARGV[3], ...  the lease of each, and its current call (see lease_renew.lua)
  returns  of each: {"ok", expires_ms} | {"lost"} | {"damaged", why} if the key is not a hash
]]
local now, replies = now_ms(), {}
local renewed, expires_ms = string.format('%d', now), string.format('%d', now + ARGV[1])
for i, key in ipairs(KEYS) do
  local held = redis.pcall('HMGET', key, 'token', 'nonce')
  if held.err and not string.find(held.err, 'WRONGTYPE', 1, true) then return held end
  if held.err then
    replies[i] = {'damaged', held.err}
  elseif lease_refusal(held, ARGV[2 * i]) then
    replies[i] = {'lost'}
  else
    local call = ARGV[2 * i + 1]
    if call == '' then
      redis.call('HSET', key, 'expires_ms', expires_ms)
    else
      redis.call('HSET', key, 'expires_ms', expires_ms, 'renewed', renewed .. call)
    end
    replies[i] = {'ok', expires_ms}
  end
end
return replies

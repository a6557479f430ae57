--[[ lease_holder: return the lease that is held now.
  KEYS[1]  hash of the agent (see shared.lua)
  returns  {} | {owner, token, nonce, expires_ms}
]]
local held = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms')
if not lease_refusal(held, '') then return {} end
return {held[3], held[1], held[2], held[4]}

--[[ lease_acquire: grant the lease to the caller, with a token that is one larger than any before.
  KEYS[1]  hash of the agent (see shared.lua)
  ARGV[1]  nonce of the new lease   ARGV[2]  owner   ARGV[3]  ttl_ms
  ARGV[4]  a lease that may be taken over before it expires; "": none
  returns  {"ok", token, expires_ms} | {"held", owner, token, nonce, left_ms}
]]
local held = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms')
local refused, token, expires_ms = take_lease(held, ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return refused or {'ok', token, expires_ms}

--[[ holder: who holds the lease now.
  KEYS[1]  hash of the agent (see fence.lua)
  returns  {} | {owner, token, nonce, expires_ms}
]]
if not refusal('') then return {} end
return redis.call('HMGET', KEYS[1], 'owner', 'token', 'nonce', 'expires_ms')

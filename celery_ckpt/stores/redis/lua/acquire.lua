--[[ acquire: give the lease to the caller, with a token one larger than any before.
  KEYS[1]  hash of the agent (see fence.lua)
  ARGV[1]  nonce of the new lease   ARGV[2]  owner   ARGV[3]  ttl_ms
  ARGV[4]  a lease that may be taken over although unexpired; empty: none
  returns  {"ok", token, expires_ms} | {"held", owner, token, nonce, left_ms}
]]
local held = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'expires_ms')
if held[2] == ARGV[1] then return {'ok', tonumber(held[1]), held[3]} end
local may_take_over = ARGV[4] ~= '' and not refusal(ARGV[4])
local refused = not may_take_over and refusal('')
if refused then return refused end
local token = redis.call('HINCRBY', KEYS[1], 'token', 1)
local expires_ms = string.format('%d', now_ms() + ARGV[3])
redis.call('HSET', KEYS[1], 'nonce', ARGV[1], 'owner', ARGV[2], 'expires_ms', expires_ms)
return {'ok', token, expires_ms}

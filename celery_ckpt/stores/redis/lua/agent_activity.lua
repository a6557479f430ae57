--[[ agent_activity: return the open runs of an agent, which of them is active, and the lease that is held.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  runs (see run_add.lua)
  returns  {active or "", left_ms, {} | {owner, token, nonce, expires_ms}, run_id, line, ...}
]]
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'active')
local held = lease_refusal(agent, '')
local holder = held and {agent[3], agent[1], agent[2], agent[4]} or {}
local reply = {agent[5] or '', held and held[5] or 0, holder}
for _, id in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
  reply[#reply + 1] = id
  reply[#reply + 1] = redis.call('HGET', KEYS[2], id)
end
return reply

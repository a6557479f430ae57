--[[ agent_activity: return open runs of an agent, which of them is active, and the lease that is held.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  runs (see run_add.lua)
  ARGV[1]  the most runs of each kind: in line, or not in line
  returns  {active or "", left_ms, {} | {owner, token, nonce, expires_ms, renewed if an attempt has not ended}, number of open
           runs, run_id, line, ...}: the active run, the first ones by place, the last ones by place; in no order
]]
-- About the most bytes of lines of each kind.
local BYTES = 500000

local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'active', 'attempt', 'renewed')
local held = lease_refusal(agent, '')
local holder = held and {agent[3], agent[1], agent[2], agent[4], agent[6] and agent[7] or ''} or {}
local active, count = agent[5] or '', redis.call('ZCARD', KEYS[3])
local reply, added = {active, held and held[5] or 0, holder, count}, {}

local function add(ids)
  local bytes = 0
  for _, id in ipairs(ids) do
    if bytes > BYTES then return end
    local line = not added[id] and redis.call('HGET', KEYS[2], id)
    if line then
      added[id], bytes = true, bytes + #line
      reply[#reply + 1], reply[#reply + 2] = id, line
    end
  end
end

if count > 0 then
  if active ~= '' and redis.call('ZSCORE', KEYS[3], active) then add({active}) end
  add(redis.call('ZRANGE', KEYS[3], 0, ARGV[1] - 1))
  if count > tonumber(ARGV[1]) then
    add(redis.call('ZREVRANGEBYSCORE', KEYS[3], '+inf', IN_LINE, 'LIMIT', 0, ARGV[1]))
  end
end
return reply

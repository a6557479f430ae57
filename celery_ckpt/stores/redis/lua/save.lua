--[[ save: append new messages to the log and add a checkpoint, or change nothing.
  KEYS[1]  hash of the agent (see fence.lua)
  KEYS[2]  list: the log, messages as JSON lines; the first one has the offset "first" of KEYS[1]
  KEYS[3]  hash: checkpoint id -> "version seq base low ranges digest header"
  ARGV[1]  checkpoint id    ARGV[2]  basis: an id that must be there; "": none may be; "*": any
  ARGV[3]  lease (see fence.lua)
  ARGV[4]  the line after version, seq and base    ARGV[5...]  new messages
  returns  base | {"first", base} for an agent's first | {"exists", line} | {"stale"} | refusal
]]
local function last_seq() -- of an agent that is new, or whose hash was evicted
  local last = 0
  for _, line in ipairs(redis.call('HVALS', KEYS[3])) do
    last = math.max(last, tonumber(string.match(line, '^%d+ (%d+) ') or 0))
  end
  return last
end

local exists = redis.call('HGET', KEYS[3], ARGV[1])
if exists then return {'exists', exists} end
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'seq', 'first', 'latest')
local refused = lease_refusal(agent, ARGV[3])
if refused then return refused end
local basis = ARGV[2]
if basis == '' then
  if redis.call('EXISTS', KEYS[3]) == 1 then return {'stale'} end
elseif basis ~= agent[7] and basis ~= '*' then
  -- Without the agent's hash nobody knows any more where the log begins.
  if not agent[5] or redis.call('HEXISTS', KEYS[3], basis) == 0 then return {'stale'} end
end
local base = tonumber(agent[6] or 0)
if #ARGV < 5 then
  base = base + redis.call('LLEN', KEYS[2])
elseif #ARGV < 1000 then
  base = base + redis.call('RPUSH', KEYS[2], unpack(ARGV, 5)) - #ARGV + 4
else
  base = base + redis.call('LLEN', KEYS[2])
  each(ARGV, 5, 1000, function(...) redis.call('RPUSH', KEYS[2], ...) end)
end
local seq = string.format('%d', (agent[5] or last_seq()) + 1)
redis.call('HSET', KEYS[3], ARGV[1], '1 ' .. seq .. ' ' .. string.format('%d ', base) .. ARGV[4])
redis.call('HSET', KEYS[1], 'seq', seq, 'latest', ARGV[1])
if seq == '1' then return {'first', base} end
return base

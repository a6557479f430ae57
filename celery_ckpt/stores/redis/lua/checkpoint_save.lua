--[[ checkpoint_save: append new messages to the log and add a checkpoint, or change nothing.
  KEYS[1]  hash of the agent (see shared.lua)
  KEYS[2]  list: the log, messages as JSON lines; the first one has the offset "first" of KEYS[1]
  KEYS[3]  list: the live entries of the event log, "number JSON"
  KEYS[4], KEYS[5], KEYS[6]  only if a run's record is replaced too: runs (see run_add.lua), attempts and entries of
           the event log
  ARGV[1]  "c:" and the checkpoint's id
  ARGV[2]  basis: "c:" and the id of a checkpoint that must exist; "": none may exist; "*": any
  ARGV[3]  the mark of the basis: what is between seq and header in its line
  ARGV[4]  lease (see shared.lua)
  ARGV[5]  the line after version, seq and base
  ARGV[6]  "1": the caller lists the agent for a sweep in the same step; "": it does not
  ARGV[7], ARGV[8], ARGV[9]  only with KEYS[4]: run_id, the run's line after the number and the usage, and log (see
           shared.lua)
  ARGV[7...] or ARGV[10...]  new messages
  returns  base | {"exists", line} | {"stale"} | {"unlisted"} if the agent must be listed | refusal
           | {"none"} if the run does not exist
]]
-- For an agent's first save, or a damaged tip: the newest checkpoint that exists.
local function newest()
  local seq, latest, all = 0, nil, redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local own = string.sub(all[i], 1, 2) == 'c:' and string.match(all[i + 1], '^%d+ (%d+) ')
    if own and tonumber(own) > seq then seq, latest = tonumber(own), all[i] end
  end
  return seq, latest
end

local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'tip', 'first',
  ARGV[1], ARGV[2], 'listed', 'followed')
if agent[7] then return {'exists', agent[7]} end
local refused = lease_refusal(agent, ARGV[4])
if refused then return refused end
local seq, latest = tip(agent[5])
if not seq then seq, latest = newest() end
if ARGV[2] == '' then
  if latest then return {'stale'} end
elseif ARGV[2] ~= '*' then
  -- The mark follows version and seq. A plain search is faster than a pattern.
  local at = string.find(agent[8] or '', ' ' .. ARGV[3] .. ' {', 1, true)
  if not at or not string.find(string.sub(agent[8], 1, at), '^%d+ %d+ $') then return {'stale'} end
end
-- Until a sweep has finished with the agent, one due time is enough.
if ARGV[6] == '' and tonumber(agent[9] or 0) <= 0 then return {'unlisted'} end
local from = 7
if KEYS[4] then
  local stored = redis.call('HGET', KEYS[4], ARGV[7])
  if not stored then return {'none'} end
  redis.call('HSET', KEYS[4], ARGV[7], string.match(stored, '^%d+ %S+ ') .. ARGV[8])
  from = 10
end
local base = tonumber(agent[6] or 0)
if #ARGV < 1000 and #ARGV >= from then
  base = base + redis.call('RPUSH', KEYS[2], unpack(ARGV, from)) - #ARGV + from - 1
else
  base = base + redis.call('LLEN', KEYS[2])
  each(ARGV, from, 1000, function(...) redis.call('RPUSH', KEYS[2], ...) end)
end
local stamp = string.format('%d %d ', seq + 1, base)
redis.call('HSET', KEYS[1], 'tip', seq + 1 .. ' ' .. ARGV[1], ARGV[1], FORMAT_VERSION .. ' ' .. stamp .. ARGV[5])
if agent[10] then
  tell(KEYS[3], agent[10], function(now)
    local iteration = string.match(ARGV[5], '"iteration":(%d+)') or '0'
    local id = cjson.encode(string.sub(ARGV[1], 3))
    return {string.format('["checkpoint",%d,{"id":%s,"iteration":%s}]', now, id, iteration)}
  end)
end
if KEYS[4] then note(ARGV[9], KEYS[5], KEYS[6]) end
return base

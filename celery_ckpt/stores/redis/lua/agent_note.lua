--[[ agent_note: note that an agent has changed now, and move it to its new place in the index of changes.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2]  runs (see run_add.lua)
  KEYS[3]  sorted set: a shard of the index (see change_index.py); on a cluster it is missing, and the caller moves the agent
  ARGV[1]  "locator:agent_id"
  ARGV[2]  "": it has changed; "new": only if nothing was noted before; "same": only its status may be wrong
  returns  {} if nothing was noted, because of ARGV[2] or because the agent does not exist | {"changed" of KEYS[1] before or "", "changed" of KEYS[1] now}
]]
local function status_of(active, last)
  for _, id in ipairs({active or '', last or ''}) do
    local line = id ~= '' and redis.call('HGET', KEYS[2], id)
    if line then return string.match(line, '^%d+ %S+ (%S+) ') or 'damaged' end
  end
  return 'idle'
end

local function entries(changed)
  local time, status = string.match(changed, '^(%d+) (%S+)$')
  if not time then return {} end
  local place = ' ' .. time .. ' ' .. ARGV[1]
  return {'*' .. place, status .. place}
end

local agent = redis.call('HMGET', KEYS[1], 'changed', 'active', 'last')
local before = agent[1] or ''
if before ~= '' and ARGV[2] == 'new' then return {} end
if before == '' and redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local last_time = tonumber(string.match(before, '^%d+') or '')
local time = last_time
if ARGV[2] ~= 'same' or not last_time then
  local clock = redis.call('TIME')
  -- A clock that is set back is ignored: the newest change of an agent has the highest time.
  time = math.max(clock[1] * 1000000 + clock[2], (last_time or 0) + 1)
end
local now = string.format('%016.0f ', time) .. status_of(agent[2], agent[3])
redis.call('HSET', KEYS[1], 'changed', now)
if KEYS[3] then
  local old, new = entries(before), entries(now)
  if old[1] and before ~= now then redis.call('ZREM', KEYS[3], unpack(old)) end
  redis.call('ZADD', KEYS[3], 0, new[1], 0, new[2])
end
return {before, now}

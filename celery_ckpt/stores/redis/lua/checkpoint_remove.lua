--[[ checkpoint_remove: remove checkpoints, and the part of the log that no other checkpoint refers to.
  KEYS[1]  hash of the agent    KEYS[2]  the log (see checkpoint_save.lua)    KEYS[3]  open (see run_add.lua)
  ARGV[1]  seq at which the caller read the checkpoints (see checkpoint_list.lua)
  ARGV[2]  smallest offset that the remaining checkpoints refer to
  ARGV[3]  "c:" and the id of the newest remaining checkpoint; "": none remains
  ARGV[4]  policy that the agent must have; "*": any    ARGV[5]  its policy from now on
  ARGV[6]  what a sweep saw of the agent (see seen in shared.lua), if the sweep has finished with it; "": no sweep
  ARGV[7...]  "c:" and the ids to remove, at most 1,000
  returns  {number of removed checkpoints, bytes trimmed from the log, what is left to do}, the last being
           0  nothing
           1  start over: after a save since ARGV[1], or if there are checkpoints that the caller did not read,
              only the log was left alone; if ARGV[3] does not exist or the policy differs, nothing was changed
           2  trim more of the log: it is trimmed in parts
           3  nothing, but the agent has changed since the sweep saw it; if it would have lost its latest
              checkpoint, nothing was changed
]]
local TRIM = 1000

local function any_left()
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 2) == 'c:' then return true end
  end
end

-- Estimated, as if all messages had the same size: to measure them would take longer than to trim them.
local function size_of_log(count)
  local all = redis.call('LLEN', KEYS[2])
  local size = all > 0 and redis.call('MEMORY', 'USAGE', KEYS[2]) or 0
  return math.floor(size * math.min(count, all) / math.max(all, 1))
end

local last_save, first, policy, steps, runs, token, nonce, listed, newest = unpack(redis.call('HMGET', KEYS[1],
  'tip', 'first', 'policy', 'steps', 'runs', 'token', 'nonce', 'listed', ARGV[3]))
if ARGV[4] ~= '*' and ARGV[4] ~= (policy or '') then return {0, 0, 1} end
local is_swept = ARGV[6] ~= ''
local is_unchanged = is_swept
  and ARGV[6] == seen(runs and redis.call('ZCARD', KEYS[3]) or 0, last_save, steps, runs, token, nonce, policy)
local seq, latest = tip(last_save)
local saved_since = (seq or 0) ~= tonumber(ARGV[1])
if not saved_since and ARGV[3] ~= '' and not newest then return {0, 0, 1} end
-- A run may have started since the sweep saw the agent: it continues from the latest checkpoint.
local loses_latest = not saved_since and latest and latest ~= ARGV[3]
if is_swept and not is_unchanged and loses_latest then return {0, 0, 3} end
local removed, bytes, left, changes = 0, 0, 0, {}
local function change(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end

if ARGV[7] then removed = redis.call('HDEL', KEYS[1], unpack(ARGV, 7)) end
if ARGV[5] == '' then
  if policy then redis.call('HDEL', KEYS[1], 'policy') end
elseif ARGV[5] ~= ARGV[4] then
  redis.call('HSET', KEYS[1], 'policy', ARGV[5])
end
if saved_since then return {removed, 0, 1} end
if ARGV[3] == '' then
  -- An agent that was deleted and created again since then can have the same seq.
  if any_left() then return {removed, 0, 1} end
  bytes = redis.call('MEMORY', 'USAGE', KEYS[2]) or 0
  redis.call('UNLINK', KEYS[2])
  redis.call('HDEL', KEYS[1], 'first')
  if last_save then change('tip', ARGV[1]) end
else
  local from = tonumber(first or 0)
  local count = math.min(ARGV[2] - from, TRIM)
  if count > 0 then
    bytes = size_of_log(count)
    redis.call('LTRIM', KEYS[2], count, -1)
    change('first', string.format('%d', from + count))
    if from + count < tonumber(ARGV[2]) then left = 2 end
  end
  if latest ~= ARGV[3] and (not latest or redis.call('HEXISTS', KEYS[1], latest) == 0) then
    change('tip', ARGV[1] .. ' ' .. ARGV[3])
  end
end
if is_swept and left == 0 then
  -- The sweep has finished with the agent: the next save must list it.
  if is_unchanged then change('listed', -math.abs(listed or 0) - 1) else left = 3 end
end
if changes[1] then redis.call('HSET', KEYS[1], unpack(changes)) end
return {removed, bytes, left}

--[[ checkpoint_remove: drop checkpoints, and the part of the log that nobody refers to any more.
  KEYS[1]  hash of the agent    KEYS[2]  the log (see checkpoint_save.lua)    KEYS[3]  open (see run_add.lua)
  ARGV[1]  seq at which the caller read the checkpoints (see checkpoint_list.lua)
  ARGV[2]  smallest offset that those which stay refer to
  ARGV[3]  "c:" and the id of the newest that stays; "": none stays
  ARGV[4]  notes that the agent must have; "*": any    ARGV[5]  notes that it has from now on
  ARGV[6]  what a sweep saw (see shared.lua), which is done with the agent; "": it is not
  ARGV[7...]  "c:" and the ids to drop, at most 1,000
  returns  {how many were there, bytes of the log that went, what is left to do}, the last being
           0  nothing
           1  all again: after a save since ARGV[1], or if others are there than the caller read, only the
              log is left alone; after the removal of ARGV[3], or with other notes, everything is
           2  the log is still to be trimmed: it is done a part at a time
           3  nothing here, but the agent has changed since the sweep saw it; if it would have lost its latest,
              everything is left alone
]]
local TRIM = 1000

local function any_left()
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 2) == 'c:' then return true end
  end
end

-- Estimated, as if all messages had the same size: to measure them would take longer than to drop them.
local function size_of_log(count)
  local all = redis.call('LLEN', KEYS[2])
  local size = all > 0 and redis.call('MEMORY', 'USAGE', KEYS[2]) or 0
  return math.floor(size * math.min(count, all) / math.max(all, 1))
end

local last_save, first, notes, steps, runs, token, nonce, listed, newest = unpack(redis.call('HMGET', KEYS[1],
  'tip', 'first', 'notes', 'steps', 'runs', 'token', 'nonce', 'listed', ARGV[3]))
if ARGV[4] ~= '*' and ARGV[4] ~= (notes or '') then return {0, 0, 1} end
local is_swept = ARGV[6] ~= ''
local is_unchanged = is_swept
  and ARGV[6] == seen(redis.call('LLEN', KEYS[3]), last_save, steps, runs, token, nonce, notes)
local seq, latest = tip(last_save)
local saved_since = (seq or 0) ~= tonumber(ARGV[1])
if not saved_since and ARGV[3] ~= '' and not newest then return {0, 0, 1} end
-- Somebody may have taken the agent up since it was seen, and goes on from its latest.
local loses_latest = not saved_since and latest and latest ~= ARGV[3]
if is_swept and not is_unchanged and loses_latest then return {0, 0, 3} end
local removed, bytes, left, changes = 0, 0, 0, {}
local function change(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end

if ARGV[7] then removed = redis.call('HDEL', KEYS[1], unpack(ARGV, 7)) end
if ARGV[5] == '' then
  if notes then redis.call('HDEL', KEYS[1], 'notes') end
elseif ARGV[5] ~= ARGV[4] then
  redis.call('HSET', KEYS[1], 'notes', ARGV[5])
end
if saved_since then return {removed, 0, 1} end
if ARGV[3] == '' then
  -- An agent that was deleted and made anew meanwhile can stand at the same seq.
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
  -- The sweep is done with the agent: the next save has to list it.
  if is_unchanged then change('listed', -math.abs(listed or 0) - 1) else left = 3 end
end
if changes[1] then redis.call('HSET', KEYS[1], unpack(changes)) end
return {removed, bytes, left}

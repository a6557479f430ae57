--[[ run_delete: delete the records of runs that ended long ago, and their steps, a part at a time.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  steps (see step_record.lua)
  KEYS[4]  runs (see run_add.lua)
  ARGV[1]  agent_id: the run of that name is kept, and the run that was added last
  ARGV[2]  policy that the agent must have
  ARGV[3]  settled runs are deleted if they ended by this time: ISO 8601 in UTC, without the Z
  ARGV[4], ARGV[5]  where to continue: a cursor in KEYS[4], a rank in KEYS[3]; at first "0", "0"
  ARGV[6]  when the first remaining run ended, in all parts before; at first ""
  returns  {1 after the last part, number of deleted runs, their bytes,
           ARGV[4], ARGV[5] and ARGV[6] of the next part}
]]
-- About the most records, bytes of records, and steps that one call reads.
local RUNS, BYTES, STEPS = 100, 100000, 500

local last, policy = unpack(redis.call('HMGET', KEYS[1], 'last', 'policy'))
if not last or (policy or '') ~= ARGV[2] then return {1, 0, 0, '0', '0', ''} end

local cursor, rank, earliest_end = ARGV[4], tonumber(ARGV[5]), ARGV[6]
local deleted, size, runs, bytes = {}, 0, 0, 0

local function judge(id, line)
  local ended = id ~= ARGV[1] and id ~= last and run_end(line)
  if ended and ended <= ARGV[3] then
    deleted[#deleted + 1], size = id, size + #line
  elseif ended and (earliest_end == '' or ended < earliest_end) then
    earliest_end = ended
  end
end

-- The next steps that belong to deleted runs, and how many steps were read.
local function steps_of_deleted()
  local prefixes, lengths, found = {}, {}, {}
  for _, id in ipairs(deleted) do
    -- As run_prefix in steps.py: the number of characters, not of bytes.
    local prefix = select(2, string.gsub(id, '[^\128-\191]', '')) .. ':' .. id .. ':'
    prefixes[prefix], lengths[#prefix] = true, true
  end
  local names = redis.call('ZRANGE', KEYS[3], rank, rank + STEPS - 1)
  for _, name in ipairs(names) do
    for length in pairs(lengths) do
      if prefixes[string.sub(name, 1, length)] then found[#found + 1] = name end
    end
  end
  return found, #names
end

repeat
  local page
  cursor, page = unpack(redis.call('HSCAN', KEYS[4], cursor, 'COUNT', 5))
  for i = 1, #page, 2 do
    judge(page[i], page[i + 1])
    runs, bytes = runs + 1, bytes + #page[i + 1]
  end
until cursor == '0' or runs >= RUNS or bytes >= BYTES

if deleted[1] and redis.call('EXISTS', KEYS[3]) == 1 then
  local steps, seen_steps = steps_of_deleted()
  if steps[1] then
    redis.call('HDEL', KEYS[2], unpack(steps))
    redis.call('ZREM', KEYS[3], unpack(steps))
  end
  -- Steps are deleted before their run: the same runs again, with the next steps.
  if seen_steps == STEPS then
    return {0, 0, 0, ARGV[4], string.format('%d', rank + STEPS - #steps), ARGV[6]}
  end
end
local count = 0
each(deleted, 1, 1000, function(...) count = count + redis.call('HDEL', KEYS[4], ...) end)
if cursor == '0' then
  -- A sweep need not read the runs again before this one is old enough.
  if earliest_end ~= '' then
    redis.call('HSET', KEYS[1], 'earliest_end', earliest_end)
  else
    redis.call('HDEL', KEYS[1], 'earliest_end')
  end
end
return {cursor == '0' and 1 or 0, count, size, cursor, '0', earliest_end}

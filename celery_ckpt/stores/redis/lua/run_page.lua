--[[ run_page: return the outlines of the last runs of an agent, a part at a time.
  KEYS[1]  runs (see run_add.lua)
  ARGV[1]  the cursor that the last call returned; at first "0"
  ARGV[2]  the most runs to return   ARGV[3]  only runs that were added before this one; "": all
  returns  {"none"} if there is no run ARGV[3]
           | {cursor, "0" after the last part, id, outline, the beginning of its envelope, id, ...}: of the runs in
           this part, those that were added last, and all that are damaged; in no order
]]
-- About the most records, and bytes of records, that one call reads.
local RUNS, BYTES = 1000, 500000

local limit, before = tonumber(ARGV[2]), nil
if ARGV[3] ~= '' then
  local line = redis.call('HGET', KEYS[1], ARGV[3])
  if not line then return {'none'} end
  before = tonumber(string.match(line, '^%d+'))
end
local cursor, found, runs, bytes = ARGV[1], {}, 0, 0
repeat
  local page
  cursor, page = unpack(redis.call('HSCAN', KEYS[1], cursor, 'COUNT', 10))
  for i = 1, #page, 2 do
    runs, bytes = runs + 1, bytes + #page[i + 1]
    -- A damaged line counts as the newest, so that a reader notices it.
    local number = tonumber(string.match(page[i + 1], '^%d+ ')) or math.huge
    if not before or number < before then found[#found + 1] = {number, page[i], run_outline(page[i + 1])} end
  end
until cursor == '0' or runs >= RUNS or bytes >= BYTES
table.sort(found, function(one, other) return one[1] > other[1] end)
local reply = {cursor}
for i = 1, math.min(#found, limit) do
  for part = 2, 4 do reply[#reply + 1] = found[i][part] end
end
return reply

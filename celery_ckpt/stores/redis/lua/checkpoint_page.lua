--[[ checkpoint_page: return the newest checkpoints of an agent without their messages, a part at a time.
  KEYS[1]  hash of the agent (see shared.lua)
  ARGV[1]  the cursor that the last call returned; at first "0"
  ARGV[2]  the most checkpoints to return   ARGV[3]  their seq must be below this; "": any
  returns  {cursor, "0" after the last part, policy, "c:" id, line, "c:" id, line, ...}: of the checkpoints in this
           part, the newest ones, and all that are damaged; in no order
]]
-- About the most fields, and bytes, that one call reads.
local FIELDS, BYTES = 1000, 500000

local limit, before = tonumber(ARGV[2]), tonumber(ARGV[3])
local cursor, found, fields, bytes = ARGV[1], {}, 0, 0
repeat
  local page
  cursor, page = unpack(redis.call('HSCAN', KEYS[1], cursor, 'COUNT', 10))
  for i = 1, #page, 2 do
    fields, bytes = fields + 1, bytes + #page[i + 1]
    if string.sub(page[i], 1, 2) == 'c:' then
      -- A damaged line counts as the newest, so that a reader notices it.
      local seq = tonumber(string.match(page[i + 1], '^%d+ (%d+) ')) or math.huge
      if not before or seq < before then found[#found + 1] = {seq, page[i], page[i + 1]} end
    end
  end
until cursor == '0' or fields >= FIELDS or bytes >= BYTES
table.sort(found, function(one, other) return one[1] > other[1] end)
local reply = {cursor, redis.call('HGET', KEYS[1], 'policy') or ''}
for i = 1, math.min(#found, limit) do
  reply[#reply + 1], reply[#reply + 2] = found[i][2], found[i][3]
end
return reply

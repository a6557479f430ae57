--[[ checkpoint_scan: the checkpoints of a history that is long, or has long states, as a sweep has to know them (see
  agent_snapshot.lua), a part at a time.
  KEYS[1]  hash of the agent (see shared.lua)
  ARGV[1]  where to go on: a cursor; at first "0"
  returns  {cursor, "0" if that was all, {field whose value is not answered as it is, its length, ...},
           {field of KEYS[1], value, ...}}
]]
-- At most about so many fields, of so many bytes, are read at once.
local FIELDS, BYTES = 1000, 500000

local cursor, all, bytes = ARGV[1], {}, 0
repeat
  local page
  cursor, page = unpack(redis.call('HSCAN', KEYS[1], cursor, 'COUNT', 2))
  for _, value in ipairs(page) do
    all[#all + 1], bytes = value, bytes + #value
  end
until cursor == '0' or #all >= 2 * FIELDS or bytes >= BYTES
return {cursor, cut_short(all), all}

--[[ checkpoint_scan: return part of a history that is too long for agent_snapshot.lua, in the same form.
  KEYS[1]  hash of the agent (see shared.lua)
  ARGV[1]  the cursor that the last call returned; at first "0"
  returns  {cursor, "0" after the last part, {field whose value is cut short, its length, ...},
           {field of KEYS[1], value, ...}}
]]
-- About the most fields, and bytes, that one call reads.
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

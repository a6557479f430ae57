--[[ hash_page: return a part of a hash, as bytes and in the same shape for every protocol version.
  KEYS[1]  a hash
  ARGV[1]  where to continue: a cursor; at first "0"
  returns  {ARGV[1] of the next part or "0" after the last one, field, value, field, value, ...}
           A field can be in two parts. One that is added or deleted between two parts can be missing.
]]
-- About the most fields, and bytes of values, that one call returns.
local FIELDS, BYTES = 500, 1000000

local cursor, reply, bytes = ARGV[1], {'0'}, 0
repeat
  local page
  cursor, page = unpack(redis.call('HSCAN', KEYS[1], cursor, 'COUNT', 10))
  for i = 1, #page, 2 do
    reply[#reply + 1], reply[#reply + 2] = page[i], page[i + 1]
    bytes = bytes + #page[i + 1]
  end
until cursor == '0' or #reply > 2 * FIELDS or bytes > BYTES
reply[1] = cursor
return reply

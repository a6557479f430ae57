--[[ run_scan: return the runs of an agent whose messages may still arrive, a part at a time, for its deletion.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2]  runs (see run_add.lua)
  ARGV[1]  where to continue: a cursor in KEYS[2]; at first "0"
  returns  {"runs" of KEYS[1] or "", ARGV[1] of the next part or "0" after the last one,
           id of each run that is not settled, was cancelled, or cannot be read, ...}
]]
local PART = 100

local found = redis.pcall('HSCAN', KEYS[2], ARGV[1], 'COUNT', PART)
-- A key of the wrong type must not prevent the deletion.
local cursor, flat = unpack(found.err and {'0', {}} or found)
local reply = {redis.call('HGET', KEYS[1], 'runs') or '', cursor}
for i = 1, #flat, 2 do
  local is_over = string.match(flat[i + 1], '^%d+ %S+ succeeded 1 ') or string.match(flat[i + 1], '^%d+ %S+ failed 1 ')
  if not is_over then reply[#reply + 1] = flat[i] end
end
return reply

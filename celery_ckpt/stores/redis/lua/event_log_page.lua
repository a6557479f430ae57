--[[ event_log_page: return entries of the event log, at least those that are asked for.
  KEYS[1]  hash of the agent (see shared.lua)
  KEYS[2], KEYS[3], KEYS[4]  lists: attempts, entries and live entries, each "number JSON"
  ARGV[1]  the number of an entry, to return those after it; "": return the newest ones
  ARGV[2]  how many to return of the newest ones; "": all
  returns  {the number of the last entry, the entries of each list | false if the key is not a list}
]]
local last = tonumber(redis.call('HGET', KEYS[1], 'events')) or 0
local count = tonumber(ARGV[2])
if ARGV[1] ~= '' then
  -- Numbers have no gaps, so there cannot be more. After a deletion they begin again.
  count = last - tonumber(ARGV[1])
  if count < 0 then count = nil end
end
local reply = {last}
for i = 2, 4 do
  local found = count == 0 and {} or redis.pcall('LRANGE', KEYS[i], count and -count or 0, -1)
  reply[i] = not found.err and found
end
return reply

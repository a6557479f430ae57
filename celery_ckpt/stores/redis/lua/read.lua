--[[ read: one checkpoint with its messages.
  KEYS[1]  hash of the agent    KEYS[2]  the log (see save.lua)
  ARGV[1]  "c:" and the checkpoint's id; "": the latest
  returns  {"none"} | {"gone", "c:" id} | {"found", "c:" id, line, {messages of a range}, ...}
           as far as they are there
]]
local id = ARGV[1]
if id == '' then
  local _
  _, id = tip(redis.call('HGET', KEYS[1], 'tip'))
  if not id then return {redis.call('EXISTS', KEYS[2]) == 1 and 'gone' or 'none', 'c:(unknown)'} end
end
local line, first = unpack(redis.call('HMGET', KEYS[1], id, 'first'))
if not line then return {ARGV[1] == '' and 'gone' or 'none', id} end
local reply = {'found', id, line}
local base, ranges = string.match(line, '^%d+ %d+ (%d+) %S+ (%S+) ')
for new, start, count in string.gmatch(ranges or '', '(%+?)(%d+):(%d+)') do
  local from = tonumber(start) - (first or 0) + (new == '+' and tonumber(base) or 0)
  reply[#reply + 1] = from < 0 and {} or messages(from, from + count - 1)
end
return reply

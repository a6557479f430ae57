--[[ read: one checkpoint with its messages.
  KEYS[1]  hash of the agent    KEYS[2]  the log    KEYS[3]  checkpoints (see save.lua)
  ARGV[1]  checkpoint id; "": the latest
  returns  {"none"} | {"gone", id} | {"found", id, line, text of each range}
           a text is the messages of a range joined by line feeds; fewer than it should be if some
           are missing
]]
local id = ARGV[1]
if id == '' then
  id = redis.call('HGET', KEYS[1], 'latest')
  if not id then return {redis.call('EXISTS', KEYS[3]) == 1 and 'gone' or 'none', '(unknown)'} end
end
local line = redis.call('HGET', KEYS[3], id)
if not line then return {ARGV[1] == '' and 'gone' or 'none', id} end
local reply = {'found', id, line}
local first = tonumber(redis.call('HGET', KEYS[1], 'first') or 0)
local base, ranges = string.match(line, '^%d+ %d+ (%d+) %S+ (%S+) ')
for new, start, count in string.gmatch(ranges or '', '(%+?)(%d+):(%d+)') do
  local from = tonumber(start) - first + (new == '+' and tonumber(base) or 0)
  local lines = from < 0 and {} or redis.call('LRANGE', KEYS[2], from, from + tonumber(count) - 1)
  reply[#reply + 1] = table.concat(lines, '\n')
end
return reply

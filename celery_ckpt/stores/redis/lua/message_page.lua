--[[ message_page: return some messages of a checkpoint's conversation.
  KEYS[1]  hash of the agent    KEYS[2]  the log (see checkpoint_save.lua)
  ARGV[1]  "c:" and the checkpoint's id
  ARGV[2], ARGV[3]  the first message, and the one after the last; below 0: counted from the end; ARGV[3] may be "": all
  returns  {"none"} | {"found", total, start, {messages of a range}, ...} as far as the log has them
           | {"unusual", line} if the header is not as this library writes it
]]
local line, first = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'first'))
if not line then return {'none'} end
-- The header begins with the time and the number of messages (see header_of in checkpoint.py).
local base, ranges, total = string.match(line, '^%d+ %d+ (%d+) %S+ (%S+) %S+ {"created_at":%-?%d+,"messages":(%d+)')
if not total then return {'unusual', line} end
total, first = tonumber(total), tonumber(first or 0)
local function index(word, default)
  local number = tonumber(word) or default
  if number < 0 then number = number + total end
  return math.max(0, math.min(number, total))
end
local start, stop = index(ARGV[2], 0), index(ARGV[3], total)
local reply, seen = {'found', total, start}, 0
for new, from, count in string.gmatch(ranges, '(%+?)(%d+):(%d+)') do
  local offset = tonumber(from) - first + (new == '+' and tonumber(base) or 0)
  local low, high = math.max(start - seen, 0), math.min(stop - seen, tonumber(count))
  if low < high then
    reply[#reply + 1] = offset + low < 0 and {} or messages(offset + low, offset + high - 1)
  end
  seen = seen + count
end
return reply

--[[ checkpoint_load: return one checkpoint with its messages.
  KEYS[1]  hash of the agent    KEYS[2]  the log (see checkpoint_save.lua)
  ARGV[1]  "c:" and the checkpoint's id; "": the latest
  ARGV[2]  how many of the log's newest messages the caller reads itself, in the same transaction: what a
           script returns is copied twice
  returns  {"none"} | {"missing", "c:" id}
           | {"newest", "c:" id, line, offset of the first message that the caller reads}, if that is enough
           | {"found", "c:" id, line, {messages of a range}, ...} as far as the log has them
]]
local function has_records()
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'c:' then return true end
  end
end

local id = ARGV[1]
if id == '' then
  local _
  _, id = tip(redis.call('HGET', KEYS[1], 'tip'))
  if not id then
    local is_damaged = redis.call('EXISTS', KEYS[2]) == 1 or has_records()
    return {is_damaged and 'missing' or 'none', 'c:(unknown)'}
  end
end
local line, first = unpack(redis.call('HMGET', KEYS[1], id, 'first'))
if not line then return {ARGV[1] == '' and 'missing' or 'none', id} end
local base, ranges = string.match(line, '^%d+ %d+ (%d+) %S+ (%S+) ')
local spans, lowest = {}, math.huge
for new, start, count in string.gmatch(ranges or '', '(%+?)(%d+):(%d+)') do
  local from = tonumber(start) - (first or 0) + (new == '+' and tonumber(base) or 0)
  spans[#spans + 1] = {from, from + count - 1}
  lowest = math.min(lowest, from)
end
local others = math.max(redis.call('LLEN', KEYS[2]) - ARGV[2], 0)
if lowest >= others then return {'newest', id, line, others + (first or 0)} end
local reply = {'found', id, line}
for _, span in ipairs(spans) do reply[#reply + 1] = span[1] < 0 and {} or messages(span[1], span[2]) end
return reply

--[[ agent_delete: forget an agent.
  KEYS     every key of the agent; KEYS[1] is its hash (see shared.lua), the last one its open runs
  ARGV[1]  what a sweep saw (see shared.lua): it must still be so; "": whatever it is now
  ARGV[2]  1: the caller knows which checkpoints there are; 0: they are to be named
  returns  {} if it has changed | {bytes (estimated), "c:" id of each checkpoint, if they are to be named, ...}
           | {-1} and nothing is done: there are too many to be named
]]
local LONG = 1000

if ARGV[1] ~= '' then
  local agent = redis.call('HMGET', KEYS[1], 'tip', 'steps', 'runs', 'token', 'nonce', 'notes')
  if ARGV[1] ~= seen(redis.call('LLEN', KEYS[#KEYS]), unpack(agent)) then return {} end
end
local reply = {0}
if ARGV[2] == '0' then
  if redis.call('HLEN', KEYS[1]) > LONG then return {-1} end
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 2) == 'c:' then reply[#reply + 1] = field end
  end
end
for _, key in ipairs(KEYS) do
  reply[1] = reply[1] + (redis.call('MEMORY', 'USAGE', key) or 0)
end
redis.call('UNLINK', unpack(KEYS))
return reply

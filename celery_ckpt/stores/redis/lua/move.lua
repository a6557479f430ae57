--[[ move: give some agents other moments, or none, unless they were given others meanwhile.
  KEYS[1]  agents by moment (see watch.lua)
  ARGV     agent_id, its moment, how long from now in microseconds ("": none), agent_id, ...
  returns  how many were moved
]]
local time = redis.call('TIME')
local now, moved = time[1] * 1000000 + time[2], 0
for i = 1, #ARGV, 3 do
  if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i])) == tonumber(ARGV[i + 1]) then
    moved = moved + 1
    if ARGV[i + 2] == '' then
      redis.call('ZREM', KEYS[1], ARGV[i])
    else
      redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[i + 2]), ARGV[i])
    end
  end
end
return moved

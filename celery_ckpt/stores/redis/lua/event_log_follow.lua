--[[ event_log_follow: have live entries written for some time.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2]  live entries of the event log
  ARGV[1]  for how many milliseconds
  returns  the number of the last entry; 0 if the agent does not exist
]]
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local agent = redis.call('HMGET', KEYS[1], 'events', 'followed')
local now = now_ms()
local followed = math.max(tonumber(agent[2]) or 0, now + ARGV[1])
redis.call('HSET', KEYS[1], 'followed', string.format('%d', followed))
redis.call('EXPIRE', KEYS[2], LIVE_SECONDS + math.ceil((followed - now) / 1000))
return tonumber(agent[1]) or 0

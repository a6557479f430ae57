--[[ watchdog_count: note that a watchdog works on this store, and return how many do.
  KEYS[1]  sorted set: watchdogs by the time until which they count, in microseconds; it expires with the last
  ARGV[1]  name of the watchdog  ARGV[2]  how long it counts, in microseconds
  returns  the number
]]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.ceil(ARGV[2] / 1000))
return redis.call('ZCARD', KEYS[1])

--[[ schedule_count: return how many agents are due.
  KEYS[1]  agents by due time (see schedule_add.lua)
  returns  the number
]]
local time = redis.call('TIME')
return redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', time[1] * 1000000 + time[2]))

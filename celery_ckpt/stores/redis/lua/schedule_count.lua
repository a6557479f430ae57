--[[ schedule_count: how many agents' moments have come.
  KEYS[1]  agents by moment (see schedule_add.lua)
  returns  how many
]]
local time = redis.call('TIME')
return redis.call('ZCOUNT', KEYS[1], '-inf', string.format('%.0f', time[1] * 1000000 + time[2]))

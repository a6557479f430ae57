--[[ drop_steps: forget the steps of some iterations of a run.
  KEYS[1]  hash of the agent (see fence.lua)    KEYS[2], KEYS[3]  steps (see record_step.lua)
  ARGV[1]  lease  ARGV[2]  "length:run_id:"  ARGV[3], ARGV[4]  iterations, inclusive
  returns  {"ok", how many} | refusal
]]
local refused = refusal(ARGV[1])
if refused then return refused end
local gone = {}
for _, field in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], ARGV[3], ARGV[4])) do
  if string.sub(field, 1, #ARGV[2]) == ARGV[2] then gone[#gone + 1] = field end
end
each(gone, 1, 1000, function(...)
  redis.call('HDEL', KEYS[2], ...)
  redis.call('ZREM', KEYS[3], ...)
end)
return {'ok', #gone}

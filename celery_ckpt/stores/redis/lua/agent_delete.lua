--[[ agent_delete: delete an agent and everything it has.
  KEYS     every key of the agent; KEYS[1] is its hash (see shared.lua), the last one its open runs
  ARGV[1]  what a sweep saw of the agent (see seen in shared.lua), which must be unchanged; "": anything
  ARGV[2]  0: return the names of the checkpoints; 1: the caller knows them
  ARGV[3]  "runs" of KEYS[1] when the caller marked the runs (see run_scan.lua); "*": it marks none
  returns  {} if the agent has changed | {bytes (estimated), "c:" id of each checkpoint if asked for, ...}
           | {-1} if there are too many checkpoints to return | {-2} if a run was opened after the others were marked
           | {-3} if the agent does not exist, although a sweep saw it; nothing is deleted
]]
local LONG = 1000

if ARGV[1] ~= '' then
  local agent = redis.call('HMGET', KEYS[1], 'tip', 'steps', 'runs', 'token', 'nonce', 'policy')
  if ARGV[1] ~= seen(agent[3] and redis.call('ZCARD', KEYS[#KEYS]) or 0, unpack(agent)) then
    return redis.call('EXISTS', unpack(KEYS)) == 0 and {-3} or {}
  end
end
if ARGV[3] ~= '*' and (redis.call('HGET', KEYS[1], 'runs') or '') ~= ARGV[3] then return {-2} end
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

--[[ agent_rewrite: replace all checkpoints, steps and runs of an agent, or change nothing.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2]  the log (see checkpoint_save.lua)
  KEYS[3], KEYS[4]  steps (see step_record.lua)    KEYS[5]  runs (see run_add.lua)
  KEYS[6], KEYS[7], KEYS[8]  attempts, entries and live entries of the event log; live ones are dropped
  ARGV[1]  lease (see shared.lua)    ARGV[2]  the digest that the agent must have (see agent_contents.lua)
  ARGV[3], ARGV[4], ARGV[5]  the numbers of checkpoints, steps and runs that follow
  ARGV[6]  "events" of KEYS[1], or 0, which must be unchanged   ARGV[7], ARGV[8]  the numbers of attempts and entries
  ARGV[9...]  "c:" id and line of each checkpoint; "length:run_id:key", iteration and value of each step;
              id and line of each run; "number JSON" of all attempts and entries of the event log; then all
              messages of the log
  returns  {"ok"} | {"changed"} | refusal
]]
local refused = refusal(ARGV[1])
if refused then return refused end
if contents(KEYS[3], KEYS[5]) ~= ARGV[2] then return {'changed'} end
if (tonumber(redis.call('HGET', KEYS[1], 'events')) or 0) ~= tonumber(ARGV[6]) then return {'changed'} end
local at = 9
for _ = 1, tonumber(ARGV[3]) do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  at = at + 2
end
redis.call('UNLINK', KEYS[3], KEYS[4])
for _ = 1, tonumber(ARGV[4]) do
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 2])
  redis.call('ZADD', KEYS[4], ARGV[at + 1], ARGV[at])
  at = at + 3
end
for _ = 1, tonumber(ARGV[5]) do
  redis.call('HSET', KEYS[5], ARGV[at], ARGV[at + 1])
  at = at + 2
end
redis.call('UNLINK', KEYS[6], KEYS[7], KEYS[8])
for part = 6, 7 do
  for _ = 1, tonumber(ARGV[part + 1]) do
    redis.call('RPUSH', KEYS[part], ARGV[at])
    at = at + 1
  end
end
redis.call('UNLINK', KEYS[2])
if tonumber(ARGV[3]) > 0 then
  redis.call('HSET', KEYS[1], 'first', 0)
  -- A caller that read offsets before would trim what is needed now. A higher seq looks like a save to it.
  local seq, latest = tip(redis.call('HGET', KEYS[1], 'tip'))
  if latest then redis.call('HSET', KEYS[1], 'tip', seq + 1 .. ' ' .. latest) end
end
each(ARGV, at, 1000, function(...) redis.call('RPUSH', KEYS[2], ...) end)
return {'ok'}

--[[ run_pass: give the turn of a run that no worker has begun to the next one in line (see rules/turns.py).
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  runs (see run_add.lua)
  ARGV[1]  run_id  ARGV[2]  how many milliseconds ago it must have been given the turn  ARGV[3]  name of this call
  returns  {"kept"} if nothing has changed | {"next", run_id, line}
]]
local active, given = unpack(redis.call('HMGET', KEYS[1], 'active', 'given'))
if active ~= ARGV[1] then return {'kept'} end
local run, number = run_facts(redis.call('HGET', KEYS[2], ARGV[1]) or '')
if not number or run.status ~= 'queued' or run.attempts ~= '0' then return {'kept'} end
local given_ms = tonumber(string.match(given or '', '^%d+')) or 0
if now_ms() < given_ms + ARGV[2] then return {'kept'} end
redis.call('ZADD', KEYS[3], 'XX', '+inf', ARGV[1])
local id, other, others_number = first_in_line(KEYS[2], KEYS[3])
if not id then
  redis.call('ZADD', KEYS[3], 'XX', number, ARGV[1])
  return {'kept'}
end
run.passed_over = '1'
redis.call('HSET', KEYS[2], ARGV[1], run_line(number, run))
return {'next', id, give_turn(KEYS[2], id, other, others_number, ARGV[3])}

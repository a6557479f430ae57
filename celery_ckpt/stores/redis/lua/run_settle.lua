--[[ run_settle: record that a run's outcome was delivered, release the lease, and give the turn to the next run.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  steps (see step_record.lua)
  KEYS[4], KEYS[5]  runs (see run_add.lua)    KEYS[6], KEYS[7]  attempts and entries of the event log
  ARGV[1]  lease  ARGV[2]  name of this call, so that it can be repeated
  ARGV[3]  run_id  ARGV[4]  its line after the number and the usage  ARGV[5]  "length:run_id:"
  ARGV[6]  log (see shared.lua), for a run that was not settled before
  returns  {"ok", 1 if steps of the run may be left} | {"next", the same, run_id, line} | {"none"} | refusal
]]
local stored = redis.call('HGET', KEYS[4], ARGV[3])
if not stored then return {'none'} end
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'active', 'released', 'steps',
  'runs', 'youngest_blocked')
local has_steps = agent[7] and string.match(ARGV[4], '^succeeded ') and 1 or 0
local name, given = string.match(agent[6] or '', '^(%S+) ?(.*)$')
if name == ARGV[2] then
  if given == '' then return {'ok', has_steps} end
  return {'next', has_steps, given, redis.call('HGET', KEYS[4], given)}
end
local is_active = agent[5] == ARGV[3]
local has_lease = is_active or ARGV[1] ~= ''
if has_lease then
  local refused = lease_refusal(agent, ARGV[1])
  if refused then return refused end
end
redis.call('HSET', KEYS[4], ARGV[3], string.match(stored, '^%d+ %S+ ') .. ARGV[4])
redis.call('ZREM', KEYS[5], ARGV[3])
if not is_settled(run_facts(stored)) then note(ARGV[6], KEYS[6], KEYS[7]) end
-- Runs that did not succeed may be resumed manually: they keep their steps.
if has_steps == 1 then
  local _, rank = drop_steps(ARGV[5], '-inf', '+inf', 0)
  has_steps = rank >= 0 and 1 or 0
end
local id, line, next_active = nil, nil, agent[5] or ''
if is_active then
  next_active = ''
  -- Most agents have one run, and skip this.
  if agent[8] ~= '1' then
    local run, number
    id, run, number = first_in_line(KEYS[4], KEYS[5])
    -- A message that no worker has received yet is expected to arrive, unless younger ones have arrived.
    if id and (run.status == 'blocked' or is_older(KEYS[4], number, agent[9])) then
      next_active, line = id, give_turn(KEYS[4], id, run, number, ARGV[2])
    else
      id = nil
    end
  end
end
if has_lease then
  redis.call('HSET', KEYS[1], 'nonce', '', 'released', id and ARGV[2] .. ' ' .. id or ARGV[2],
    'active', next_active)
end
return id and {'next', has_steps, id, line} or {'ok', has_steps}

--[[ run_start: start an attempt of a run that was delivered, if it is its turn (see rules/turns.py).
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  runs (see run_add.lua)
  KEYS[4]  attempts of the event log
  ARGV[1]  run_id   ARGV[2]  delivery
  ARGV[3]  nonce of the new lease   ARGV[4]  owner   ARGV[5]  ttl_ms   ARGV[6]  over (see shared.lua)
  ARGV[7]  of an unknown run: "recorded": return {"none"} in any case; "final": it has ended, and does not wait for
           its turn; "": neither. It is refused if it would be refused after it was added
  ARGV[8]  trace  ARGV[9], ARGV[10]  for the event log (see note_start in shared.lua)
  returns  {"ok", line, token, expires_ms, trace of the attempt before} | {"blocked", line}
           | {"blocked", line, id, line of the older run that has the turn now} | {"settled", line} | {"none"} | refusal
           | {"damaged", line} if a script cannot read the line, or a newer version wrote it; nothing is changed
]]
local function put(line)
  redis.call('HSET', KEYS[2], ARGV[1], line)
  return line
end

local stored = redis.call('HGET', KEYS[2], ARGV[1])
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'active', 'tip', 'steps',
  'runs', 'given', 'youngest_blocked')
local active = agent[5] or ''
local is_anothers = active ~= '' and active ~= ARGV[1]
-- An unknown run must be added first, unless it would be refused.
if not stored then
  local is_behind = is_anothers or ARGV[7] == '' and agent[8] and first_in_line(KEYS[2], KEYS[3])
  local needs_lease = ARGV[7] == 'final' or ARGV[7] == '' and not is_behind
  return needs_lease and taking_refusal(agent, ARGV[6]) or {'none'}
end
local run, number = run_facts(stored)
if not number or is_too_new(run) then return {'damaged', stored} end
if is_settled(run) then return {'settled', stored} end

-- The run that goes first. Most agents have one run, and skip this.
local other, others_number, id
if not run.is_final and active ~= ARGV[1] and agent[8] ~= '1' then
  -- It was delivered: it is in line now, if it was not.
  redis.call('ZADD', KEYS[3], 'XX', number, ARGV[1])
  run.passed_over = '0'
  if is_anothers then
    id, other, others_number = active, run_facts(redis.call('HGET', KEYS[2], active) or '')
  else
    id, other, others_number = first_in_line(KEYS[2], KEYS[3])
  end
  local has_begun = other and is_anothers and (other.is_final or other.attempts ~= '0')
  local is_older = others_number and tonumber(others_number) < tonumber(number)
  -- An active run that cannot be read keeps its turn.
  if is_older or has_begun or is_anothers and not others_number then
    run.status, run.delivery = 'blocked', ARGV[2]
    local line = put(run_line(number, run))
    note_blocked(KEYS[2], agent[10], ARGV[1], number)
    if is_anothers then
      -- This call gave it the turn before, and is repeated.
      local is_repeated = string.match(agent[9] or '', ' (.*)$') == ARGV[3]
      return is_repeated and {'blocked', line, id, run_line(others_number, other)} or {'blocked', line}
    end
    return {'blocked', line, id, give_turn(KEYS[2], id, other, others_number, ARGV[3])}
  end
end
local next_active = run.is_final and active or ARGV[1]
local refused, token, expires_ms = take_lease(agent, ARGV[3], ARGV[4], ARGV[5], ARGV[6], 'active', next_active)
if refused then return refused end
local is_repeated = agent[2] == ARGV[3]
if is_repeated or run.is_final then return {'ok', stored, token, expires_ms} end
if is_anothers and others_number then
  -- It had not begun: it waits again, and is published when its turn comes.
  other.status = 'blocked'
  redis.call('HSET', KEYS[2], active, run_line(others_number, other))
  note_blocked(KEYS[2], agent[10], active, others_number)
end
local progress = (tip(agent[6]) or 0) .. '.' .. (agent[7] or 0)
-- The attempt before has no recorded end, and saved nothing: it stalled.
local is_stalled = run.status == 'running' and run.progress == progress
run.stalled = is_stalled and run.stalled + 1 or 0
run.attempts = run.attempts + 1
note_start(KEYS[4], ARGV[9], ARGV[10], run.attempts)
local trace_before = run.trace
run.status, run.progress, run.delivery, run.trace, run.passed_over = 'running', progress, ARGV[2], ARGV[8], '0'
return {'ok', put(run_line(number, run)), token, expires_ms, trace_before}

--[[ run_start: start an attempt of a run that was delivered, if it is its turn.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2]  runs (see run_add.lua)
  ARGV[1]  run_id   ARGV[2]  delivery
  ARGV[3]  nonce of the new lease   ARGV[4]  owner   ARGV[5]  ttl_ms   ARGV[6]  over (see shared.lua)
  ARGV[7]  of an unknown run: "recorded": return {"none"} in any case; "final": it has ended, and does not wait for
           its turn; "": neither. It is refused if it would be refused after it was added
  returns  {"ok", line, token, expires_ms} | {"blocked", line} | {"settled", line} | {"none"} | refusal
           | {"damaged", line} if a script cannot read the line, or a newer version wrote it; nothing is changed
]]
local function put(line)
  redis.call('HSET', KEYS[2], ARGV[1], line)
  return line
end

local stored = redis.call('HGET', KEYS[2], ARGV[1])
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'active', 'tip', 'steps')
local active = agent[5] or ''
local is_anothers = active ~= '' and active ~= ARGV[1]
-- An unknown run must be added first, unless it would be refused.
if not stored then
  local needs_lease = ARGV[7] == 'final' or ARGV[7] == '' and not is_anothers
  return needs_lease and taking_refusal(agent, ARGV[6]) or {'none'}
end
local run, number = run_facts(stored)
if not number or is_too_new(run) then return {'damaged', stored} end
if is_settled(run) then return {'settled', stored} end
if not run.is_final and is_anothers then
  run.status, run.delivery = 'blocked', ARGV[2]
  return {'blocked', put(run_line(number, run))}
end
local next_active = run.is_final and active or ARGV[1]
local refused, token, expires_ms = take_lease(agent, ARGV[3], ARGV[4], ARGV[5], ARGV[6], 'active', next_active)
if refused then return refused end
local is_repeated = agent[2] == ARGV[3]
if is_repeated or run.is_final then return {'ok', stored, token, expires_ms} end
local progress = (tip(agent[6]) or 0) .. '.' .. (agent[7] or 0)
-- The attempt before has no recorded end, and saved nothing: it stalled.
local is_stalled = run.status == 'running' and run.progress == progress
run.stalled = is_stalled and run.stalled + 1 or 0
run.attempts = run.attempts + 1
run.status, run.progress, run.delivery = 'running', progress, ARGV[2]
return {'ok', put(run_line(number, run)), token, expires_ms}

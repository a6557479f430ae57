--[[ run_settle: record that a run's outcome was delivered, release the lease, and make the next run active.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  steps (see step_record.lua)
  KEYS[4], KEYS[5]  runs (see run_add.lua)
  ARGV[1]  lease  ARGV[2]  name of this call, so that it can be repeated
  ARGV[3]  run_id  ARGV[4]  its line after the number and the usage  ARGV[5]  "length:run_id:"
  returns  {"ok"} | {"next", run_id, line} | {"none"} | refusal
]]
local function next_blocked()
  for _, id in ipairs(redis.call('LRANGE', KEYS[5], 0, -1)) do
    local run, number = run_facts(redis.call('HGET', KEYS[4], id) or '')
    if run.status == 'blocked' then
      run.status = 'queued'
      return id, run_line(number, run)
    end
  end
end

local stored = redis.call('HGET', KEYS[4], ARGV[3])
if not stored then return {'none'} end
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'active', 'released', 'steps')
local name, given = string.match(agent[6] or '', '^(%S+) ?(.*)$')
if name == ARGV[2] then
  if given == '' then return {'ok'} end
  return {'next', given, redis.call('HGET', KEYS[4], given)}
end
local is_active = agent[5] == ARGV[3]
local has_lease = is_active or ARGV[1] ~= ''
if has_lease then
  local refused = lease_refusal(agent, ARGV[1])
  if refused then return refused end
end
redis.call('HSET', KEYS[4], ARGV[3], string.match(stored, '^%d+ %S+ ') .. ARGV[4])
redis.call('LREM', KEYS[5], 0, ARGV[3])
-- Runs that did not succeed may be resumed manually: they keep their steps.
if agent[7] and string.match(ARGV[4], '^succeeded ') then drop_steps(ARGV[5], '-inf', '+inf') end
local id, line, next_active = nil, nil, agent[5] or ''
if is_active then
  id, line = next_blocked()
  next_active = id or ''
end
if id then redis.call('HSET', KEYS[4], id, line) end
if has_lease then
  redis.call('HSET', KEYS[1], 'nonce', '', 'released', id and ARGV[2] .. ' ' .. id or ARGV[2],
    'active', next_active)
end
return id and {'next', id, line} or {'ok'}

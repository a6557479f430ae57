--[[ agent_snapshot: return what a sweep needs to know about an agent.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  runs (see run_add.lua)
  ARGV[1]  agent_id
  ARGV[2], ARGV[3]  the most fields, and about the most bytes, of a hash that is returned
  returns  {} | {seen, policy, 1 if a run is open or the lease is held, 1 if a run has the agent's name,
           {id, status, delivered, the times and limits in the record} of the last run or {},
           earliest_end, "?" if it is not known, or "" if there is no other run, first, seq,
           1 if the hash is too long, {field whose value is cut short, its length, ...},
           {field of KEYS[1], value, ...}, empty if the hash is too long}
]]
-- Records are returned as they are: Python parses them faster, while the server serves others.
local function last_run(id, line)
  if not line then return {} end
  local run = run_facts(line)
  return {id, run.status or '', run.delivered or '', '{' .. (run_times(run.record) or '') .. '}'}
end

local fields = redis.call('HLEN', KEYS[1])
if fields == 0 then return {} end
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'tip', 'steps', 'runs',
  'policy', 'first', 'last')
local token, nonce, _, _, last_save, steps, runs, policy, first, last = unpack(agent)
last = last or ARGV[1]
local named, run, open, earliest_end = nil, nil, 0, ''
if runs then
  named, run = unpack(redis.call('HMGET', KEYS[2], ARGV[1], last))
  open = redis.call('ZCARD', KEYS[3])
  -- Most agents have one run, and skip this.
  if runs ~= '1' and redis.call('HLEN', KEYS[2]) > 1 then
    earliest_end = redis.call('HGET', KEYS[1], 'earliest_end') or '?'
  end
end
local is_busy = open > 0 or lease_refusal(agent, '')
-- Estimated, as if all records had the size of the latest: to measure them would take longer.
local size = fields * redis.call('HSTRLEN', KEYS[1], string.match(last_save or '', 'c:.*') or '')
local is_long = fields > tonumber(ARGV[2]) or size > tonumber(ARGV[3])
local all = is_long and {} or redis.call('HGETALL', KEYS[1])
local cut = cut_short(all)
return {seen(open, last_save, steps, runs, token, nonce, policy), policy or '', is_busy and 1 or 0, named and 1 or 0,
  last_run(last, run), earliest_end, first or '0', string.match(last_save or '', '^%d+') or '0',
  is_long and 1 or 0, cut, all}

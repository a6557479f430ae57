--[[ sight: what a sweep has to know of an agent.
  KEYS[1]  hash of the agent (see fence.lua)    KEYS[2], KEYS[3]  runs (see add_run.lua)
  ARGV[1]  agent_id
  ARGV[2]  at most so many fields: of a longer hash none are answered
  returns  {} | {seen, notes, 1 if a run is open or the lease held, 1 if a run has the agent's name,
           {id, status, delivered, the end of the record} of the last run or {}, first, seq,
           1 if it is too long, {field of KEYS[1], value, ...}}
]]
local fields = redis.call('HLEN', KEYS[1])
if fields == 0 then return {} end

local function last_run(id)
  local line = redis.call('HGET', KEYS[2], id)
  if not line then return {} end
  local run = run_facts(line)
  -- The envelope and the result can be long, and nobody judges by them.
  local ending = string.match(run.record or '', '^.*,("created_at":"[^"]*".*)$')
  return {id, run.status or '', run.delivered or '', '{' .. (ending or '}')}
end

local agent = redis.call('HMGET', KEYS[1], 'notes', 'last', 'first', 'tip')
local is_busy = redis.call('LLEN', KEYS[3]) > 0 or refusal('')
local is_named = redis.call('HEXISTS', KEYS[2], ARGV[1])
local is_long = fields > tonumber(ARGV[2])
-- Python takes the records apart: it does so quicker, and keeps nobody else waiting meanwhile.
return {seen(KEYS[3]), agent[1] or '', is_busy and 1 or 0, is_named, last_run(agent[2] or ARGV[1]),
  agent[3] or '0', string.match(agent[4] or '', '^%d+') or '0', is_long and 1 or 0,
  is_long and {} or redis.call('HGETALL', KEYS[1])}

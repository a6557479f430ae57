--[[ sight: what a sweep has to know of an agent.
  KEYS[1]  hash of the agent (see fence.lua)    KEYS[2], KEYS[3]  runs (see add_run.lua)
  ARGV[1]  agent_id
  ARGV[2]  at most so many fields: of a longer hash no checkpoints are answered
  returns  {} | {seen, notes, 1 if a run is open or the lease held, 1 if a run has the agent's name,
           {id, status, delivered, the end of the record} of the last run or {}, first, seq,
           1 if it is too long, {"c:" id, label by which it was pinned as it was saved, ...},
           "c:" id, "seq created_at base low size", ...}
]]
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end

local function pin_of(line)
  local is_read, header = pcall(cjson.decode, string.match(line, '{.*$'))
  local metadata = is_read and type(header) == 'table' and header.metadata
  return type(metadata) == 'table' and metadata.pin
end

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
local is_long = redis.call('HLEN', KEYS[1]) > tonumber(ARGV[2])
local pins = {}
local reply = {seen(KEYS[3]), agent[1] or '', is_busy and 1 or 0, is_named, last_run(agent[2] or ARGV[1]),
  agent[3] or '0', string.match(agent[4] or '', '^%d+') or '0', is_long and 1 or 0, pins}
if is_long then return reply end
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if string.sub(all[i], 1, 2) == 'c:' then
    local line = all[i + 1]
    local seq, base, low = string.match(line, '^%d+ (%d+) (%d+) (%S+) ')
    local created_at = string.match(line, '{"created_at":(%-?%d+)')
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = table.concat({seq or '-', created_at or '-', base or '-', low or '-', #line}, ' ')
    local pin = string.find(line, '"pin":', 1, true) and pin_of(line)
    if pin then
      pins[#pins + 1] = all[i]
      pins[#pins + 1] = pin
    end
  end
end
return reply

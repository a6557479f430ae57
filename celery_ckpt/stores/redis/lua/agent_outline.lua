--[[ agent_outline: return an agent in one row: what is needed to list it.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  runs (see run_add.lua)
  returns  {} | {changed, id of the active or else last run or "", its outline, the beginning of its envelope,
           number of other open runs, owner of the lease if it is held or "", number of checkpoints,
           "c:" id of the latest checkpoint or "", its line up to the iteration, or "" if it is missing,
           renewed if the lease is held and an attempt has not ended, or ""}
]]
-- All fields of the hash but the checkpoints, which are not read: they are counted.
local FIELDS = {'token', 'nonce', 'owner', 'expires_ms', 'active', 'last', 'tip', 'changed', 'released', 'first',
  'steps', 'runs', 'earliest_end', 'policy', 'listed', 'given', 'youngest_blocked', 'events', 'attempt', 'renewed',
  'followed'}

local function present_run(...)
  for _, id in ipairs({...}) do
    local line = id and id ~= '' and redis.call('HGET', KEYS[2], id)
    if line then return id, line end
  end
  return '', ''
end

-- An encrypted one is returned whole: the reader must recognise it. So is a damaged one.
local function header(line)
  local beginning = not string.find(line, '"ckpt:encrypted"', 1, true)
    and string.match(line, '^%d+ %d+ %d+ %S+ %S+ %S+ {"created_at":%-?%d+,"messages":%d+,"iteration":%d+')
  return beginning and beginning .. '}' or line
end

local count = redis.call('HLEN', KEYS[1])
if count == 0 then return {} end
local agent = redis.call('HMGET', KEYS[1], unpack(FIELDS))
for i = 1, #FIELDS do count = count - (agent[i] and 1 or 0) end
local id, line = present_run(agent[5] or '', agent[6] or '')
local outline, envelope = run_outline(line)
local others = redis.call('ZCARD', KEYS[3])
if others > 0 and line ~= '' and not is_settled(run_facts(outline)) then others = others - 1 end
local _, latest = tip(agent[7])
local record = latest and redis.call('HGET', KEYS[1], latest)
local is_held = lease_refusal(agent, '')
return {agent[8] or '', id, outline, envelope, others, is_held and agent[3] or '', count,
  latest or '', record and header(record) or '', is_held and agent[19] and agent[20] or ''}

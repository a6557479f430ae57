--[[ run_cancel: set the status of a run to cancelled, and take the lease if it is the active run.
  KEYS[1]  hash of the agent (see shared.lua)    KEYS[2], KEYS[3]  runs (see run_add.lua)
  KEYS[4], KEYS[5]  attempts and entries of the event log
  ARGV[1]  run_id   ARGV[2]  nonce of the new lease   ARGV[3]  owner   ARGV[4]  ttl_ms   ARGV[5]  log (see shared.lua)
  returns  {"ok"} | {"ok", token, expires_ms} if it was the active run | {"none"} | {"ended", status}
           | {"damaged", line}; nothing is changed
]]
local stored = redis.call('HGET', KEYS[2], ARGV[1])
if not stored then return {'none'} end
local run, number = run_facts(stored)
if not number then return {'damaged', stored} end
-- A cancellation whose outcome was not delivered may be repeated.
if run.is_final and (run.delivered == '1' or run.status ~= 'cancelled') then
  return {'ended', run.status}
end
run.status = 'cancelled'
redis.call('HSET', KEYS[2], ARGV[1], run_line(number, run))
local agent = redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms', 'active')
if agent[2] ~= ARGV[2] then note(ARGV[5], KEYS[4], KEYS[5]) end
if agent[5] ~= ARGV[1] then
  -- It leaves the line, so that the watchdog finds it there if this process dies before it is settled.
  redis.call('ZADD', KEYS[3], 'XX', '+inf', ARGV[1])
  return {'ok'}
end
-- Taken as if it were free: the cancellation fences the holder, unless this call is repeated.
if agent[2] ~= ARGV[2] then agent[2] = '' end
local _, token, expires_ms = take_lease(agent, ARGV[2], ARGV[3], ARGV[4], '')
return {'ok', token, expires_ms}

--[[ agent_set_policy: replace what was decided about an agent, if it is still that.
  KEYS[1]  hash of the agent (see shared.lua)
  ARGV[1]  before  ARGV[2]  after
  returns  1 | 0 if it is something else by now, or there is no such agent
]]
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if (redis.call('HGET', KEYS[1], 'notes') or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('HDEL', KEYS[1], 'notes') else redis.call('HSET', KEYS[1], 'notes', ARGV[2]) end
return 1

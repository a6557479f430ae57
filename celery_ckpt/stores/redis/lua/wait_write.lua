--[[ wait_write: write something that changes nothing, for WAIT and WAITAOF to wait for (see durability.py).
  KEYS[1]  the key that was written before; it may be deleted by now
  returns  nothing
]]
if redis.call('EXPIRE', KEYS[1], 1000000) == 1 then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('SET', KEYS[1], '')
  redis.call('DEL', KEYS[1])
end

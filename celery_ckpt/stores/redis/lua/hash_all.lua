--[[ hash_all: a whole hash, as bytes and in one shape whatever the protocol.
  KEYS[1]  a hash
  returns  {field, value, field, value, ...}
]]
return redis.call('HGETALL', KEYS[1])

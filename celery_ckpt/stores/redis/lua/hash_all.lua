--[[ hash_all: return a whole hash, as bytes and in the same shape for every protocol version.
  KEYS[1]  a hash
  returns  {field, value, field, value, ...}
]]
return redis.call('HGETALL', KEYS[1])

--[[ change_page: return the next entries of each shard of the index of changes, the newest first.
  KEYS     shards of the index (see change_index.py): on a cluster one, elsewhere all of them
  ARGV[1], ARGV[2]  highest and lowest entry, as ZREVRANGEBYLEX takes them  ARGV[3]  the most entries of each shard
  returns  {{entry, ...} of each shard, ...}
]]
local reply = {}
for i, key in ipairs(KEYS) do
  reply[i] = redis.call('ZREVRANGEBYLEX', key, ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
end
return reply

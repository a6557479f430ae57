--[[ fence: the beginning of every script; it defines what they share and does nothing itself.
  KEYS[1]  hash of the agent: token, nonce, owner, expires_ms, released (lease);
           tip ("seq" of the last save and, if it has any, "c:" id of the latest checkpoint),
           first (offset of the log's first message);
           steps, runs (how many were ever added, for their order);
           "c:" and a checkpoint's id -> "version seq base low ranges digest header"
  KEYS[2]  list: the log, in the scripts that read messages (see save.lua)
  FORMAT_VERSION  of what is written; it stands before this text when it is loaded
  refusal(lease)  what to answer instead of writing, or nil; a lease is "token:nonce", or empty
      {"lost"}                                      the lease is not the newest one, or was released
      {"held", owner, token, nonce, left_ms}        no lease was given, and somebody holds one
  lease_refusal(held, lease)  the same, given token, nonce, owner and expires_ms of the agent
  tip(value)  the two parts of tip: seq, and the field of the latest checkpoint; nil if not there
  messages(from, last)  the log's messages from index to index; none before the first
  each(items, first, size, action)  calls action with at most size items at a time, from the first on:
                                    unpack has a limit
]]
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function lease_refusal(held, lease)
  local nonce = held[2]
  if not nonce or nonce == '' then return lease ~= '' and {'lost'} or nil end
  if lease ~= '' then
    return lease ~= held[1] .. ':' .. nonce and {'lost'} or nil
  end
  local left_ms = tonumber(held[4]) - now_ms()
  if left_ms > 0 then return {'held', held[3], held[1], nonce, left_ms} end
end

local function refusal(lease)
  return lease_refusal(redis.call('HMGET', KEYS[1], 'token', 'nonce', 'owner', 'expires_ms'), lease)
end

local function tip(value)
  local seq, latest = string.match(value or '', '^(%d+) ?(.*)$')
  return tonumber(seq), latest ~= '' and latest or nil
end

local function messages(from, last)
  if last < 0 then return {} end
  return redis.call('LRANGE', KEYS[2], math.max(from, 0), last)
end

local function each(items, first, size, action)
  for from = first, #items, size do
    action(unpack(items, from, math.min(from + size - 1, #items)))
  end
end

--[[ joined: run several scripts and commands as one, in their order (see Call.joined in server.py).
  KEYS     the keys of each part, one part after the other
  ARGV[1]  the number of a part: later parts are run only if it has written; "0": all parts are run in any case
  ARGV[2]  the number of parts
  ARGV[3]  "number from to at": the last argument lacks a text that it has in common with the argument of this number,
           from there to there, after its first "at" bytes; "": it lacks nothing
  ARGV[4...]  for each part: which of the scripts it runs, the number of its keys, the number of its arguments;
              then the arguments of all parts
  scripts  each a function of its own KEYS and ARGV; defined before this text when it is loaded
  returns  the reply of each part; false for a part that was not run, or that returns nothing
]]
local WRITTEN = {ok = true, blocked = true, next = true}
local at_key, at_arg, replies, deciding = 0, 3 + 3 * ARGV[2], {}, tonumber(ARGV[1])
if ARGV[3] ~= '' then
  local number, from, to, at = string.match(ARGV[3], '^(%d+) (%d+) (%d+) (%d+)$')
  local last, common = ARGV[#ARGV], string.sub(ARGV[at_arg + number], from, to)
  ARGV[#ARGV] = string.sub(last, 1, at) .. common .. string.sub(last, at + 1)
end

local function taken(all, from, count)
  local own = {}
  for i = 1, count do own[i] = all[from + i] end
  return own
end

local function has_written(reply)
  return type(reply) == 'number' or type(reply) == 'table' and WRITTEN[reply[1]] or false
end

for i = 1, tonumber(ARGV[2]) do
  if deciding > 0 and i > deciding and not has_written(replies[deciding]) then
    replies[i] = false
  else
    local script, keys, args = tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2]), tonumber(ARGV[3 * i + 3])
    replies[i] = scripts[script](taken(KEYS, at_key, keys), taken(ARGV, at_arg, args)) or false
    at_key, at_arg = at_key + keys, at_arg + args
  end
end
return replies

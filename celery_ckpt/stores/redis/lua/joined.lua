--[[ joined: run several scripts and commands as one, in their order (see Call.joined in server.py).
  KEYS     the keys of each part, one part after the other
  ARGV[1]  "1": the other parts are run only if the first one has written; "": they are run in any case
  ARGV[2...]  for each part the number of its keys and the number of its arguments; then all arguments
  parts    the scripts, each a function of its own KEYS and ARGV; defined before this text when it is loaded
  returns  the reply of each part; false for a part that was not run, or that returns nothing
]]
local at_key, at_arg, replies = 0, 1 + 2 * #parts, {}

local function taken(all, from, count)
  local own = {}
  for i = 1, count do own[i] = all[from + i] end
  return own
end

local function has_written(reply)
  return type(reply) == 'number' or type(reply) == 'table' and reply[1] == 'ok'
end

for i, part in ipairs(parts) do
  if i > 1 and ARGV[1] == '1' and not has_written(replies[1]) then
    replies[i] = false
  else
    local keys, args = tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1])
    replies[i] = part(taken(KEYS, at_key, keys), taken(ARGV, at_arg, args)) or false
    at_key, at_arg = at_key + keys, at_arg + args
  end
end
return replies

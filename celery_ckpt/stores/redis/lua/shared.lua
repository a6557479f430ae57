--[[ shared: the functions that scripts share. A script starts with those that it uses: they are created
  on every call. The most expensive operation is redis.call, so a script asks for everything it needs at once.
  KEYS[1]  hash of the agent: token, nonce, owner, expires_ms, released (lease);
           tip ("seq" of the last save, or a higher one after agent_rewrite.lua, and, if there is one, "c:" id of
           the latest checkpoint),
           first (offset of the log's first message);
           steps (how many were ever added: their order), runs (the same, and how often one was opened again);
           active (id of the active run; empty or missing: none),
           given ("milliseconds name": when the turn was last given to a run that has to be published, and the name
           of the call that gave it),
           youngest_blocked (id of the youngest run that was ever blocked),
           last (id of the run that was sent last),
           earliest_end (no run that may be deleted ended before this, see run_delete.lua; missing: not known);
           policy (see AgentPolicy in retention/report.py);
           changed ("microseconds status": where the agent is in the index of changes, see agent_note.lua);
           listed (over 0: a sweep will look at the agent soon; its absolute value grows with each change)
           events (the number of the last entry of the event log),
           attempt ("number run_id JSON" of the attempt that has started and not ended; the JSON names the run,
           as entries do), renewed ("ms call": when its lease was renewed, and the JSON of the current call),
           followed (until when live entries are written, in ms);
           "c:" and a checkpoint's id -> "version seq base low ranges digest header"
  KEYS[2]  list: the log, in the scripts that read messages (see checkpoint_save.lua)
  FORMAT_VERSION  the version that is written; it and IN_LINE are defined before this text when a script is loaded
  ATTEMPT_ENTRIES, LIVE_ENTRIES, LIVE_SECONDS  the same, see event_log.py
  held  a table that starts with token, nonce, owner and expires_ms of the agent
  lease_refusal(held, lease)  the reply of a script that may not write, or nil; a lease is "token:nonce", or ""
      {"lost"}                                      the lease is not the newest one, or was released
      {"held", owner, token, nonce, left_ms}        no lease was given, and another owner holds one
  refusal(lease)  the same, for a script that needs nothing else of the agent
  tip(value)  the two parts of tip: seq, and the field of the latest checkpoint; nil if missing
  messages(from, last)  the log's messages from index to index; none before the first
  taking_refusal(held, over)  the reply of take_lease if it may not grant the lease, or nil
  take_lease(held, nonce, owner, ttl_ms, over, ...)  grants the lease, and sets more fields of the agent;
                                                     nil, token, expires_ms, or the reply
      over  a lease that may be taken over before it expires; "": none
  run_facts(line)  of a run's "number usage status delivered attempts stalled progress delivery trace passed_over
                   expires_at record", everything but the number as a table by name, and the number; no number: damaged
  run_line(number, facts)  the line again
  is_settled(facts)  true if nothing is left to do for the run
  is_too_new(facts)  true if a newer version wrote the run
  run_outline(line)  a run's line without envelope and result, and the beginning of the envelope
  run_times(line)  the times and limits in a run's line, or in its record, from created_at to max_age; or nil
  run_end(line)  when a settled run ended, without the Z; nil if it is not settled, or cannot be read
  add_usage(used, more)  the sum of two usages (see run_line.py)
  IN_LINE  open runs have places, the scores of their sorted set. Below IN_LINE: the run is in line, and this is its
           number. From there on: the time from which it may be in line, in milliseconds; +inf: it has expired, ended
           or was passed over
  first_in_line(runs, open)  id, facts and number of the first run in line, or nil. runs and open are keys
  is_older(runs, number, id)  true if the run with this number is older than the run with this id, which exists
  note_blocked(runs, youngest, id, number)  sets youngest_blocked, which is youngest now, if this run is younger
  give_turn(runs, id, run, number, name)  makes a run the active one, which has to be published; its line
  drop_steps(prefix, from, to, rank)  drops steps in KEYS[2] and KEYS[3] whose names start with prefix. Reads some of
                                      the steps with these scores, from a rank on that is counted from the first one;
                                      how many were dropped, and the rank to continue with, -1: none are left
  seen(open, tip, steps, runs, token, nonce, policy)  a text that differs after every change of the agent, from the
                                                      number of its open runs and from fields of its hash
  cut_short(all)  in {field of the agent, value, ...}, reduces long records to what a sweep needs;
                  {field of each, its length, ...}
  due_times(step)  the due times in KEYS[1] (see schedule_add.lua) of the agents ARGV[1], ARGV[1 + step], ...
  contents(steps, runs)  a digest of all checkpoints, and of the hashes under these keys
  with_attempt(entry, number)  an entry, as JSON, with the number of its attempt
  push(key, keep, lines)  appends numbered entries to a part of the event log, and cuts it now and then
  append(log, attempts, entries, events)  appends entries to the parts under these keys, after the entry with the
                                          number events; the last number, and true if the attempt has ended
      log  "": none; or "limit", and for each entry "\\n" and "part JSON", or for the end of an attempt
           "x number run_id JSON"; the number is 0 for any attempt
  append_call(log, entries, events)  the same for a log with one entry, which is not of an attempt: the last number;
                                     nil, and nothing is appended, for any other log
  note(log, attempts, entries)  the same, and writes the last number
  note_start(attempts, entry, run, number)  notes the start of an attempt with this number, and that the one before was
                                            lost if it left no end
      entry  as JSON, without the number; "": there is no event log    run  "run_id JSON", as in the field attempt
  tell(live, followed, entries)  appends the live entries that the function returns, if the agent has a follower until
                                 followed; true if so
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

local function with_attempt(entry, number)
  local head, rest = string.match(entry, '^([^{]*{)(.*)$')
  return head .. '"a":' .. number .. (string.sub(rest, 1, 1) == '}' and '' or ',') .. rest
end

local function push(key, keep, lines)
  -- A log that is damaged keeps nothing else from working.
  local length = 0
  each(lines, 1, 1000, function(...) length = redis.pcall('RPUSH', key, ...) end)
  if type(length) == 'number' and length > 1.5 * keep then redis.call('LTRIM', key, -keep, -1) end
end

local function append_call(log, entries, events)
  -- Nearly every step comes with its own call and nothing else. Plain searches are cheaper than patterns.
  local first = string.find(log, '\ne ', 1, true)
  if not first or string.find(log, '\n', first + 3, true) then return end
  local number, keep = string.format('%d', (tonumber(events) or 0) + 1), tonumber(string.sub(log, 1, first - 1))
  if not keep then return end
  local length = redis.pcall('RPUSH', entries, number .. string.sub(log, first + 2))
  if type(length) == 'number' and length > 1.5 * keep then redis.call('LTRIM', entries, -keep, -1) end
  return number
end

local function append(log, attempts, entries, events)
  local number, open, lines = tonumber(events) or 0, nil, {a = {}, e = {}}
  local has_ended = false
  for part, entry in string.gmatch(log, '\n(%a) ([^\n]+)') do
    if part == 'x' then
      local own, run, text = string.match(entry, '^(%d+) (%S+) (.*)$')
      open = open or redis.call('HGET', KEYS[1], 'attempt') or ''
      local current, open_run = string.match(open, '^(%d+) (%S+)')
      local counts = run == open_run and (own == '0' or own == current) and not has_ended
      part, entry = 'a', counts and with_attempt(text, current)
      has_ended = has_ended or counts
    end
    if entry then
      number = number + 1
      lines[part][#lines[part] + 1] = string.format('%d ', number) .. entry
    end
  end
  if lines.a[1] then push(attempts, ATTEMPT_ENTRIES, lines.a) end
  if lines.e[1] then push(entries, tonumber(string.match(log, '^%d+')), lines.e) end
  return number, has_ended
end

local function note(log, attempts, entries)
  if log == '' then return end
  local number, has_ended = append(log, attempts, entries, redis.call('HGET', KEYS[1], 'events'))
  redis.call('HSET', KEYS[1], 'events', string.format('%d', number))
  if has_ended then redis.call('HDEL', KEYS[1], 'attempt') end
end

local function note_start(attempts, entry, run, number)
  local agent = redis.call('HMGET', KEYS[1], 'attempt', 'renewed', 'events')
  if entry == '' then
    -- Of an attempt that began before the log was switched off.
    if agent[1] then redis.call('HDEL', KEYS[1], 'attempt') end
    return
  end
  local now, last, lines = string.format('%d', now_ms()), tonumber(agent[3]) or 0, {}
  local lost, lost_run = string.match(agent[1] or '', '^(%d+) %S+ (.*)$')
  if lost then
    local renewed, calling = string.match(agent[2] or '', '^(%d+) ?(.*)$')
    lines[1] = string.format('%d ["ended",%s,{"a":%s%s,"h":"lost","renewed_at":%s%s}]', last + 1, now, lost, lost_run,
      renewed or '0', calling and calling ~= '' and ',"calling":' .. calling or '')
  end
  lines[#lines + 1] = string.format('%d ', last + #lines + 1) .. with_attempt(entry, number)
  push(attempts, ATTEMPT_ENTRIES, lines)
  redis.call('HSET', KEYS[1], 'attempt', number .. ' ' .. run, 'renewed', now,
    'events', string.format('%d', last + #lines))
end

local function tell(live, followed, entries)
  local now = now_ms()
  local left_ms = (tonumber(followed) or 0) - now
  if left_ms <= 0 then return false end
  local number, lines = tonumber(redis.call('HGET', KEYS[1], 'events')) or 0, {}
  for i, entry in ipairs(entries(now)) do lines[i] = string.format('%d ', number + i) .. entry end
  push(live, LIVE_ENTRIES, lines)
  redis.call('EXPIRE', live, LIVE_SECONDS + math.ceil(left_ms / 1000))
  redis.call('HSET', KEYS[1], 'events', string.format('%d', number + #lines))
  return true
end

local function due_times(step)
  local ids, found = {}, {}
  for i = 1, #ARGV, step do ids[#ids + 1] = ARGV[i] end
  each(ids, 1, 1000, function(...)
    for _, due_at in ipairs(redis.call('ZMSCORE', KEYS[1], ...)) do found[#found + 1] = tonumber(due_at) or false end
  end)
  return found
end

local function seen(open, tip, ...)
  local facts = {string.match(tip or '', '^%d*'), ...}
  for i = 1, 6 do facts[i] = facts[i] or '' end
  facts[7] = open
  return table.concat(facts, ' ')
end

local function pin_of(line)
  local is_read, header = pcall(cjson.decode, string.match(line, '{.*$'))
  local metadata = is_read and type(header) == 'table' and header.metadata
  return type(metadata) == 'table' and metadata.pin
end

local function outline(line)
  local beginning = string.match(line, '^%d+ %d+ %d+ %S+ %S+ %S+ {"created_at":%-?%d+')
  local pin = string.find(line, '"pin":', 1, true) and pin_of(line)
  return (beginning or '') .. (pin and ',"metadata":' .. cjson.encode({pin = pin}) or '') .. '}'
end

local function cut_short(all)
  -- A state can be long, and a sweep does not need it.
  local cut = {}
  for i = 2, #all, 2 do
    if #all[i] > 1000 and string.sub(all[i - 1], 1, 2) == 'c:' then
      cut[#cut + 1], cut[#cut + 2] = all[i - 1], #all[i]
      all[i] = outline(all[i])
    end
  end
  return cut
end

local function contents(steps, runs)
  local all = {}
  for _, key in ipairs({KEYS[1], steps, runs}) do
    local flat = redis.call('HGETALL', key)
    for i = 1, #flat, 2 do
      if key ~= KEYS[1] or string.sub(flat[i], 1, 2) == 'c:' then
        all[#all + 1] = key .. ' ' .. flat[i] .. ' ' .. redis.sha1hex(flat[i + 1])
      end
    end
  end
  table.sort(all)
  return redis.sha1hex(table.concat(all, '\n'))
end

local function taking_refusal(held, over)
  local may_take_over = over ~= '' and not lease_refusal(held, over)
  return not may_take_over and lease_refusal(held, '') or nil
end

local function take_lease(held, nonce, owner, ttl_ms, over, ...)
  if held[2] == nonce then return nil, tonumber(held[1]), held[4] end
  local refused = taking_refusal(held, over)
  if refused then return refused end
  local token, expires_ms = (held[1] or 0) + 1, string.format('%d', now_ms() + ttl_ms)
  redis.call('HSET', KEYS[1], 'token', string.format('%d', token), 'nonce', nonce, 'owner', owner,
    'expires_ms', expires_ms, ...)
  return nil, token, expires_ms
end

local function run_facts(line)
  local number, usage, status, delivered, attempts, stalled, progress, delivery, trace, passed_over, expires_at, record =
    string.match(line, '^(%d+) (%S+) (%S+) (%d) (%d+) (%d+) (%S+) (%S+) (%S+) (%d) (%S+) (.*)$')
  return {
    usage = usage, status = status, delivered = delivered, attempts = attempts, stalled = stalled,
    progress = progress, delivery = delivery, trace = trace, passed_over = passed_over, expires_at = expires_at,
    record = record,
    is_final = status == 'succeeded' or status == 'failed' or status == 'cancelled',
  }, number
end

local function run_line(number, run)
  return table.concat({number, run.usage, run.status, run.delivered, run.attempts, run.stalled, run.progress,
    run.delivery, run.trace, run.passed_over, run.expires_at, run.record}, ' ')
end

local function is_settled(run)
  return run.is_final and run.delivered == '1'
end

local function is_too_new(run)
  return (tonumber(string.match(run.record, '^{"format":(%d+)')) or 0) > tonumber(FORMAT_VERSION)
end

local function run_outline(line)
  -- The JSON ends with the envelope and the result, which can be long. Inside of a text, quotes are escaped.
  local at = string.find(line, ',"envelope":', 1, true)
  if not at then return line, '' end
  return string.sub(line, 1, at - 1) .. '}', string.sub(line, at + 12, at + 75)
end

local function run_times(line)
  return string.match(line or '', ',("created_at":"[^"]*".-),"error":')
end

local function run_end(line)
  -- Faster than run_facts: it reads thousands of lines, which can be long.
  local status = string.match(line, '^%d+ %S+ (%a+) 1 ')
  local has_ended = status == 'succeeded' or status == 'failed' or status == 'cancelled'
  local times = has_ended and run_times(line)
  if not times then return end
  -- A record may lack the time of its end: then the run counts as ended when it was created.
  return string.match(times, '"ended_at":"([^"]*)Z"') or string.match(times, '^"created_at":"([^"]*)Z"')
end

local function add_usage(used, more)
  local models, sums = {}, {}
  for _, usage in ipairs({used, more}) do
    for model, input, output, cached, cost in string.gmatch(usage, '([^=;]*)=(%d+),(%d+),(%d+),([^;]*)') do
      local sum = sums[model]
      if not sum then
        sum = {0, 0, 0}
        models[#models + 1], sums[model] = model, sum
      end
      for i, count in ipairs({input, output, cached}) do sum[i] = sum[i] + count end
      if cost ~= '' then sum.cost = (sum.cost or 0) + tonumber(cost) end
    end
  end
  for i, model in ipairs(models) do
    local sum = sums[model]
    local cost = sum.cost and string.format('%.17g', sum.cost) or ''
    models[i] = string.format('%s=%.0f,%.0f,%.0f,%s', model, sum[1], sum[2], sum[3], cost)
  end
  return table.concat(models, ';')
end

local function first_in_line(runs, open)
  -- The most runs that join the line, and the most that leave it, in one call: the server serves others too.
  local MANY = 100
  local now = now_ms()
  local due = redis.call('ZRANGEBYSCORE', open, IN_LINE, string.format('%d', now), 'LIMIT', 0, MANY)
  for _, id in ipairs(due) do
    local number = string.match(redis.call('HGET', runs, id) or '', '^%d+')
    redis.call('ZADD', open, number or '+inf', id)
  end
  for _ = 1, MANY do
    local id, place = unpack(redis.call('ZRANGE', open, 0, 0, 'WITHSCORES'))
    if not id or tonumber(place) >= tonumber(IN_LINE) then return end
    local run, number = run_facts(redis.call('HGET', runs, id) or '')
    local is_readable = number and not is_too_new(run)
    local has_expired = run.attempts == '0' and (tonumber(run.expires_at) or now * 1000 + 1) <= now * 1000
    if is_readable and not run.is_final and run.passed_over ~= '1' and not has_expired then return id, run, number end
    redis.call('ZADD', open, '+inf', id)
  end
end

local function is_older(runs, number, id)
  local others = string.match(id and id ~= '' and redis.call('HGET', runs, id) or '', '^%d+')
  return others and tonumber(number) < tonumber(others)
end

local function note_blocked(runs, youngest, id, number)
  if not is_older(runs, number, youngest) then redis.call('HSET', KEYS[1], 'youngest_blocked', id) end
end

local function give_turn(runs, id, run, number, name)
  run.status = 'queued'
  local line = run_line(number, run)
  redis.call('HSET', runs, id, line)
  redis.call('HSET', KEYS[1], 'active', id, 'given', string.format('%d ', now_ms()) .. name)
  return line
end

local function drop_steps(prefix, from, to, rank)
  local MANY = 500
  local first = from == '-inf' and 0 or redis.call('ZCOUNT', KEYS[3], '-inf', '(' .. from)
  local names, dropped, last = {}, {}, to == '+inf' and math.huge or tonumber(to)
  local page = redis.call('ZRANGE', KEYS[3], first + rank, first + rank + MANY - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    if tonumber(page[i + 1]) > last then break end
    names[#names + 1] = page[i]
    if string.sub(page[i], 1, #prefix) == prefix then dropped[#dropped + 1] = page[i] end
  end
  if dropped[1] then
    redis.call('HDEL', KEYS[2], unpack(dropped))
    redis.call('ZREM', KEYS[3], unpack(dropped))
  end
  return #dropped, #names == MANY and rank + MANY - #dropped or -1
end

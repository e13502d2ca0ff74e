-- Every admitted event of the last window, in a ring inside one string.
-- State 4, 48 bytes: last, shift, head, length, room, total before the oldest, window,
-- newest, total of all. Then `room` records of 11 bytes: when, and the cost of all
-- events up to and with it, modulo 2^32. Times in the ring are raw: the clock plus
-- `shift`, which grows whenever the clock steps back, so that raw time never does.

--@once
-- The record so many after the oldest: when, and the total.
local function log_record(log, index)
  local at = 48 + (log.head + index) % log.room * 11
  if log.all then return struct.unpack('<I7I4', log.all, at + 1) end
  return struct.unpack('<I7I4', redis.call('GETRANGE', log.key, at, at + 10))
end

-- How many records from the oldest on are not later than `raw`, or, without it, have
-- cost less than `excess`. Looks close to `from` first.
local function log_search(log, from, raw, before, excess)
  local function early(index)
    local when, total = log_record(log, index)
    if raw then return when <= raw end
    return (total - before) % 4294967296 < excess
  end
  local low, step, high = from, 1, log.length
  while true do
    local probe = low + step - 1
    if probe >= log.length then break end
    if not early(probe) then high = probe break end
    low, step = probe + 1, step * 2
  end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if early(middle) then low = middle + 1 else high = middle end
  end
  return low
end

-- The log now. A short one is read and written as a whole.
local function log_read(key, now, limit, window)
  local state
  if limit <= 64 then
    state = redis.call('GET', key) or ''
  else
    state = redis.call('GETRANGE', key, 0, 47)
  end
  local log = {
    key = key, raw = now, shift = 0, head = 0, length = 0, room = 0, before = 0,
    newest = 0, total = 0, used = 0, window = window,
  }
  if state == '' then return log end
  if string.byte(state) ~= 4 or #state < 48 then
    --+other
    return log
  end
  local _, last, shift, head, length, room, before, old, newest, total =
    struct.unpack('<BI7I7I4I4I4I4I6I7I4', state)
  if #state > 48 or room == 0 then log.all = state end
  log.room = room
  if newest + old - shift <= now then return log end
  log.shift = shift + (now < last and last - now or 0)
  log.raw = now + log.shift
  log.outdated = now < last or old ~= window
  log.head, log.length, log.before, log.newest, log.total = head, length, before, newest, total
  local expired = log_search(log, 0, log.raw - window)
  if expired > 0 then
    local _, total = log_record(log, expired - 1)
    log.head, log.length, log.before = (head + expired) % room, length - expired, total
  end
  log.used = (total - log.before) % 4294967296
  return log
end

local function log_header(log, now)
  return struct.pack('<BI7I7I4I4I4I4I6I7I4', 4, now, log.shift, log.head, log.length, log.room,
    log.before, log.window, log.newest, log.total)
end

local function log_expire_at(log, now)
  local reset = log.used > 0 and log.newest + log.window - log.raw or 0
  return string.format('%d', (now + reset + 999) / 1000)
end

-- The records, oldest first.
local function log_records(log)
  if log.length == 0 then return '' end
  local all = log.all or redis.call('GET', log.key)
  local first = 48 + log.head * 11
  local ring_end = 48 + log.room * 11
  local last = first + log.length * 11
  if last <= ring_end then return string.sub(all, first + 1, last) end
  return string.sub(all, first + 1, ring_end) .. string.sub(all, 49, 48 + last - ring_end)
end

-- Appends an event, or with a cost of 0 only writes down what has expired.
local function log_write(log, now, limit, cost)
  local index
  if cost > 0 then
    log.total = (log.total + cost) % 4294967296
    if log.used == 0 then log.before = (log.total - cost) % 4294967296 end
    log.used = log.used + cost
    if log.length == 0 or log.newest ~= log.raw then
      if log.length == log.room then
        -- Full: into a larger ring.
        local records = log_records(log)
        local room = math.max(log.length + 1, math.min(2 * log.room, limit))
        log.all = string.rep('\0', 48) .. records .. string.rep('\0', (room - log.length) * 11)
        log.head, log.room = 0, room
      end
      log.length = log.length + 1
    end
    log.newest = log.raw
    index = (log.head + log.length - 1) % log.room
  end
  local header = log_header(log, now)
  local record = index and struct.pack('<I7I4', log.raw, log.total)
  if log.all then
    local all = header .. string.sub(log.all, 49)
    if index then
      local at = 48 + index * 11
      all = string.sub(all, 1, at) .. record .. string.sub(all, at + 12)
    end
    log.all = all
    redis.call('SET', log.key, all, 'PXAT', log_expire_at(log, now))
  else
    redis.call('SETRANGE', log.key, 0, header)
    if index then redis.call('SETRANGE', log.key, 48 + index * 11, record) end
    redis.call('PEXPIREAT', log.key, log_expire_at(log, now))
  end
end

-- Until the event is gone that makes room for one more of this cost.
local function log_retry(log, limit, cost)
  local excess = log.used - (limit - cost)
  local index = log_search(log, 0, nil, log.before, excess)
  local when = log_record(log, math.min(index, log.length - 1))
  return when + log.window - log.raw
end

--@read
local limit@, window@ = struct.unpack('<I4I6', @argument)
local log@ = log_read(@key, now, limit@, window@)

--@fits
if fits then fits = cost * count <= limit@ - log@.used end

--@decide
do
  local reset = log@.used > 0 and log@.newest + window@ - log@.raw or 0
  reply[@+1], reply[@+2], reply[@+4] = log@.used, reset, log@.raw
  if admitted > 0 then
    log_write(log@, now, limit@, cost * admitted)
  elseif asked > 0 and log@.outdated then
    log_write(log@, now, limit@, 0)
  end
  local refused = cost <= limit@ and log@.used > limit@ - cost
  reply[@+3] = refused and (asked == 0 or admitted < asked) and log_retry(log@, limit@, cost) or 0
end

--@decide-counting
do
  local reset = log@.used > 0 and log@.newest + window@ - log@.raw or 0
  reply[@+1], reply[@+2], reply[@+4] = log@.used, reset, log@.raw
  local over = log@.used > limit@ - cost
  if admitted > 0 then
    log_write(log@, now, limit@, cost)
  elseif asked > 0 then
    -- Refused and counted all the same, up to full.
    local added = over and math.min(cost, math.max(0, limit@ - log@.used)) or 0
    if added > 0 or log@.outdated then log_write(log@, now, limit@, added) end
  end
  local refused = cost <= limit@ and over
  reply[@+3] = refused and admitted == 0 and log_retry(log@, limit@, cost) or 0
end

--@refund
do
  local limit, window = struct.unpack('<I4I6', @argument)
  local log = log_read(@key, now, limit, window)
  local mark = @mark + 0
  local index = decided_at <= now and not log.outdated and log.length > 0
    and log_search(log, 0, mark - 1) or log.length
  if index < log.length then
    local when, total = log_record(log, index)
    local before = log.before
    if index > 0 then before = select(2, log_record(log, index - 1)) end
    local spent = (total - before) % 4294967296
    if when == mark and spent >= cost then
      local gone = spent == cost
      local function put(index, when, total)
        redis.call('SETRANGE', log.key, 48 + (log.head + index) % log.room * 11,
          struct.pack('<I7I4', when, total % 4294967296))
      end
      -- What an event has cost is the difference of two totals: those before it grow,
      -- or those from it on shrink, whichever are fewer. If nothing is left of it, they
      -- close up.
      if log.used == cost then
        redis.call('DEL', log.key)
      else
        if gone and index == log.length - 1 then log.newest = log_record(log, index - 1) end
        if index < log.length - index then
          for i = index - 1, 0, -1 do
            local when, total = log_record(log, i)
            put(gone and i + 1 or i, when, total + cost)
          end
          if gone then log.head = (log.head + 1) % log.room end
          log.before = (log.before + cost) % 4294967296
        else
          for i = gone and index + 1 or index, log.length - 1 do
            local when, total = log_record(log, i)
            put(gone and i - 1 or i, when, total - cost)
          end
          log.total = (log.total - cost) % 4294967296
        end
        log.length, log.used = gone and log.length - 1 or log.length, log.used - cost
        redis.call('SETRANGE', log.key, 0, log_header(log, now))
        redis.call('PEXPIREAT', log.key, log_expire_at(log, now))
      end
    end
  end
end

-- Every admitted event of the last window: when, and the cost of all events up to and
-- with it, which wraps around. Times are raw: the clock plus `shift`, which grows whenever
-- the clock steps back, so that raw time never does. Only their low bytes are written:
-- enough to tell apart times of the same window.
--
-- Up to 200 bytes are written as a whole, records oldest first: that is quicker than to
-- change a few bytes in place, and leaves no room unused. Longer logs are rings, of which
-- a check touches a few bytes. A ring with no more than 8 records is written short again.
--
-- State 5, 15 bytes: last, window, total before the oldest. Then the records: when, in 4
--   to 6 bytes, and the total, in one. Where 255 is enough and there is no shift.
-- State 6, 24 bytes: last, window, shift, total before the oldest. Then the records, with
--   totals of 3 bytes.
-- State 7, 43 bytes: last, shift, head, length, room, total before the oldest, window,
--   newest, total of all. Then a ring of `room` records of 9 bytes.

--@own
kind == 4 and length >= 48 or kind == 5 and length >= 20
  or kind == 6 and length >= 31 or kind == 7 and length >= 43

--@once
-- How the records of a short log are written: their format, their bytes, and after how
-- long the time in them repeats.
local function log_form(window, wide)
  if window <= 4294967296 then
    return wide and '<I4I3' or '<I4I1', wide and 7 or 5, 4294967296
  elseif window <= 1099511627776 then
    return wide and '<I5I3' or '<I5I1', wide and 8 or 6, 1099511627776
  end
  return wide and '<I6I3' or '<I6I1', wide and 9 or 7, 281474976710656
end

-- The record so many after the oldest: when, and the total.
local function log_record(log, index)
  local at = log.first + (log.head + index) % log.room * log.size
  local low, total
  if log.all then
    low, total = struct.unpack(log.format, log.all, at + 1)
  else
    low, total = struct.unpack('<I6I3', redis.call('GETRANGE', log.key, at, at + 8))
  end
  -- When last written, all events were younger than the window.
  return log.base - (log.base - low) % log.span, total
end

-- How many records from the oldest on are not later than `raw`, or, without it, have
-- cost less than `excess`. Looks close to the oldest first.
local function log_search(log, raw, excess)
  local function early(index)
    local when, total = log_record(log, index)
    if raw then return when <= raw end
    return (total - log.before) % log.wrap < excess
  end
  local low, step, high = 0, 1, log.length
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

-- The log now.
local function log_read(key, now, window)
  local state = redis.pcall('GETRANGE', key, '0', '199')
  if type(state) == 'table' then
    failed = state.err
    return
  end
  local kind, last, old, shift, newest, total = string.byte(state), 0, 0, 0, 0, 0
  local first, head, length, room, before, _
  local format, size, span, wrap = '<I6I3', 9, 281474976710656, 16777216
  if not kind then
    -- A new one.
  elseif kind == 7 and #state >= 43 then
    first = 43
    _, last, shift, head, length, room, before, old, newest, total =
      struct.unpack('<BI7I7I3I3I3I3I6I7I3', state)
  elseif kind == 5 and #state >= 20 or kind == 6 and #state >= 31 then
    if kind == 5 then
      first, wrap = 15, 256
      _, last, old, before = struct.unpack('<BI7I6B', state)
    else
      first = 24
      _, last, old, shift, before = struct.unpack('<BI7I6I7I3', state)
    end
    format, size, span = log_form(old, kind == 6)
    head, length = 0, (#state - first) / size
    room = length
    if length % 1 > 0 or old > 31622400000000 then
      failed = 'TIDEGATE a key holds what this version has not written'
      return
    end
    newest, total = struct.unpack(format, state, #state - size + 1)
    newest = last + shift - (last + shift - newest) % span
  else
    --+other
    if failed then return end
  end
  if newest + old - shift <= now then
    -- With a place for all that a write fills in: a table that grows is made anew.
    return {
      key = key, raw = now, shift = 0, length = 0, before = 0, newest = 0, total = 0,
      used = 0, window = window, reset = 0, retry = 0, format = false, size = 0, span = 0,
      wrap = 0, first = 0, added = 0,
      head = 0, room = 0, base = 0, all = false, ring = false, wide = false,
    }
  end
  local log = {
    key = key, raw = last + shift, shift = shift, length = length, before = before,
    newest = newest, total = total, used = 0, window = window, format = format, size = size,
    span = span, wrap = wrap, first = first, head = head, room = room, base = last + shift,
    all = kind ~= 7 and state, ring = kind == 7, wide = kind == 6,
    outdated = now < last or old ~= window, oldest = 0, oldest_cost = 0, reset = 0, retry = 0,
    added = 0,
  }
  if now < last then log.shift = shift + last - now else log.raw = now + shift end
  local when, with = log_record(log, 0)
  if when > log.raw - window then
    log.oldest, log.oldest_cost = when, (with - before) % wrap
  else
    local expired = log_search(log, log.raw - window)
    _, log.before = log_record(log, expired - 1)
    log.head, log.length = (head + expired) % room, length - expired
  end
  log.used = (total - log.before) % wrap
  return log
end

local function log_expire_at(log, now)
  local reset = log.used > 0 and log.newest + log.window - log.raw or 0
  return string.format('%d', (now + reset + 999) / 1000)
end

local function log_ring_header(log, now)
  return struct.pack('<BI7I7I3I3I3I3I6I7I3', 7, now, log.shift, log.head, log.length,
    log.room, log.before, log.window, log.newest, log.total)
end

-- These records in this form, with totals that are so much less.
local function log_rewritten(log, from, to, format, less)
  local records = {}
  for index = from, to do
    local when, total = log_record(log, index)
    records[#records + 1] = struct.pack(format, when, (total - less) % log.wrap)
  end
  return table.concat(records)
end

-- Writes all of a log: these records, and one more.
local function log_put(log, now, records, record)
  log.base = log.raw
  if log.ring then
    log.all = log_ring_header(log, now) .. records .. record
      .. string.rep('\0', (log.room - log.length) * 9)
  elseif log.wide then
    log.all = struct.pack('<BI7I6I7I3', 6, now, log.window, log.shift, log.before)
      .. records .. record
  else
    log.all = struct.pack('<BI7I6B', 5, now, log.window, log.before) .. records .. record
  end
  redis.call('SET', log.key, log.all, 'PXAT', log_expire_at(log, now))
end

-- Appends an event, or with a cost of 0 only writes down what has expired.
local function log_write(log, now, limit, cost)
  local kept = log.length
  if cost > 0 then
    -- Events of one microsecond share a record.
    if kept > 0 and log.newest == log.raw then kept = kept - 1 end
    log.total, log.used = log.total + cost, log.used + cost
    log.newest, log.length = log.raw, kept + 1
  end
  local length = log.length
  if log.ring and length > 8 and length <= log.room then
    log.base = log.raw
    redis.call('SETRANGE', log.key, '0', log_ring_header(log, now))
    if cost > 0 then
      redis.call('SETRANGE', log.key, 43 + (log.head + kept) % log.room * 9,
        struct.pack('<I6I3', log.raw, log.total))
    end
    redis.call('PEXPIREAT', log.key, log_expire_at(log, now))
    return
  elseif length == 0 then
    redis.call('DEL', log.key)
    return
  end
  local wide = log.wide or log.used > 255 or log.shift > 0
  local first = wide and 24 or 15
  local format, size, span = log_form(log.window, wide)
  local ring = first + length * size > 200
  if ring then
    first, format, size, span, wide = 43, '<I6I3', 9, 281474976710656, false
  end
  local records = ''
  if kept == 0 then
    -- None to keep.
  elseif format == log.format then
    local all = log.all or redis.call('GET', log.key)
    local from = log.first + log.head * size
    local to = from + kept * size
    local ring_end = log.first + log.room * size
    records = string.sub(all, from + 1, math.min(to, ring_end))
    if to > ring_end then
      records = records .. string.sub(all, log.first + 1, log.first + to - ring_end)
    end
  else
    records = log_rewritten(log, 0, kept - 1, format, log.before)
    log.before, log.total = 0, log.used
  end
  -- A ring has room for more. For few more at first: up to 128 events, a sorted set is a
  -- packed list, and this is to take no more memory than that.
  local more = math.floor(length * (length > 128 and 2 or 1.125))
  log.room = ring and math.max(length, math.min(more, limit)) or length
  log.first, log.head, log.format, log.size, log.span = first, 0, format, size, span
  log.ring, log.wide, log.wrap = ring, wide, (ring or wide) and 16777216 or 256
  log_put(log, now, records, cost > 0 and struct.pack(format, log.raw, log.total) or '')
end

-- Until the event is gone that makes room for one more of this cost, after so much has
-- been added.
local function log_retry(log, limit, cost, added)
  local excess = log.used + added - (limit - cost)
  -- Even what is added now has to go.
  if excess > log.used then return log.window end
  local when = log.oldest
  if not when or log.oldest_cost < excess then
    when = log_record(log, math.min(log_search(log, nil, excess), log.length - 1))
  end
  return when + log.window - log.raw
end

--@limit
limit@, window@ = I4I6

--@numbers
log@.used, log@.reset, log@.retry, log@.raw = I4I7I7I7

--@read
local log@ = log_read(@key, now, window@)
local outdated@ = log@ and log@.outdated

--@fits
if fits then fits = cost * count <= limit@ - log@.used end

--@judge
do
  local added = cost * admitted
  local is_over = log@.used + added > limit@ - cost
  if counting and is_over and asked > 0 and admitted == 0 then
    added = math.min(cost, math.max(0, limit@ - log@.used))
  end
  log@.added = added
  log@.reset = log@.used > 0 and log@.newest + window@ - log@.raw or 0
  log@.retry = cost <= limit@ and is_over and (asked == 0 or admitted < asked)
    and log_retry(log@, limit@, cost, added) or 0
end

--@charge

--@saturate
changed = log@.added > 0

--@write
log_write(log@, now, limit@, log@.added)

--@parcel
cost = I7

--@flush
-- Totals are three bytes long.
log@.added = math.max(0, math.min(cost, 16000000 - log@.used))
if log@.added > 0 or outdated@ then
  --+write
end
log@.reset = log@.used > 0 and log@.newest + window@ - log@.raw or 0
log@.retry = log@.used >= limit@ and log_retry(log@, limit@, 1, 0) or 0

--@refund
do
  local log, mark = log@, @mark + 0
  local index = not log.outdated and log.length > 0
    and log_search(log, mark - 1) or log.length
  local when, total, before = nil, 0, log.before
  if index < log.length then when, total = log_record(log, index) end
  if when and index > 0 then before = select(2, log_record(log, index - 1)) end
  local spent = (total - before) % log.wrap
  if when ~= mark or spent < cost then
    -- The event is gone, or was another one.
  elseif log.used == cost then
    redis.call('DEL', log.key)
  else
    -- What an event has cost is the difference of two totals. If nothing is left of it,
    -- the others close up.
    local gone = spent == cost
    local next = gone and index + 1 or index
    if gone and next == log.length then log.newest = log_record(log, index - 1) end
    log.used = log.used - cost
    if log.ring then
      local function put(index, when, total)
        redis.call('SETRANGE', log.key, 43 + (log.head + index) % log.room * 9,
          struct.pack('<I6I3', when, total % 16777216))
      end
      -- Totals before it grow, or those from it on shrink, whichever are fewer.
      if index < log.length - index then
        for i = index - 1, 0, -1 do
          local when, total = log_record(log, i)
          put(i + next - index, when, total + cost)
        end
        log.head, log.before = (log.head + next - index) % log.room, log.before + cost
      else
        for i = next, log.length - 1 do
          local when, total = log_record(log, i)
          put(i - next + index, when, total - cost)
        end
        log.total = log.total - cost
      end
      log.length = log.length - next + index
      redis.call('SETRANGE', log.key, '0', log_ring_header(log, now))
      redis.call('PEXPIREAT', log.key, log_expire_at(log, now))
    else
      local records = log_rewritten(log, 0, index - 1, log.format, 0)
        .. log_rewritten(log, next, log.length - 1, log.format, cost)
      log_put(log, now, records, '')
    end
  end
end

-- The debt of a bucket as time to drain: whole microseconds, and parts of one.
-- State 1, 36 bytes: era, last, debt, its parts, parts per microsecond, parts per token.
-- State 8, with leases: the same, the tokens that are out, and the records (state.lua).

--@own
kind == 1 and length == 36 or kind == 8 and length > 40 and length % 19 == 2

--@limit
price_us@, price_parts@, size_us@, size_parts@, per_us@, token@ = I7I4I7I4I4I6

--@numbers
us@, parts@, era@ = I7I4I7

--@read
--+state

--@state
local us@, parts@, era@, outdated@ = 0, 0, now, false
do
  local state = pcall('GET', @key)
  if state and #state == 36 then
    local kind, era, last, us, parts, old_per_us, old_token =
      unpack('<BI7I7I7I4I4I6', state)
    if kind ~= 1 then
      -- A log can have any length.
      --+other
      last, us, parts = 0, 0, 0
    end
    if last + us + (parts > 0 and 1 or 0) > now then
      outdated@ = now < last
      if old_token ~= token@ or old_per_us ~= per_us@ then
        --+adopt
      end
      era@ = outdated@ and now or era
      local elapsed = outdated@ and now < last and 0 or now - last
      if elapsed <= us then us@, parts@ = us - elapsed, parts end
    end
  elseif state and #state > 40 and #state % 19 == 2 and string.byte(state) == 8 then
    --+leased
  elseif state then
    --+other
  end
end

--@leased
  -- A function of its own, because a script has room for 200 names.
  (function()
    local _, era, last, us, parts, old_per_us, old_token, out =
      unpack('<BI7I7I7I4I4I6I4', state)
    local records = string.sub(state, 41)
    --+earlier
    if old_token ~= token@ or old_per_us ~= per_us@ then
      --+adopt
    end
    --+price
    local function drain(to)
      if to - last <= us then us = us - (to - last) else us, parts = 0, 0 end
      last = to
    end
    while #records > 0 do
      local _, tokens, ends = unpack('<c8I4I7', records)
      if ends > now then break end
      drain(ends)
      us, parts = charged(us, parts, tokens)
      out, records = out - tokens, string.sub(records, 20)
    end
    drain(now)
    us@, parts@ = us, parts
    if #records > 0 or us > 0 or parts > 0 then era@ = outdated@ and now or era end
    if #records > 0 then
      local out_us, out_parts = charged(0, 0, out)
      leases = leases or {}
      leases[@] = {records, out, out_us, out_parts}
      -- What is out is not there to be admitted.
      size_us@, size_parts@ = size_us@ - out_us, size_parts@ - out_parts
      if size_parts@ < 0 then size_us@, size_parts@ = size_us@ - 1, size_parts@ + per_us@ end
      @stale
    end
  end)()

--@price
    -- A debt with so many tokens more: exact for up to 2^20 of them, and at most 2^52.
    local one_parts = math.fmod(token@, per_us@)
    local one_us = (token@ - one_parts) / per_us@
    local function charged(us, parts, tokens)
      local rest = math.fmod(tokens * one_parts, per_us@)
      us = us + tokens * one_us + (tokens * one_parts - rest) / per_us@
      parts = parts + rest
      if parts >= per_us@ then us, parts = us + 1, parts - per_us@ end
      if us >= 4503599627370496 then return 4503599627370496, 0 end
      return us, parts
    end

--@adopt
      -- Other numbers: so many requests stay so many requests, rounded up to a microsecond
      -- of debt. A product would not fit into a double: seven bits after the other, with
      -- the remainder.
      local function scaled(time, by, of)
        local whole, rest = 0, 0
        for bits = 49, 0, -7 do
          local all = rest * 128 + math.floor(time / 2 ^ bits) % 128 * by
          rest = math.fmod(all, of)
          whole = whole * 128 + (all - rest) / of
        end
        return whole, rest
      end
      local more, rest
      -- What makes it smaller first.
      if old_per_us < per_us@ then
        us, rest = scaled(us, old_per_us, per_us@)
        more = (rest + parts) * token@ / old_token / per_us@
        us, rest = scaled(us, token@, old_token)
        more = more + rest / old_token
      else
        us, rest = scaled(us, token@, old_token)
        more = (rest * old_per_us + parts * token@) / old_token / per_us@
        us, rest = scaled(math.min(us, 2 ^ 55), old_per_us, per_us@)
        more = more + rest / per_us@
      end
      us = math.min(us + math.ceil(more - 2 ^ -30), 3155760000000000)
      parts, outdated@ = 0, true

--@fits
if fits then
  local us, parts = us@ + price_us@ * count, parts@ + price_parts@ * count
  if parts >= per_us@ then
    local rest = parts % per_us@
    us, parts = us + (parts - rest) / per_us@, rest
  end
  fits = us < size_us@ or us == size_us@ and parts <= size_parts@
end

--@charge
us@, parts@ = us@ + price_us@ * admitted, parts@ + price_parts@ * admitted
if parts@ >= per_us@ then
  local rest = parts@ % per_us@
  us@, parts@ = us@ + (parts@ - rest) / per_us@, rest
end

--@saturate
if us@ < size_us@ or us@ == size_us@ and parts@ < size_parts@ then
  us@, parts@, changed = size_us@, size_parts@, true
end

--@write
if leases and leases[@] then
  --+write-leased
else
  local fresh_at = now + us@ + (parts@ > 0 and 1 or 0)
  call('SET', @key,
    pack('<BI7I7I7I4I4I6', 1, era@, now, us@, parts@, per_us@, token@),
    'PXAT', format('%d', (fresh_at + 999) / 1000))
end

--@write-leased
  -- What is out is charged when its lease ends, and has to drain after that.
  (function()
    local records, out, out_us, out_parts = leases[@][1], leases[@][2], leases[@][3], leases[@][4]
    local _, _, ends = unpack('<c8I4I7', records, #records - 18)
    local us, parts = us@ + out_us, parts@ + out_parts
    if parts >= per_us@ then us, parts = us + 1, parts - per_us@ end
    local fresh_at = math.max(now, ends) + us + (parts > 0 and 1 or 0)
    call('SET', @key,
      pack('<BI7I7I7I4I4I6I4', 8, era@, now, us@, parts@, per_us@, token@, out)
        .. records, 'PXAT', format('%d', (fresh_at + 999) / 1000))
  end)()

--@lease-full
local full_us@, full_parts@ = size_us@, size_parts@
--+price

--@lease-settle
us@, parts@ = charged(us@, parts@, spent)

--@lease-room
do
  local out_us, out_parts = charged(0, 0, out)
  size_us@, size_parts@ = full_us@ - out_us, full_parts@ - out_parts
  if size_parts@ < 0 then size_us@, size_parts@ = size_us@ - 1, size_parts@ + per_us@ end
end

--@lease-price
price_us@, price_parts@ = I7I4

--@lease-grant
do
  local free_us, free_parts = size_us@ - us@, size_parts@ - parts@
  local room = math.floor((free_us * per_us@ + free_parts) / token@) + 1
  give = math.min(want, room, half - out, 1048576 - out)
  while give >= 1 do
    local us, parts = charged(us@, parts@, give)
    if us < size_us@ or us == size_us@ and parts <= size_parts@ then break end
    give = give - 1
  end
  ends = now + term
end

--@lease-write
if changed or outdated@ then
  --+write
end

--@lease-keep
if #records > 0 then
  local out_us, out_parts = charged(0, 0, out)
  leases = {[@] = {records, out, out_us, out_parts}}
end

--@parcel
cost, all_us, all_parts, own_us, own_parts, full, kept = I7I7I7I7I7I7I7

--@flush
-- The price of it all and its parts, the debt it would have left in a bucket of its own
-- by now and its parts, how long the bucket has been full without it, as far as the node
-- knows, and how long a full bucket is kept.
if cost > 0 then
  local us, parts = us@ + all_us, parts@ + all_parts
  if parts >= per_us@ then us, parts = us + 1, parts - per_us@ end
  if us@ == 0 and parts@ == 0 then
    -- It was full for a while: as much of the price has drained since.
    local state = call('GET', @key)
    if state and #state == 36 and string.byte(state) == 1 then
      local _, _, last, debt, rest = unpack('<BI7I7I7I4', state)
      full = now - last - debt - (rest > 0 and 1 or 0)
    end
    us = us - math.max(0, full)
  end
  if us < own_us or us == own_us and parts < own_parts then us, parts = own_us, own_parts end
  if us >= 3155760000000000 then us, parts = 3155760000000000, 0 end
  us@, parts@ = us, parts
  if leases and leases[@] then
    --+write-leased
  else
    local fresh_at = now + us@ + (parts@ > 0 and 1 or 0)
    -- For a while after that: the next one to tell has to know since when it is full.
    call('SET', @key,
      pack('<BI7I7I7I4I4I6', 1, era@, now, us@, parts@, per_us@, token@),
      'PXAT', format('%d', (fresh_at + kept + 999) / 1000))
  end
elseif outdated@ then
  --+write
end

--@refund
do
  local owed_us, owed_parts = price_us@ - (now - decided_at), price_parts@
  local owed = owed_us > 0 or owed_us == 0 and owed_parts > 0
  if owed and (us@ > 0 or parts@ > 0) and not outdated@ and era@ == @mark + 0 then
    if us@ < owed_us or us@ == owed_us and parts@ <= owed_parts then
      us@, parts@ = 0, 0
    else
      us@, parts@ = us@ - owed_us, parts@ - owed_parts
      if parts@ < 0 then us@, parts@ = us@ - 1, parts@ + per_us@ end
    end
    --+write
  end
end

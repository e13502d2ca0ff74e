-- Two counters, the older one fading out.
-- State 3, 42 bytes: eras of this window and the last one (when their counters were
-- opened), last, the last window's count, this one's, elapsed of this one, window.

--@own
kind == 3 and length == 42

--@once
-- Whether a*x > b*y, for a and b below 2^30, x and y below 2^46.
local function product_above(a, x, b, y)
  local left, right = a * x, b * y
  if left < 9007199254740992 and right < 9007199254740992 then return left > right end
  local x_low, y_low = x % 8388608, y % 8388608
  local left_low, right_low = a * x_low, b * y_low
  local left_high = a * ((x - x_low) / 8388608) + (left_low - left_low % 8388608) / 8388608
  local right_high = b * ((y - y_low) / 8388608) + (right_low - right_low % 8388608) / 8388608
  if left_high ~= right_high then return left_high > right_high end
  return left_low % 8388608 > right_low % 8388608
end

--@limit
limit@, window@ = I4I6

--@numbers
before@, used@, elapsed@, era@ = I4I4I6I7

--@read
--+state

--@state
local before@, used@, elapsed@, era@, old_era@, outdated@ = 0, 0, now % window@, now, 0, false
local until@ = 0
do
  local state = pcall('GET', @key)
  if state and #state == 42 then
    local kind, era, old_era, last, before, used, elapsed, old =
      unpack('<BI7I7I7I4I4I6I6', state)
    if kind ~= 3 then
      -- A log can have any length.
      --+other
      before, used = 0, 0
    end
    local reset = used > 0 and 2 * old - elapsed or before > 0 and old - elapsed or 0
    if reset > 0 and last + reset > now then
      if now < last then
        outdated@, era, old_era = true, now, 0
      else
        elapsed = elapsed + now - last
      end
      if elapsed >= old then
        before, used, elapsed, old_era, era = used, 0, elapsed - old, era, now
      end
      if old == window@ then
        before@, used@, elapsed@, era@, old_era@ = before, used, elapsed, era, old_era
        if not outdated@ then until@ = last + reset end
      else
        -- Another window: what it came to counts as this window's.
        local faded = math.floor(before * ((old - elapsed) / old))
        while product_above(before, old - elapsed, faded, old) do faded = faded + 1 end
        while faded > 0 and not product_above(before, old - elapsed, faded - 1, old) do
          faded = faded - 1
        end
        used@, outdated@ = math.min(faded + used, 268435456), true
      end
    end
  elseif state then
    --+other
  end
end

--@fits
if fits then
  local room = limit@ - used@ - cost * count
  fits = room >= 0 and (before@ == 0
    or not product_above(before@, window@ - elapsed@, room, window@))
end

--@judge
if used@ == 0 then era@ = now end

--@charge
used@ = math.min(used@ + cost * admitted, 4294967295)

--@saturate
if used@ < limit@ then used@, changed = math.min(used@ + cost, limit@), true end

--@write
-- While a window lasts that has a count, its key expires when it did.
do
  local state =
    pack('<BI7I7I7I4I4I6I6', 3, era@, old_era@, now, before@, used@, elapsed@, window@)
  local reset = used@ > 0 and 2 * window@ - elapsed@ or before@ > 0 and window@ - elapsed@ or 0
  if now + reset == until@ then
    call('SET', @key, state, 'KEEPTTL')
  else
    call('SET', @key, state, 'PXAT', format('%d', (now + reset + 999) / 1000))
  end
end

--@parcel
cost, last, own_elapsed = I7I7I7

--@flush
-- How much of it in the node's last window, and how much of its window has elapsed.
if used@ == 0 then era@ = now end
if cost > 0 then
  local this = cost - last
  -- An edge has passed on the way.
  if own_elapsed - elapsed@ > window@ / 2 then last, this = this, 0 end
  before@ = math.min(before@ + last, 1073741823)
  used@ = math.min(used@ + this, 1073741823)
end
if cost > 0 or outdated@ then
  --+write
end

--@refund
do
  local mark = @mark + 0
  if not outdated@ then
    local this, last = used@ > 0 and era@ == mark, before@ > 0 and old_era@ == mark
    if this then
      used@ = math.max(0, used@ - cost)
    elseif last then
      before@ = math.max(0, before@ - cost)
    end
    if this or last then
      --+write
    end
  end
end

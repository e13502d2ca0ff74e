-- A counter that starts over.
-- State 2, 31 bytes: era (when the window was opened), last, left of the window, count,
-- window.
-- State 9, with leases: the same, the tokens that are out, and the records (state.lua).

--@own
kind == 2 and length == 31 or kind == 9 and length > 35 and length % 19 == 16

--@limit
limit@, window@, epoch@ = I4I6B

--@numbers
used@, left@, era@ = I4I6I7

--@read
--+state

--@state
local used@, left@, era@, outdated@, until@ = 0, 0, now, false, 0
do
  local state = pcall('GET', @key)
  if state and #state == 31 then
    local kind, era, last, left, used, old = unpack('<BI7I7I6I4I6', state)
    if kind ~= 2 then
      -- A log can have any length.
      --+other
      last, left = 0, 0
    end
    if last + left > now then
      outdated@ = now < last
      local elapsed = outdated@ and 0 or now - last
      if old ~= window@ then
        left, outdated@ = math.max(0, window@ - math.max(0, old - left)), true
      end
      if elapsed < left then
        used@, left@, era@ = used, left - elapsed, outdated@ and now or era
        if not outdated@ then until@ = now + left@ end
      end
    end
  elseif state and #state > 35 and #state % 19 == 16 and string.byte(state) == 9 then
    --+leased
  elseif state then
    --+other
  end
end

--@leased
  (function()
    local _, era, last, left, used, old, out = unpack('<BI7I7I6I4I6I4', state)
    local records = string.sub(state, 36)
    --+earlier
    if old ~= window@ then
      left, outdated@ = math.max(0, window@ - math.max(0, old - left)), true
    end
    while #records > 0 do
      local _, tokens, ends = unpack('<c8I4I7', records)
      if ends > now then break end
      if ends - last > left then
        -- The window was made shorter: what is out counts in the next one.
        used, left, era = 0, epoch@ == 1 and window@ - ends % window@ or window@, ends
      else
        left = left - (ends - last)
      end
      last, used = ends, math.min(used + tokens, 4294967295)
      out, records = out - tokens, string.sub(records, 20)
    end
    if now - last < left then
      used@, left@, era@ = used, left - (now - last), outdated@ and now or era
    end
    if #records > 0 then
      leases = leases or {}
      leases[@] = {records, out}
      limit@ = limit@ - out
      @stale
    end
  end)()

--@fits
if fits then fits = cost * count <= limit@ - used@ end

--@charge
--+open
used@ = math.min(used@ + cost * admitted, 4294967295)

--@open
if left@ == 0 or used@ == 0 and not (leases and leases[@]) then
  left@ = epoch@ == 1 and window@ - now % window@ or window@
end

--@saturate
-- A refusal opens no window.
if used@ > 0 and used@ < limit@ then used@, changed = limit@, true end

--@write
-- A window that lasts ends when it did: its key expires then already. Setting the time
-- anew would take as long as all the rest of the write.
if leases and leases[@] then
  --+write-leased
else
  local state = pack('<BI7I7I6I4I6', 2, era@, now, left@, used@, window@)
  if now + left@ == until@ then
    call('SET', @key, state, 'KEEPTTL')
  else
    call('SET', @key, state, 'PXAT', format('%d', (now + left@ + 999) / 1000))
  end
end

--@write-or-delete
if used@ > 0 or leases and leases[@] then
  --+write
else
  call('DEL', @key)
end

--@write-leased
  (function()
    local records, out = leases[@][1], leases[@][2]
    local _, _, ends = unpack('<c8I4I7', records, #records - 18)
    call('SET', @key,
      pack('<BI7I7I6I4I6I4', 9, era@, now, left@, used@, window@, out) .. records,
      'PXAT', format('%d', (math.max(now + left@, ends) + 999) / 1000))
  end)()

--@lease-full
local full@ = limit@

--@lease-settle
if spent > 0 and left@ == 0 then left@ = epoch@ == 1 and window@ - now % window@ or window@ end
used@ = math.min(used@ + spent, 4294967295)

--@lease-room
limit@ = full@ - out

--@lease-grant
do
  local left = left@ > 0 and left@ or epoch@ == 1 and window@ - now % window@ or window@
  give = math.min(want, limit@ - used@, half - out, 1048576 - out)
  ends = now + math.min(term, left)
  if give >= 1 and ends - now >= shortest and #records < 4864 then left@ = left end
end

--@lease-write
if changed or outdated@ then
  --+write-or-delete
end

--@lease-keep
if #records > 0 then leases = {[@] = {records, out}} end

--@parcel
cost, own_left, opened = I7I7I7

--@flush
-- What is left of the node's window, and whether the node has opened it (1) or heard of
-- it (0); or whether it takes the cost off the count (2).
if cost > 0 and opened == 2 then
  used@ = math.max(0, used@ - cost)
  --+write-or-delete
  cost, outdated@ = 0, false
end
if cost > 0 then
  if epoch@ == 1 then
    --+open
  elseif used@ == 0 and not (leases and leases[@]) or opened == 1 then
    -- Of two windows, the later end.
    left@ = math.max(1, left@, math.min(own_left, window@))
  end
  used@ = math.min(used@ + cost, 4294967295)
end
if cost > 0 or outdated@ then
  --+write
end

--@refund
if used@ > 0 and not outdated@ and era@ == @mark + 0 then
  used@ = math.max(0, used@ - cost)
  --+write-or-delete
end

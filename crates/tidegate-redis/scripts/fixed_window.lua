-- A counter that starts over.
-- State 2, 31 bytes: era (when the window was opened), last, left of the window, count,
-- window.

--@limit
limit@, window@, epoch@ = I4I6B

--@numbers
used@, left@, era@ = I4I6I7

--@read
--+state

--@state
local used@, left@, era@, outdated@ = 0, 0, now, false
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
      end
    end
  elseif state then
    --+other
  end
end

--@fits
if fits then fits = cost * count <= limit@ - used@ end

--@decide
if admitted > 0 or outdated@ and asked > 0 then
  local lasts = used@ > 0 and not outdated@
  if admitted > 0 then
    if used@ == 0 then left@ = epoch@ == 1 and window@ - now % window@ or window@ end
    used@ = math.min(used@ + cost * admitted, 4294967295)
  end
  --+put
end

--@decide-counting
if asked > 0 then
  -- Refused and counted all the same, up to full. A refusal opens no window.
  local added = admitted == 0 and used@ > 0 and used@ < limit@ and cost > limit@ - used@
  local lasts = used@ > 0 and not outdated@
  if admitted > 0 then
    if used@ == 0 then left@ = epoch@ == 1 and window@ - now % window@ or window@ end
    used@ = math.min(used@ + cost, 4294967295)
  elseif added then
    used@ = limit@
  end
  if admitted > 0 or added or outdated@ then
    --+put
  end
end

--@write
local lasts = false
--+put

--@put
-- A window that lasts ends when it did: its key expires then already. Setting the time
-- anew would take as long as all the rest of the write.
do
  local state = pack('<BI7I7I6I4I6', 2, era@, now, left@, used@, window@)
  if lasts then
    call('SET', @key, state, 'KEEPTTL')
  else
    call('SET', @key, state, 'PXAT', format('%d', (now + left@ + 999) / 1000))
  end
end

--@parcel
cost, own_left, opened = I7I7I7

--@flush
-- What is left of the node's window, and whether the node has opened it (1) or heard of
-- it (0).
if cost > 0 then
  if epoch@ == 1 then
    if used@ == 0 then left@ = window@ - now % window@ end
  elseif used@ == 0 or opened == 1 then
    -- Of two windows, the later end.
    left@ = math.max(1, left@, math.min(own_left, window@))
  end
  used@ = math.min(used@ + cost, 4294967295)
end
if cost > 0 or outdated@ then
  --+write
end

--@refund-read
local _, window@ = unpack('<I4I6B', @argument)
--+state

--@refund
if used@ > 0 and not outdated@ and era@ == @mark + 0 then
  if used@ > cost then
    used@ = used@ - cost
    --+write
  else
    call('DEL', @key)
  end
end

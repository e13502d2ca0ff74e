-- What levels of all algorithms have in common.

-- What a check leaves behind: what it has cost, or, where refusals count and the level
-- refuses, a full level.

--@decide
do
  local changed = admitted > 0
  if changed then
    --+charge
  elseif counting and asked > 0 then
    local fits, count = true, 1
    --+fits
    if not fits then
      --+saturate
    end
  end
  if changed or asked > 0 and outdated@ then
    --+write
  end
end

-- A value that is not what this level writes: the state of another algorithm (whose section
-- `own` knows it), which starts anew, or none of ours.

--@other
  if type(state) == 'table' then
    failed = state.err
  else
    local kind, length = string.byte(state), #state
    local known = false
    --+owners
    if not known then failed = 'TIDEGATE a key holds what this version has not written' end
  end

-- Leases: records of 19 bytes, in the order of their ends: nonce, tokens, end. The last
-- token of a lease is spent before its end; then all of them are charged.

--@earlier
    if now < last then
      -- A clock that steps back takes the leases along.
      local moved = {}
      for at = 1, #records, 19 do
        local nonce, tokens, ends = unpack('<c8I4I7', records, at)
        moved[#moved + 1] = pack('<c8I4I7', nonce, tokens, ends - (last - now))
      end
      records, last, outdated@ = table.concat(moved), now, true
    end

--@tell
do
  local lease = leases[@]
  if lease then
    local _, _, ends = unpack('<c8I4I7', lease[1], #lease[1] - 18)
    reply = reply .. pack('<I4I2I7', lease[2], #lease[1] / 19, ends - now)
  else
    reply = reply .. pack('<I4I2I7', 0, 0, 0)
  end
end

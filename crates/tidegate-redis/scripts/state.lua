-- A value that is not what this level writes: the state of another algorithm, which
-- starts anew, or none of ours.

--@other
  if type(state) == 'table' then
    failed = state.err
  else
    local kind, length = string.byte(state), #state
    if not (kind == 1 and length == 36 or kind == 2 and length == 31
      or kind == 3 and length == 42 or kind == 4 and length >= 48
      or kind == 5 and length >= 20 or kind == 6 and length >= 31
      or kind == 7 and length >= 43 or kind == 8 and length > 40 and length % 19 == 2
      or kind == 9 and length > 35 and length % 19 == 16) then
      --+junk
    end
  end

--@junk
    failed = 'TIDEGATE a key holds what this version has not written'

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

--@told-leases
do
  local lease = leases[@]
  if lease then
    local _, _, ends = unpack('<c8I4I7', lease[1], #lease[1] - 18)
    reply = reply .. pack('<I4I2I7', lease[2], #lease[1] / 19, ends - now)
  else
    reply = reply .. pack('<I4I2I7', 0, 0, 0)
  end
end

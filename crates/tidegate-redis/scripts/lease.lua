-- Messages of nodes that lease: each returns leases, asks, and takes another lease, in
-- this order, for one key.
--
-- KEYS   any number of keys
-- ARGV   one for each key (those that are left out at the end are like the last one),
--        packed: the limit, half of it in tokens, how many leases are
--        returned, how many tokens are wanted (0: none) under which nonce, and how many
--        runs ask; then for each lease that is returned its nonce and what was spent of
--        it; then for each run how many identical checks it is, their cost and its price
-- reply  a list: for each key the time, the tokens given, the level's numbers after it,
--        how long the lease runs, what is out, in how many leases and how long the last
--        of these runs, then how many checks of each run are admitted, packed; or an
--        error, which is that key's own
--
-- Invariant: what is used and what is out are at most the limit together. What is out
-- does not drain. A message that arrives twice changes nothing the second time, but for
-- what it asks.

local term, shortest = 1000000, 50000
--+names
--+time
local failed, leases
--+once
local replies, argument = {}, nil
for number = 1, #KEYS do
  argument = ARGV[number] or argument
  --+limits
  local first, changed = number - 1, false
  failed, leases = nil, nil
  --+lease-full
  --+read
  if failed then
    replies[number] = {err = failed}
  else
    local records, out = '', 0
    if leases then records, out = leases[0][1], leases[0][2] end
    local function find(nonce)
      local at = 0
      repeat at = string.find(records, nonce, at + 1, true) until not at or at % 19 == 1
      return at
    end
    for _ = 1, settles do
      local returned, spent
      returned, spent, at = unpack('<c8I4', argument, at)
      local found = find(returned)
      if found then
        local _, tokens = unpack('<c8I4', records, found)
        records = string.sub(records, 1, found - 1) .. string.sub(records, found + 19)
        out, changed, spent = out - tokens, true, math.min(spent, tokens)
        --+lease-settle
      end
    end
    --+lease-room
    local admissions = ''
    for _ = 1, runs do
      local asked, cost
      --+run
      --+admit
      if admitted > 0 then
        changed = true
        --+charge
      end
      admissions = admissions .. pack('<I4', admitted)
    end
    local give, ends = 0, now
    local found = want > 0 and find(nonce)
    if found then
      -- It has arrived before: the same answer again.
      local _
      _, give, ends = unpack('<c8I4I7', records, found)
    elseif want > 0 then
      --+lease-grant
      if give < 1 or ends - now < shortest or #records >= 4864 then
        give, ends = 0, now
      else
        local behind = #records + 1
        while behind > 1 do
          local _, _, other = unpack('<c8I4I7', records, behind - 19)
          if other <= ends then break end
          behind = behind - 19
        end
        records = string.sub(records, 1, behind - 1)
          .. pack('<c8I4I7', nonce, give, ends) .. string.sub(records, behind)
        out, changed = out + give, true
      end
    end
    leases = nil
    --+lease-keep
    --+lease-write
    local admitted, last = give, now
    if #records > 0 then
      local _
      _, _, last = unpack('<c8I4I7', records, #records - 18)
    end
    local reply = --+pack
    replies[number] = reply
      .. pack('<I7I4I2I7', ends - now, out, #records / 19, last - now) .. admissions
  end
end
return replies

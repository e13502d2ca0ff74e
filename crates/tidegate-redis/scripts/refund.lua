-- Gives back what a check has charged, level by level, as far as it still counts:
-- never more than if the request had not been made, and once.
--
-- KEYS   one key a level (levels that block have none), and last the marker: it exists
--        once the receipt was refunded
-- ARGV   [1] when it was decided, [2] the cost, [3] when the receipt is worth nothing any
--        more, then for each level its limit, packed, and the mark of the charge: what
--        tells it from every other one
-- reply  the time; 0 where the receipt is worth nothing, or was refunded before
--
-- Invariant: every key is read, and every error raised, before the marker is written;
-- nothing is given back without it.

local decided_at, cost = ARGV[1] + 0, ARGV[2] + 0
--+names
--+time
local failed, leases
--+once
--+refund-limits
--+read
if failed then return {err = failed} end
if decided_at <= now and now < ARGV[3] + 0 and call('SET', KEYS[#KEYS], '', 'NX',
    'PXAT', format('%d', (ARGV[3] + 999) / 1000)) then
  --+refund
  return now
end
return 0

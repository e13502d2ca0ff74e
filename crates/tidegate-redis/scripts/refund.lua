-- Gives back what a check has charged, level by level, as far as it still counts:
-- never more than if the request had not been made.
--
-- KEYS   one key a level (levels that block have none)
-- ARGV   [1] when it was decided, [2] the cost, then for each level its limit, packed,
--        and the mark of the charge: what tells it from every other one
-- reply  the time

local decided_at, cost = ARGV[1] + 0, ARGV[2] + 0
--+time
--+once
--+refund
return now

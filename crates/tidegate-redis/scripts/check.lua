-- One check of a policy: any number of levels, all charged or none, in one step.
-- Assembled for the policy's shape: the sections of each level's algorithm take the
-- places marked below, with its number for every at-sign.
--
-- KEYS   one key a level, in the policy's order (levels that block have none)
-- ARGV   [1] how many identical checks ask (0 is a look), [2] the cost of one,
--        [3] and on: each level's limit, packed
-- reply  the time, how many of the checks are admitted, then each level's numbers as
--        they stood before any of them was charged
--
-- Functions are only made where they are seldom needed: making one costs as much as a
-- call.
--
-- Times are handed to Redis as text made with %d: it would format a number with 17
-- digits, which takes longer than all the arithmetic here.
--
-- Invariant: every key is read, and every error raised, before the first write; a
-- write expires its key at the moment it is as good as new.

local asked, cost = ARGV[1] + 0, ARGV[2] + 0
--+time
--+once
--+read

-- How many fit: all of them, or none, or somewhere between.
local admitted, most, count = 0, asked, asked
while admitted < most do
  local fits = true
  --+fits
  if fits then admitted = count else most = count - 1 end
  if admitted == most then break end
  count = admitted + math.ceil((most - admitted) / 2)
end

--+reply
--+decide
return reply

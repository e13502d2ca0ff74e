-- One check of a policy: any number of levels, all charged or none, in one step.
-- Assembled for the algorithms of its levels: the sections of each one take the
-- places marked below, with its number for every at-sign.
--
-- KEYS   one key a level, in the policy's order (levels that block have none)
-- ARGV   [1] packed: how many identical checks ask (0 is a look), the cost of one, then
--        each level's limit
-- reply  packed: the time, how many of the checks are admitted, then each level's numbers
--        as they stood before any of them was charged; where tokens of a level are out on
--        lease, then for each level that can lease how many, in how many leases, and how
--        long the last of these runs; or an error
--
-- Functions are only made where they are seldom needed: making one costs as much as a
-- call.
--
-- Times are handed to Redis as text made with %d: it would format a number with 17
-- digits, which takes longer than all the arithmetic here.
--
-- Invariant: every key is read, and every error found, before the first write; a write
-- expires its key at the moment its quota is full.

--+names
--+time
local counting = --+counting
local failed, leases
--+once
local argument = ARGV[1]
--+limits
--+read
if failed then return {err = failed} end
--+admit
--+judge
local reply = --+pack
if leases then
  --+tell
end
--+decide
return reply

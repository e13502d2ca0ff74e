-- Many checks in one call: what check.lua does, for each of them in order, at one time.
-- They have the same levels, under any limits and at any cost.
--
-- KEYS   the keys of the first check, those of the second, and so on
-- ARGV   one for each check, as in check.lua; those that are left out at the end are like
--        the last one that is there
-- reply  a list: for each check what check.lua replies
--
-- Invariant: an error is one check's own. It leaves that check uncharged, and the others
-- as they would have been without it.

--+names
local KEYS, ARGV = KEYS, ARGV
--+time
local counting = --+counting
local failed, leases
--+once
local replies, argument = {}, nil
--+cached
for number = 1, #KEYS / --+keys
do
  argument = ARGV[number] or argument
  --+limits
  local first = (number - 1) * --+keys
  failed, leases = nil, nil
  --+read
  if failed then
    replies[number] = {err = failed}
  else
    --+admit
    --+judge
    local reply = --+pack
    if leases then
      --+tell
    end
    replies[number] = reply
    --+decide
  end
end
return replies

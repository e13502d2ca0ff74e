-- What nodes have admitted on their own, told afterwards: counted whether it fits or not.
-- What is above the limit stays counted, or the excess would come again.
--
-- KEYS   any number of keys
-- ARGV   one for each key (those that are left out at the end are like the last one),
--        packed: the limit, what the node has admitted (0 is a look),
--        then what the algorithm's section says
-- reply  a list: for each key the time, 0, and the level's numbers as they stand after
--        it, packed; or an error, which is that key's own

--+names
--+time
local failed, leases
--+once
local replies, argument = {}, nil
for number = 1, #KEYS do
  argument = ARGV[number] or argument
  --+limits
  local first, admitted = number - 1, 0
  failed, leases = nil, nil
  --+read
  if failed then
    replies[number] = {err = failed}
  else
    --+flush
    replies[number] = --+pack
  end
end
return replies

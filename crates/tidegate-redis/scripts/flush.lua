-- What a node has admitted on its own, told afterwards: counted whether it fits or not.
-- What is above the limit stays counted, or the excess would come again.
--
-- KEYS   [1] the key
-- ARGV   [1] the limit, packed, [2] what the node has admitted (0 is a look), then what
--        the algorithm's section says
-- reply  the time, 0, and the level's numbers as they stand after it

local cost, admitted = ARGV[2] + 0, 0
--+time
--+once
--+read
--+reply
--+flush
return reply

-- A fixed window: at most so many requests in so many seconds.
--
-- KEYS   [1] the counter
-- ARGV   [1] how many requests, [2] in how many seconds
-- reply  the verdict, and the values of three headers: limit, reset, remaining
--
-- Invariant: a counter is never there without the time at which it ends, and a refusal
-- writes nothing.

local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local used = tonumber(redis.call('GET', KEYS[1]) or 0)
local verdict = 'deny'
if used < limit then
  verdict = 'allow'
  used = redis.call('INCR', KEYS[1])
  if used == 1 then redis.call('EXPIRE', KEYS[1], window) end
end
local reset = redis.call('TTL', KEYS[1])
return {verdict, {tostring(limit), tostring(reset), tostring(limit - used)}}

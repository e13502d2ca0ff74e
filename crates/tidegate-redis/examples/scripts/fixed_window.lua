-- A fixed window: at most ARGV[1] requests per ARGV[2] seconds.
--
-- KEYS   [1] the counter
-- ARGV   [1] number of requests, [2] length of the window in seconds
-- reply  the verdict, and the values of three headers: limit, reset, remaining
--
-- Invariant: a counter always has an expiry, and a refusal writes nothing.

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

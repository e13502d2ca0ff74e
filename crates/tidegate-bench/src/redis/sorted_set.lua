-- A sliding log the way tutorials write it: a sorted set of times in milliseconds.
-- KEYS the log; ARGV window in milliseconds, requests; reply 1 or 0.
local log = KEYS[1]
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local window_ms, requests = tonumber(ARGV[1]), tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', log, '-inf', now_ms - window_ms - 1)
local count = redis.call('ZCARD', log)
if count == requests then
  return 0
end
redis.call('ZADD', log, now_ms, now_ms)
return 1

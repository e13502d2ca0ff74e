-- A token bucket the way tutorials write it: two keys, times in milliseconds.
-- KEYS the bucket; ARGV tokens a second, size; reply 1 or 0.
local tokens_key, last_key = KEYS[1], KEYS[1] .. '-t'
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local rate, size = tonumber(ARGV[1]), tonumber(ARGV[2])
local tokens = tonumber(redis.call('GET', tokens_key) or 0)
local last_ms = tonumber(redis.call('GET', last_key) or 0)
local passed_ms = math.max(0, now_ms - last_ms)
tokens = math.min(size, tokens + math.floor(passed_ms / 1000 * rate))
if tokens == 0 then
  return 0
end
redis.call('SET', tokens_key, tokens - 1)
redis.call('SET', last_key, now_ms)
return 1

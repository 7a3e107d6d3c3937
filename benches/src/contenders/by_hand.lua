-- What one writes who needs a rate limit by noon: GCRA with the server's time.
-- KEYS[1] the budget   ARGV[1] us between two units   ARGV[2] burst
-- returns allowed (1 or 0), remaining, retry after in us
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + interval
local wait = tat - now - burst * interval
if wait > 0 then return {0, 0, wait} end
redis.call('SET', KEYS[1], string.format('%d', tat), 'PX', math.ceil((tat - now) / 1000))
return {1, math.floor(burst - (tat - now) / interval), 0}

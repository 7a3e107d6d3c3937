-- Where a call begins. A call is atomic.
-- The other side of the wire: src/store/redis/wire.rs.
--
-- KEYS     every budget that the call touches
-- ARGV[1]  the request: see batch.lua
-- ARGV[2]  the time to decide by, in us since the epoch, for tests and dry runs. Default: the
--          server's time
--
-- returns  the time of the decisions, then the verdicts. A verdict that allows a charge without a
--          delay has two numbers: remaining, reset_after. Any other has
--          five: -1 - status, remaining, retry_after (-1: none), reset_after, delay.
--          Status: 0 denied, 1 allowed, 2 exceeds the capacity; 4 more if the stored value was
--          unreadable
--
-- `include('name', ...)` runs scripts/name.lua with these arguments and returns what that returns:
-- src/store/redis/script.rs joins the files to one script. A call pays for what it includes, and
-- for each outer local variable that a function uses: the fast path uses few.
--
-- Lua 5.1 without a shebang: it runs on Redis 6.2 to 8 and on Valkey. Times are integer
-- microseconds. All numbers are integers below 2^53, which Lua's numbers hold exactly.
local now, grace
if ARGV[2] then
  -- The server's expiry goes by the server's time and must not interfere: keys live an hour longer.
  now, grace = tonumber(ARGV[2]), 3600000
else
  local time = redis.call('TIME')
  now, grace = time[1] * 1000000 + time[2], 0
end

return include('batch', now, grace)

-- Decides one charge, one claim of permits, or a batch of checks. A call is atomic.
-- The other side of the wire: src/store/redis/wire.rs.
--
-- KEYS     every budget that the call touches
-- ARGV[1]  the request: I2 the number of the call, then `batch` and a zero byte, then what
--          batch.lua says. Or a single charge, with a cost above 0: its algorithm and a zero byte,
--          I7 four numbers of its limit, I4 cost. Or a single claim: `permits` and a zero byte, I7
--          four numbers of its limit, I4 0, the claim
-- ARGV[2]  the time to decide by, in us since the epoch, for tests and dry runs. Default: the
--          server's time
--
-- returns  the number of the call, because replies may be lost; the time of the decisions; then the
--          verdicts. A batch is answered as a list, and a single charge as
--          a string, which costs less: two bytes for the number of the call, and eight for each
--          other. A verdict that allows a charge without a delay has two numbers: remaining,
--          reset_after. Any other has
--          five: -1 - status, remaining, retry_after (-1: none), reset_after, delay.
--          Status: 0 denied, 1 allowed, 2 exceeds the capacity; 4 more if the stored value was
--          unreadable; 8 more if a sixth number follows: the time until the level of a charged
--          bucket would be empty if nothing had been given back (without it, that is reset_after);
--          16 more if the key is blocked: a sixth number is the time until the block ends. 32 more
--          if it begins with this denial. 64: it is not decided, because the time is in neither of
--          the windows of a calendar that the request has
--
-- `include('name', ...)` runs scripts/name.lua with these arguments and returns what that returns.
-- src/store/redis/script.rs joins the files to one script. The file of an algorithm gets the first
-- three numbers of the limit, and its budget (`name_budget`) the time and all four. A call pays for
-- what it includes, and for each outer local variable that a function uses: the fast path uses few.
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

local call, algorithm, at = struct.unpack('>I2s', ARGV[1])
if algorithm == 'batch' then return include('batch', call, now, grace, at, ARGV[1]) end

local key = KEYS[1]
local p1, p2, p3, p4, cost, claim_at = struct.unpack('>I7I7I7I7I4', ARGV[1], at)
local read, write = include('stored')
if algorithm == 'permits' then
  local claim = include('permits', now, grace, ARGV[1], write)
  local granted, unreadable, holders = claim(key, read(key), p1, claim_at)
  if unreadable == 0 then return struct.pack('>I2i8i8i8', call, now, granted, holders) end
  return struct.pack('>I2i8i8i8i8i8i8', call, now, -2 - unreadable, granted, -1, holders, 0)
end
local charge, head_size = include(algorithm, p1, p2, p3)

local value = read(key, head_size)
local new, remaining, reset_after, delay, old_end, lasted =
  charge(value, cost, now, p1, p2, p3, p4)
if new then
  write(key, new, now + reset_after, lasted and reset_after, old_end, lasted, false, now, grace)
  if delay == 0 then return struct.pack('>I2i8i8i8', call, now, remaining, reset_after) end
  return struct.pack('>I2i8i8i8i8i8i8', call, now, -2, remaining, -1, reset_after, delay)
end

-- A block by an operator (operator_block.lua) is rare, so the charge is decided as a batch of one.
if value and string.byte(value) == 10 then
  local limit = string.sub(ARGV[1], 3, at + 27)
  local run = struct.pack('>BBI2I2I2I4', 0, 1, 1, 1, 1, cost)
  local reply = include('batch', call, now, grace, 1, struct.pack('>I2', 1) .. limit .. run)
  return struct.pack('>I2' .. string.rep('i8', #reply - 1), unpack(reply))
end

local budget = include(algorithm .. '_budget', now, p1, p2, p3, p4)
local unreadable = budget.load(value, key)
local status, retry_after, drains_after
status, remaining, retry_after, reset_after, delay, drains_after = budget.decide(cost, 'commit')
local ends_at, lasts, is_head
new, ends_at, lasts, old_end, lasted, is_head = budget.save()
write(key, new, ends_at, lasts, old_end, lasted, is_head, now, grace)
status = status + unreadable
if not drains_after then
  return struct.pack('>I2i8i8i8i8i8i8', call, now, -1 - status, remaining, retry_after, reset_after,
    delay)
end
return struct.pack('>I2i8i8i8i8i8i8i8', call, now, -9 - status, remaining, retry_after, reset_after,
  delay, drains_after)

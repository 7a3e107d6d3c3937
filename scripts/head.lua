-- What all parts of the script share. The parts are put together when the crate is compiled
-- (src/store/redis/script.rs): head, algorithms, batch. All times are integer microseconds, all
-- numbers integers below 2^53, exact in Lua. Lua 5.1, no shebang: it runs on Redis 6.2 to 8 and
-- on Valkey.
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local MAX_EXACT = 2 ^ 53 - 1

-- Longer than any budget takes to be whole again: ten leap years.
local MAX_REFILL = 10 * 366 * 86400 * 1000000

-- The status of a verdict. UNREADABLE is added when what was stored could not be read.
local REFUSED, ALLOWED, NEVER, UNREADABLE = 0, 1, 2, 4

-- What a decision may do: only answer; remember that the clock or the quota made the state last
-- longer; charge the cost if it fits, and else settle. A cost of 0 has no effect.
local DRY, SETTLE, COMMIT = 0, 1, 2

local function settles(effect, cost)
  return effect == SETTLE or (effect == COMMIT and cost > 0)
end

-- The first byte of a stored value says what wrote it. The three algorithms of a draining level
-- share a kind, so that one can be exchanged for another without a free burst.
local WINDOW_KIND, CELLS_KIND, LOG_KIND, BUCKET_KIND = 1, 2, 3, 4

-- What all parts of the script share. The parts are put together when the crate is compiled
-- (src/store/redis/script.rs): head, algorithms, batch. All times are integer microseconds, all
-- numbers integers below 2^53, exact in Lua. Lua 5.1, no shebang: it runs on Redis 6.2 to 8 and
-- on Valkey.
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local MAX_EXACT = 2 ^ 53 - 1

-- The status of a verdict. UNREADABLE is added when what was stored could not be read.
local REFUSED, ALLOWED, NEVER, UNREADABLE = 0, 1, 2, 4

-- The first byte of a stored value says what wrote it. The three algorithms of a draining level
-- share a kind, so that one can be exchanged for another without a free burst.
local WINDOW_KIND, CELLS_KIND, LOG_KIND, BUCKET_KIND = 1, 2, 3, 4

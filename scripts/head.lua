-- What all parts of the script share. The parts are put together when the crate is compiled
-- (src/store/redis/script.rs): this, then the algorithms, then general.lua, then batch.lua, where a
-- call begins. It makes only those functions that it needs: for most calls, the usual.
--
-- All times are integer microseconds, all numbers integers below 2^53, exact in Lua. Lua 5.1, no
-- shebang: it runs on Redis 6.2 to 8 and on Valkey.
--
-- An algorithm, called with the four numbers of a limit, returns two functions, and how many bytes
-- of a value are read at first, if not all (then it may be that no more is there):
--   usual   (value, cost): the charge that is asked for nearly always: under the quota that was
--           stored, later than that, and admitted. Answers the new value, remaining, reset_after,
--           after which nothing is left to remember, delay, and when what was stored would have
--           ended (nil: nothing was, or nobody knows, or it is not as long as the new value). All
--           nil if it is any other charge, and the machine has to decide. It changes nothing by
--           itself
--   machine (): makes the machine that decides everything
--
-- A machine has one of the limit's budgets in its registers at a time. That costs neither tables nor
-- closures for each check, and a budget that many checks hit is unpacked and packed once. It is
--   load    (value, key): brings what is stored (false: nothing) to this quota and this time.
--           Answers 0, or UNREADABLE if it cannot be read; then it counts as nothing. An error in
--           place of a value has no length, and no machine can read that
--   decide  (cost, effect): status, remaining, retry_after (-1: none), reset_after, delay
--   slack   (cost): where reset_after grows with each charge, what it is rounded up by after the
--           next; nil if that does not tell the ones that follow
--   refund  (units, charged_at, charged): takes units of a charge back: of so many, at that time
--   save    (): what to store (false: nothing is left to remember) and ends_at, or nil if nothing
--           changed; and, if what is stored is as long, or its head is all that is written, when
--           that ends (nil: it is not, or its expiry was lost)
--   has_ring (value): for a value of which a machine only writes the head, whether there is more
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local pack, unpack_from = struct.pack, struct.unpack
local call, pcall = redis.call, redis.pcall

-- The time of all decisions in a call.
local now

local MAX_EXACT = 2 ^ 53 - 1

-- Longer than any budget takes to be whole again: ten leap years.
local MAX_REFILL = 10 * 366 * 86400 * 1000000

-- Keys expire at whole seconds, the first when nothing is left to remember. So the charges of one
-- window, and those that come often, leave the expiry as it is: it costs Redis more than the value.
local SECOND = 1000000

-- For how long a key is kept beyond that, in ms: 0 at the server's time.
local grace

-- Writes a value that ends at `ends_at`. Whoever knows that it is as long as what is stored says
-- when that ends (`old_end`), and also if it `is_part`, the head of what is stored.
local function put(key, value, ends_at, old_end, is_part)
  local expires_at = ends_at + -ends_at % SECOND
  local stands = old_end and old_end + -old_end % SECOND == expires_at
  if stands or is_part then
    -- '0': a number would have to be formatted.
    call('SETRANGE', key, '0', value)
    -- Under a clock that is set by hand the server's time goes on: its expiry is put off.
    if stands and grace == 0 then return end
  end
  local ttl = max(ceil((expires_at - now) / 1000), 1) + grace
  if stands or is_part then
    call('PEXPIRE', key, ttl)
  else
    call('PSETEX', key, ttl, value)
  end
end

-- The ops. EACH is CHARGE in a form of its own.
local CHARGE, PEEK, REFUND, RESET, EACH = 0, 1, 2, 3, 4

-- The status of a verdict. UNREADABLE is added when what was stored could not be read.
local REFUSED, ALLOWED, NEVER, UNREADABLE = 0, 1, 2, 4

-- In place of a count of answers.
local IN_SHORT = 0

-- What a decision may do: only answer; remember that the clock or the quota moved, so that what
-- was answered stays true; charge the cost if it fits, and else settle. A charge of cost 0, and
-- one that can never pass, have no effect.
local DRY, SETTLE, COMMIT = 0, 1, 2

local function settles(effect, cost, status)
  return status ~= NEVER and (effect == SETTLE or (effect == COMMIT and cost > 0))
end

-- A level that drains evenly: what token_bucket.lua, leaky_bucket.lua and gcra.lua share.
-- Twin: src/algorithm/bucket.rs, which has the reasons. The delay of a decision is the time for
-- the level to drain.
--
-- value    28 bytes, or false for an untouched budget:
--            B  kind   I7 at     time in us at which `used` was held
--                      I7 used   in parts of 1/micros of a unit
--                      I7 units, I6 micros: `units` drain in `micros` us, in lowest terms
--          20 more if it goes on at another rate once it is down to `low` units:
--                      I7 low, I7 units, I6 micros
-- limit    units, micros, capacity (in units)
local KIND = 4
local LEVEL, LEVEL_SIZE = '>BI7I7I7I6', 28
local SLOWER, SLOWER_SIZE = '>I7I7I6', 20

-- How long it takes from `at` until `level` units or less are left.
local function time_until(used, u, m, low, low_u, low_m, level)
  if low and level < low then
    return ceil(max(used - low * m, 0) / u) + ceil((low - level) * low_m / low_u)
  end
  return ceil(max(used - level * m, 0) / u)
end

-- at, used, units, micros[, low, its units, its micros]
local function unpack_level(value)
  local _, at, used, u, m, next = struct.unpack(LEVEL, value)
  if #value == LEVEL_SIZE then return at, used, u, m end
  return at, used, u, m, struct.unpack(SLOWER, value, next)
end

local function is_whole(value)
  if #value ~= LEVEL_SIZE and #value ~= LEVEL_SIZE + SLOWER_SIZE then return false end
  local at, used, u, m, low, low_u, low_m = unpack_level(value)
  return u > 0 and m > 0 and at <= MAX_EXACT and used <= MAX_EXACT
    and (not low or (low_u > 0 and low_m > 0 and low * low_m <= MAX_EXACT))
    and time_until(used, u, m, low, low_u, low_m, 0) <= 2 * MAX_REFILL
end

-- value, ends_at
local function pack_level(at, used, u, m, low, low_u, low_m)
  local value = struct.pack(LEVEL, KIND, at, used, u, m)
  if low then value = value .. struct.pack(SLOWER, low, low_u, low_m) end
  return value, at + time_until(used, u, m, low, low_u, low_m, 0)
end

-- The level under a quota that may not yet have been in force: used, units, micros, low, its
-- units, its micros, changed.
local function under(used, u, m, low, low_u, low_m, units, micros, capacity)
  if u == units and m == micros then return used, u, m, nil, nil, nil, low ~= nil end
  if used <= capacity * m or units / micros > u / m then
    local whole = floor(used / m)
    local rest = used - whole * m
    local parts = 0
    if rest > 0 then parts = floor(rest / m * micros) + 1 end
    if whole * micros + parts <= MAX_EXACT then
      return whole * micros + parts, units, micros, nil, nil, nil, true
    end
  end
  local changed = low ~= capacity or low_u ~= units or low_m ~= micros
  return used, u, m, capacity, units, micros, changed
end

-- The level at `now` under this quota: at, used, units, micros, low, its units, its micros, moved.
local function resume(value, units, micros, capacity, now)
  if not value then return now, 0, units, micros end
  local at, used, u, m, low, low_u, low_m = unpack_level(value)
  if now >= at + time_until(used, u, m, low, low_u, low_m, 0) then
    return now, 0, units, micros
  end
  local set_back, changed = at - now > ceil(capacity * micros / units), false
  if set_back then
    at = now
  elseif at < now then
    if low then
      local reached = at + time_until(used, u, m, low, low_u, low_m, low)
      if reached <= now then
        at, used, u, m, low = reached, low * low_m, low_u, low_m, nil
      end
    end
    at, used = now, used - (now - at) * u
  end
  used, u, m, low, low_u, low_m, changed =
    under(used, u, m, low, low_u, low_m, units, micros, capacity)
  return at, used, u, m, low, low_u, low_m, set_back or changed
end

local function decide(value, units, micros, capacity, _, now, cost, effect)
  local at, used, u, m, low, low_u, low_m, moved =
    resume(value, units, micros, capacity, now)
  local behind = at - now
  local status, retry_after, turn = ALLOWED, -1, 0
  if cost > capacity then
    status = NEVER
  elseif cost > 0 then
    local wait = time_until(used, u, m, low, low_u, low_m, capacity - cost)
    if wait > 0 then
      status, retry_after = REFUSED, wait + behind
    else
      turn = ceil(used / u)
      used = used + cost * m
    end
  end
  local charges = status == ALLOWED and cost > 0
  local remaining = max(floor((capacity * m - used) / m), 0)
  local reset_after = 0
  if used > 0 then reset_after = time_until(used, u, m, low, low_u, low_m, 0) + behind end
  if (charges and effect == COMMIT) or (moved and not charges and settles(effect, cost, status)) then
    return status, remaining, retry_after, reset_after, turn,
      pack_level(at, used, u, m, low, low_u, low_m)
  end
  return status, remaining, retry_after, reset_after, turn
end

local function refund(value, units, micros, capacity, _, now, back)
  local at, used, u, m, low, low_u, low_m = resume(value, units, micros, capacity, now)
  used = used - back * m
  if used <= 0 then return false end
  used, u, m, low, low_u, low_m =
    under(used, u, m, low, low_u, low_m, units, micros, capacity)
  return pack_level(at, used, u, m, low, low_u, low_m)
end

return KIND, is_whole, decide, refund

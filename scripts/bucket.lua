-- A level that drains evenly: what token_bucket.lua, leaky_bucket.lua and gcra.lua share.
-- Twin: src/algorithm/bucket.rs, which has the reasons.
--
-- value    35 bytes, or false for an untouched budget:
--            B  kind   I7 at     time in us at which `used` was held
--                      I7 used   in parts of 1/micros of a unit
--                      I7 units, I6 micros: `units` drain in `micros` us, in lowest terms
--                      I7 since  time of the first charge that can be taken back
--          20 more if it goes on at another rate once it is down to `low` units:
--                      I7 low, I7 units, I6 micros
-- limit    units, micros, capacity (in units), queue: 1 if an admitted check has to wait for the
--          level to drain, else 0
local KIND = 4
local LEVEL, LEVEL_SIZE = '>BI7I7I7I6I7', 35
local SLOWER, SLOWER_SIZE = '>I7I7I6', 20

local units, micros, capacity, queue = ...

local function usual(value, cost)
  local used, since, old_end = 0, now, nil
  if value then
    if #value ~= LEVEL_SIZE then return nil end
    local kind, at, was_used, u, m, was_since = unpack_from(LEVEL, value)
    if kind ~= KIND or u ~= units or m ~= micros or at > now
      or was_used > MAX_EXACT or was_used > 2 * MAX_REFILL * units then
      return nil
    end
    local left = was_used - (now - at) * units
    if left > 0 then used, since = left, was_since end
    old_end = at + (was_used + -was_used % units) / units
  end
  -- What is free after the charge.
  local free = (capacity - cost) * micros - used
  if free < 0 then return nil end
  local level, delay = used + cost * micros, 0
  if queue == 1 then delay = ceil(used / units) end
  -- Divided without a rest, it is exact.
  return pack(LEVEL, KIND, now, level, units, micros, since),
    (free - free % micros) / micros, (level + -level % units) / units, delay,
    old_end
end

local function machine()
  -- The level, as stored.
  local at, used, u, m, since, low, low_u, low_m
  -- What was stored, if it is not over, whether more than draining happened to it, whether it has to
  -- be stored anew, and until when.
  local stored_at, stored_used, moved, changed, ends_at

  -- How long it takes from `at` until `units_left` units or less are left of `parts`.
  local function time_until(parts, units_left)
    if low and units_left < low then
      return ceil(max(parts - low * m, 0) / u) + ceil((low - units_left) * low_m / low_u)
    end
    local above = parts - units_left * m
    if above <= 0 then return 0 end
    return ceil(above / u)
  end

  -- The level under a quota that may not yet have been in force.
  local function adopt_quota()
    if u == units and m == micros then
      moved = moved or low ~= nil
      low = nil
      return
    end
    if used <= capacity * m or units / micros > u / m then
      local whole = floor(used / m)
      local rest = used - whole * m
      local parts = 0
      if rest > 0 then parts = floor(rest / m * micros) + 1 end
      if whole * micros + parts <= MAX_EXACT then
        used, u, m, since, low, moved = whole * micros + parts, units, micros, at, nil, true
        return
      end
    end
    if low ~= capacity or low_u ~= units or low_m ~= micros then moved, since = true, at end
    low, low_u, low_m = capacity, units, micros
  end

  local function load(value)
    at, used, u, m, since, low = now, 0, units, micros, now, nil
    stored_at, moved, changed = nil, false, false
    if not value then return 0 end
    local kind, next
    local whole = #value == LEVEL_SIZE or #value == LEVEL_SIZE + SLOWER_SIZE
    if whole then
      kind, at, used, u, m, since, next = unpack_from(LEVEL, value)
      if #value > LEVEL_SIZE then low, low_u, low_m = unpack_from(SLOWER, value, next) end
      whole = kind == KIND and u > 0 and u <= MAX_EXACT and m > 0
        and at <= MAX_EXACT and used <= MAX_EXACT
        and (not low or (low_u > 0 and low_u <= MAX_EXACT and low_m > 0 and low * low_m <= MAX_EXACT))
        and time_until(used, 0) <= 2 * MAX_REFILL
    end
    if not whole or now >= at + time_until(used, 0) then
      at, used, u, m, since, low = now, 0, units, micros, now, nil
      return whole and 0 or UNREADABLE
    end
    stored_at, stored_used = at, used
    if at - now > ceil(capacity * micros / units) then
      since, at, moved = at + 1, now, true
    elseif at < now then
      if low then
        local reached = at + time_until(used, low)
        if reached <= now then
          at, used, u, m, since, low = reached, low * low_m, low_u, low_m, reached, nil
        end
      end
      at, used = now, used - (now - at) * u
    end
    adopt_quota()
    return 0
  end

  local function decide_otherwise(cost, effect)
    local behind = at - now
    local status, retry_after = ALLOWED, -1
    if cost > capacity then
      status = NEVER
    elseif cost > 0 then
      status, retry_after = REFUSED, time_until(used, capacity - cost) + behind
    end
    local whole_after = time_until(used, 0)
    if moved and settles(effect, cost, status) then
      changed, ends_at = true, at + whole_after
    end
    local reset_after = 0
    if used > 0 then reset_after = whole_after + behind end
    return status, max(floor((capacity * m - used) / m), 0), retry_after, reset_after, 0
  end

  local function decide(cost, effect)
    -- What is free after the charge.
    local free = (capacity - cost) * m - used
    if free < 0 or cost == 0 or low then return decide_otherwise(cost, effect) end
    local level, delay = used + cost * m, 0
    if queue == 1 then delay = ceil(used / u) end
    -- Rounded up; exact, for integers.
    local whole_after = (level + -level % u) / u
    if effect == COMMIT then used, changed, ends_at = level, true, at + whole_after end
    return ALLOWED, (free - free % m) / m, -1, whole_after + at - now, delay
  end

  -- What the level after a charge misses to a whole number of microseconds until it is drained; nil
  -- if it drains at two rates, or from a later time.
  local function slack(cost)
    if low or at ~= now then return nil end
    return -(used + cost * m) % u
  end

  local function refund(back, charged_at, charged)
    if not stored_at or moved or low or charged_at < since or charged_at > stored_at then return end
    local left = max(min(charged, capacity) * m - (at - charged_at) * u, 0)
    at, used = stored_at, max(stored_used - min(left, min(back, capacity) * m), 0)
    changed, ends_at = true, at + time_until(used, 0)
  end

  local function save()
    if not changed then return nil end
    if used == 0 or ends_at <= now then return false end
    local value = pack(LEVEL, KIND, at, used, u, m, since)
    if low then value = value .. pack(SLOWER, low, low_u, low_m) end
    return value, ends_at
  end

  return {load = load, decide = decide, slack = slack, refund = refund, save = save}
end

return usual, machine

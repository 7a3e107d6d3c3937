-- The slow path of a bucket (see slow_path.lua). bucket.lua has the format of the value.
-- Twin: src/algorithm/bucket.rs, which has the reasons.
local now, units, micros, capacity, queue = ...
local KIND, LEVEL, LEVEL_SIZE = 4, '>BI7I7I7I6I7', 35
local DENIED, ALLOWED, EXCEEDS_CAPACITY, UNREADABLE = 0, 1, 2, 4
local RETURNED, RETURNED_SIZE, RESERVED, RESERVED_SIZE = '>I7', 7, '>I7I7I7', 21
local SLOWER, SLOWER_SIZE = '>I7I7I6', 20
local MAX_EXACT = 2 ^ 53 - 1
-- Ten leap years in us, which is more than any bucket takes to refill.
local MAX_REFILL = 10 * 366 * 86400 * 1000000
-- The highest level, its part for waiting charges, and the most parts that count as given back.
local MAX_LEVEL = math.floor(MAX_EXACT / 4) * 3
local MAX_RESERVED = MAX_LEVEL - math.floor(MAX_EXACT / 2)
local MAX_RETURNED = math.floor(MAX_EXACT / 8)
-- More us than any level takes to drain, at two rates.
local MAX_DRAIN = 2 * MAX_REFILL
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- The level, as stored.
local at, used, u, m, since, returned, reserved_until, spare, low, low_u, low_m
-- The stored level, if it has not drained; whether more than draining happened to it; whether it
-- has to be stored again, and when that value expires.
local stored_at, stored_used, moved, changed, ends_at

-- The time from `at` until `units_left` units or fewer are left of `parts`.
local function time_until(parts, units_left)
  if low and units_left < low then
    return ceil(max(parts - low * m, 0) / u) + ceil((low - units_left) * low_m / low_u)
  end
  local above = parts - units_left * m
  if above <= 0 then return 0 end
  return ceil(above / u)
end

local function start_empty()
  at, used, u, m, since, returned, low = now, 0, units, micros, now, 0, nil
  reserved_until, spare = 0, 0
end

-- Converts the level to this limit's rate. A level above the capacity that drains faster at its
-- own rate keeps that rate until `capacity` units are left, as does a level that this rate cannot
-- count exactly.
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
    if whole * micros + parts <= MAX_LEVEL then
      used, u, m, since, returned, low, moved =
        whole * micros + parts, units, micros, stored_at >= now and at + 1 or at, 0, nil, true
      reserved_until, spare = 0, 0
      return
    end
  end
  if low ~= capacity or low_u ~= units or low_m ~= micros then moved, since = true, at end
  low, low_u, low_m = capacity, units, micros
  returned, reserved_until, spare = 0, 0, 0
end

-- Whether the value is a level that can have been stored.
local function unpack_level(value)
  local more = #value - LEVEL_SIZE
  if more ~= 0 and more ~= RETURNED_SIZE and more ~= RESERVED_SIZE and more ~= SLOWER_SIZE then
    return false
  end
  local kind, next
  kind, at, used, u, m, since, next = struct.unpack(LEVEL, value)
  if more == RETURNED_SIZE then returned = struct.unpack(RETURNED, value, next) end
  if more == RESERVED_SIZE then
    returned, reserved_until, spare = struct.unpack(RESERVED, value, next)
  end
  if more == SLOWER_SIZE then low, low_u, low_m = struct.unpack(SLOWER, value, next) end
  return kind == KIND and u > 0 and u <= MAX_EXACT and m > 0
    and at <= MAX_EXACT and used <= MAX_LEVEL and returned <= MAX_RETURNED
    and (not low or (low_u > 0 and low_u <= MAX_EXACT and low_m > 0 and low * low_m <= MAX_EXACT))
    and time_until(used, 0) <= MAX_DRAIN
end

local function load(value)
  stored_at, moved, changed = nil, false, false
  start_empty()
  if not value then return 0 end
  local is_readable = unpack_level(value)
  if not is_readable or now >= at + time_until(used, 0) then
    start_empty()
    return is_readable and 0 or UNREADABLE
  end
  stored_at, stored_used = at, used
  if at - now > ceil(capacity * micros / units) then
    -- The clock was set back.
    since, returned, reserved_until, at, moved = at + 1, 0, 0, now, true
  elseif at < now then
    if low then
      local reached = at + time_until(used, low)
      if reached <= now then
        at, used, u, m, since, returned, low =
          reached, low * low_m, low_u, low_m, reached, 0, nil
        reserved_until, spare = 0, 0
      end
    end
    at, used = now, used - (now - at) * u
  end
  adopt_quota()
  return 0
end

-- When a check that needs `wait` us for its units is allowed, if it waits up to `max_wait`: a
-- delay, or nil and the time until then.
local function reserve(wait, max_wait, behind)
  local longest_wait = 0
  if queue == 0 then longest_wait = min(max_wait, MAX_REFILL, floor(MAX_RESERVED / units)) end
  if not low and wait <= longest_wait then return wait end
  local is_slower_after = 0
  -- At an earlier, faster rate, units would be reserved too soon.
  if low and longest_wait > 0 then is_slower_after = time_until(used, low) + behind end
  return nil, max(wait - longest_wait, is_slower_after)
end

local function decide(cost, effect, max_wait)
  local behind = at - now
  local status, retry_after, delay = ALLOWED, -1, 0
  local level, turn = used + cost * m, nil
  max_wait = max_wait or 0
  local late_by = 0
  if queue > 1 and cost > 0 then late_by = max(time_until(used, 0) - (queue - 1), 0) end
  if cost > capacity then
    status, level = EXCEEDS_CAPACITY, used
  elseif cost > 0 and (low or late_by > 0 or used > (capacity - cost) * m) then
    local wait = max(time_until(used, capacity - cost), late_by) + behind
    delay, wait = reserve(wait, max_wait, behind)
    if delay then
      turn = now + delay
    else
      status, retry_after, delay, level = DENIED, wait, 0, used
    end
  elseif cost > 0 and queue > 0 then
    delay = time_until(used, 0)
  end
  local charges = status == ALLOWED and cost > 0
  local drains_after = time_until(level, 0)
  if (charges and effect == 'commit') or (not charges and moved and effect ~= 'dry'
    and status ~= EXCEEDS_CAPACITY) then
    used, changed, ends_at = level, true, at + drains_after
    if turn then
      local room = (capacity - cost) * m
      spare = now < reserved_until and min(spare, room) or room
      reserved_until = max(reserved_until, turn)
    end
  end
  local reset_after, without_refunds = level > 0 and drains_after + behind or 0, nil
  if charges and effect == 'commit' and returned > 0 then
    without_refunds = time_until(level + returned, 0) + behind
  end
  return status, max(floor((capacity * m - level) / m), 0), retry_after, reset_after, delay,
    without_refunds
end

local function overdraw(cost, max_debt)
  local highest = min((capacity + max_debt) * m, u * MAX_REFILL, MAX_LEVEL)
  local level = min(used + cost * m, highest)
  if level > used then used, changed, ends_at = level, true, at + time_until(level, 0) end
end

local function refund(back, charged_at, charged, drains_at)
  if not stored_at or moved or low or charged_at < since or charged_at > stored_at then return end
  local is_whole = back >= charged
  charged = min(charged, capacity) * m
  local of_charge, of_level = max(charged - (at - charged_at) * u, 0), 0
  if drains_at > at then of_level = min((drains_at - at - 1) * u + 1, MAX_EXACT) end
  local charged_since = used + returned - of_level
  back = min(min(back, capacity) * m, used)
  local is_last = of_level > 0 and charged_since < m
  -- In a queue, later charges keep their places.
  if queue > 0 and not is_last then return end
  if is_whole and is_last then
    -- As if the last charge had not been made.
    used = stored_used - back
  else
    back = min(back, max(of_charge, of_level - returned))
    if at < reserved_until then
      back = min(back, max(spare, charged - charged_since))
      spare = max(spare - back, 0)
    end
    used, returned = stored_used - back, returned + back
  end
  at = stored_at
  if returned > MAX_RETURNED then since, returned = at + 1, 0 end
  changed, ends_at = true, at + time_until(used, 0)
end

local function save()
  if not changed then return nil end
  if used == 0 or ends_at <= now then return false end
  local value = struct.pack(LEVEL, KIND, at, used, u, m, since)
  if low then
    value = value .. struct.pack(SLOWER, low, low_u, low_m)
  elseif reserved_until > now then
    value = value .. struct.pack(RESERVED, returned, reserved_until, spare)
  elseif returned > 0 then
    value = value .. struct.pack(RETURNED, returned)
  end
  return value, ends_at, ends_at - at
end

-- By how much reset_after is rounded up after a charge, in parts, and the parts that were given
-- back. nil if the reset_after of the charges that follow does not grow at this rate, or if their
-- delays are bounded.
local function slack(cost)
  if low or at ~= now or queue > 1 then return nil end
  return -(used + cost * m) % u, returned
end

return {
  load = load, decide = decide, overdraw = overdraw, slack = slack, refund = refund, save = save,
}

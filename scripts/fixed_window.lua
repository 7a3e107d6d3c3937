-- Fixed window: at most `limit` units in a window.
-- Twin: src/algorithm/fixed_window.rs, which has the reasons.
--
-- value    35 bytes, or false for an untouched budget:
--            B  kind   I7 count    units used in the window, the last of them
--                      I7 at       at this time in us
--                      I7 stop     end of the window, in us
--                      I6 shape    twice the period in us, and 1 more if aligned to the clock
--                      I7 since    time of the first charge that can be taken back
--          41 more for each other shape (rotation.lua): the same without a kind, and with
--                      I7 asked
-- limit    limit, period, aligned: 1 if windows are aligned to the clock, 0 if a window starts
--          with the key's first request
local KIND = 1
local WINDOW, WINDOW_SIZE = '>BI7I7I7I6I7', 35
local OTHER, OTHER_SIZE = '>I7I7I7I6I7I7', 41
-- Far above any limit, and one charge more is exact.
local MAX_COUNT = MAX_EXACT - 2 ^ 32

local limit, period, aligned = ...
local own_shape = 2 * period + aligned

-- The end of a window that holds `time`.
local function end_from(time, period, aligned)
  if aligned == 1 then return time - time % period + period end
  return time + period
end

local function usual(value, cost)
  local count, since, stop, old_end = 0, now, nil, nil
  if value then
    if #value ~= WINDOW_SIZE then return nil end
    local kind, was_count, at, was_stop, shape, was_since = unpack_from(WINDOW, value)
    if kind ~= KIND or shape ~= own_shape or at > now or at >= was_stop
      or was_stop > at + 2 * MAX_REFILL or (aligned == 1 and was_stop % period ~= 0) then
      return nil
    end
    old_end = was_stop
    if now < was_stop then count, since, stop = was_count, was_since, was_stop end
  end
  count, stop = count + cost, stop or end_from(now, period, aligned)
  if count > limit then return nil end
  return pack(WINDOW, KIND, count, now, stop, own_shape, since),
    limit - count, stop - now, 0, old_end
end

local function window()
  -- The counter to decide by.
  local own

  local function fresh(like)
    return {
      shape = like.shape, period = like.period, aligned = like.aligned,
      count = 0, at = now, stop = end_from(now, like.period, like.aligned), since = now,
    }
  end

  local function end_of(counter)
    return counter.count == 0 and 0 or counter.stop
  end

  local function set_back(counter)
    counter.since, counter.at = counter.at + 1, now
    counter.stop = end_from(now, counter.period, counter.aligned)
  end

  local function derived(counter, like)
    local is_shorter, stop = like.period < counter.period, nil
    if like.aligned == 1 then
      -- To the end of an aligned window, or two of the old kind could share it.
      stop = end_from(is_shorter and counter.at or counter.stop - 1, like.period, 1)
    elseif is_shorter then
      stop = min(counter.at + like.period, counter.stop)
    else
      stop = max(max(counter.stop - counter.period, 0) + like.period, counter.stop)
    end
    return {
      shape = like.shape, period = like.period, aligned = like.aligned,
      count = counter.count, at = counter.at, stop = stop, since = counter.at + 1,
    }
  end

  local function enter(counter, units)
    counter.count = min(counter.count + units, MAX_COUNT)
    counter.at = max(counter.at, now)
  end

  local function take_back(counter, units, charged_at)
    if charged_at < counter.since or charged_at > counter.at then return false end
    counter.count = max(counter.count - units, 0)
    return true
  end

  local function checked(count, at, stop, shape, since, asked)
    local period = floor(shape / 2)
    if period == 0 or period > MAX_REFILL or count > MAX_EXACT
      or at >= stop or stop > at + 2 * MAX_REFILL then
      return nil
    end
    return {
      shape = shape, period = period, aligned = shape % 2,
      count = count, at = at, stop = stop, since = since, asked = asked,
    }
  end

  local function read(value)
    local others = (#value - WINDOW_SIZE) / OTHER_SIZE
    if others < 0 or others ~= floor(others) or others > 3 then return nil end
    local kind, count, at, stop, shape, since, next = unpack_from(WINDOW, value)
    if kind ~= KIND then return nil end
    local counters = {checked(count, at, stop, shape, since)}
    for i = 2, others + 1 do
      local asked
      count, at, stop, shape, since, asked, next = unpack_from(OTHER, value, next)
      counters[i] = checked(count, at, stop, shape, since, asked)
    end
    for i = 1, others + 1 do
      if not counters[i] then return nil end
    end
    return counters
  end

  local function write(counters)
    local it = counters[1]
    local value = pack(WINDOW, KIND, it.count, it.at, it.stop, it.shape, it.since)
    for i = 2, #counters do
      it = counters[i]
      value = value .. pack(OTHER, it.count, it.at, it.stop, it.shape, it.since, it.asked)
    end
    return value
  end

  local function look(counter)
    own = counter
  end

  local function ask(cost)
    local status, retry_after, units = ALLOWED, -1, own.count
    if cost > limit then
      status = NEVER
    elseif cost > 0 and units + cost > limit then
      status, retry_after = REFUSED, own.stop - now
    else
      units = units + cost
    end
    return status, max(limit - units, 0), retry_after, units > 0 and own.stop - now or 0
  end

  local function charge(cost)
    own.count = own.count + cost
    own.at = max(own.at, now)
    return own
  end

  local mine = {shape = own_shape, period = period, aligned = aligned}
  return fresh, end_of, set_back, derived, enter, take_back, read, write, look, ask, charge, mine
end

-- The slow path of a fixed window (see slow_path.lua). fixed_window.lua has the format of the
-- value, and rotation.lua keeps its counters.
-- Twin: src/algorithm/fixed_window.rs, which has the reasons.
local now, limit, period, aligned, lengths = ...
local KIND, WINDOW, WINDOW_SIZE = 1, '>BI7I7I7I6I7', 35
local DENIED, ALLOWED, EXCEEDS_CAPACITY = 0, 1, 2
-- The clock of the caller differs by half a window of its calendar or more.
local UNDECIDED = 64
local OTHER, OTHER_SIZE = '>I7I7I7I6I7I7', 41
local MAX_EXACT = 2 ^ 53 - 1
-- Ten leap years in us, which is more than any window lasts.
local MAX_PERIOD = 10 * 366 * 86400 * 1000000
-- Far above any limit, and one more charge is exact.
local MAX_COUNT = MAX_EXACT - 2 ^ 32
local floor, max, min = math.floor, math.max, math.min

-- The smallest number of a calendar.
local FIRST_CALENDAR = 2 ^ 47

-- The greatest length of a day, a week, a month or a year, by the number of a calendar.
local function greatest_length(calendar)
  local days = {1, 7, 31, 366}
  return days[calendar % 4 + 1] * 86400 * 1000000
end

-- The two windows of this limit's calendar, and whether one of them holds the time.
local is_known, start, between, stop_of_both = true, nil, nil, nil
-- Whether the counter to decide by needs the end of a window.
local needs_windows = false
-- Whether it does, and neither window holds the time.
local is_undecided = false
local own_shape = 2 * period + aligned
if aligned > 1 then
  local after = lengths % 2 ^ 26
  between, own_shape = period * 1000000, aligned
  start, stop_of_both = between - (lengths - after) / 2 ^ 26 * 1000000, between + after * 1000000
  is_known = start <= now and now < stop_of_both
  period = greatest_length(own_shape)
end

-- The end of a window that holds `time`, which is not later than now in a calendar.
local function end_from(time, its_period, is_aligned)
  if is_aligned > 1 and is_aligned ~= own_shape then
    -- A check of its own quota sets the end. Until then it is no whole second.
    return now - now % 1000000 + its_period + 1
  end
  if is_aligned > 1 then
    needs_windows = true
    if time < start then return start end
    return time < between and between or stop_of_both
  end
  if is_aligned == 1 then return time - time % its_period + its_period end
  return time + its_period
end

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

-- Sets the end of a window of a calendar that began in a check of another quota. Returns whether
-- the end was missing.
local function settle_end(counter)
  if counter.shape < FIRST_CALENDAR or counter.stop % 1000000 == 0 then return false end
  counter.at = min(counter.at, now)
  counter.stop = end_from(counter.at, counter.period, counter.aligned)
  return true
end

local function derived(counter, like)
  local is_shorter = like.period < counter.period
  local at, stop = counter.at
  if like.aligned > 1 then
    -- A window of a calendar is not longer because the clock stepped back.
    at = min(at, now)
    stop = end_from(at, like.period, like.aligned)
  elseif like.aligned == 1 then
    -- To the end of an aligned window, or two of the old kind could share it.
    stop = end_from(is_shorter and counter.at or counter.stop - 1, like.period, 1)
  elseif is_shorter then
    stop = min(counter.at + like.period, counter.stop)
  else
    stop = max(max(counter.stop - counter.period, 0) + like.period, counter.stop)
  end
  return {
    shape = like.shape, period = like.period, aligned = like.aligned,
    count = counter.count, at = at, stop = stop, since = at + 1,
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

-- A counter of these numbers; nil if they cannot have been stored.
local function counter_of(count, at, stop, shape, since, asked)
  local its_period, is_aligned = floor(shape / 2), shape % 2
  if shape >= FIRST_CALENDAR then
    its_period, is_aligned = greatest_length(shape), shape
  end
  if its_period == 0 or its_period > MAX_PERIOD or count > MAX_EXACT
    or at >= stop or stop > at + 2 * MAX_PERIOD then
    return nil
  end
  return {
    shape = shape, period = its_period, aligned = is_aligned,
    count = count, at = at, stop = stop, since = since, asked = asked,
  }
end

local function read(value)
  local others = (#value - WINDOW_SIZE) / OTHER_SIZE
  if others < 0 or others ~= floor(others) or others > 3 then return nil end
  local kind, count, at, stop, shape, since, next = struct.unpack(WINDOW, value)
  if kind ~= KIND then return nil end
  local counters = {counter_of(count, at, stop, shape, since)}
  for i = 2, others + 1 do
    local asked
    count, at, stop, shape, since, asked, next = struct.unpack(OTHER, value, next)
    counters[i] = counter_of(count, at, stop, shape, since, asked)
  end
  for i = 1, others + 1 do
    if not counters[i] then return nil end
  end
  return counters
end

local function write(counters)
  local it = counters[1]
  local value = struct.pack(WINDOW, KIND, it.count, it.at, it.stop, it.shape, it.since)
  for i = 2, #counters do
    it = counters[i]
    value = value
      .. struct.pack(OTHER, it.count, it.at, it.stop, it.shape, it.since, it.asked)
  end
  return value
end

local function look(counter)
  own = counter
  is_undecided = needs_windows and not is_known
  needs_windows = false
  return is_undecided
end

local function ask(cost)
  if is_undecided and cost > 0 then return DENIED + UNDECIDED, 0, -1, 0 end
  local status, retry_after, units = ALLOWED, -1, own.count
  if cost > limit then
    status = EXCEEDS_CAPACITY
  elseif cost > 0 and units + cost > limit then
    status, retry_after = DENIED, own.stop - now
  else
    units = units + cost
  end
  return status, max(limit - units, 0), retry_after, units > 0 and max(own.stop - now, 0) or 0
end

local function charge_own(cost)
  own.count = own.count + cost
  own.at = max(own.at, now)
  return own
end

local function room(max_debt)
  return limit + max_debt - own.count
end

return include('rotation', now, {
  shape = own_shape, period = period, aligned = aligned, settle_end = settle_end,
  fresh = fresh, end_of = end_of, set_back = set_back, derived = derived, enter = enter,
  take_back = take_back, read = read, write = write, look = look, ask = ask, charge = charge_own,
  room = room,
})

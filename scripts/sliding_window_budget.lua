-- The slow path of a sliding window (see slow_path.lua). sliding_window.lua has the format of the
-- value, and rotation.lua keeps its counters.
-- Twin: src/algorithm/sliding_window.rs, which has the reasons.
local now, limit, length, sub_windows = ...
local KIND, HEAD, HEAD_SIZE = 2, '>BBI6I7I7', 22
local DENIED, ALLOWED, EXCEEDS_CAPACITY = 0, 1, 2
local OTHER, OTHER_SIZE, MAX_SUB_WINDOWS = '>BI6I7I7I7', 28, 100
-- Ten leap years in us, which is more than any sub-window lasts.
local MAX_LENGTH = 10 * 366 * 86400 * 1000000
local MAX_EXACT = 2 ^ 53 - 1
-- No limit is greater, so no count is.
local MAX_COUNT = (MAX_EXACT - 1) / 2
-- The most units of quotas with a higher limit in one sub-window, and in all: see the twin.
local MAX_FOREIGN, MAX_SUM = 2 ^ 45, MAX_EXACT - 2 ^ 32
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- The format of `its_len` counts.
local function counts_format(its_len)
  return string.rep('I7', its_len)
end

-- The counter to decide by, its counts at `at`, newest first, and how many units count there.
local own, counts, at, used

local function fresh(like)
  local none = {}
  for i = 1, like.len do none[i] = 0 end
  return {
    shape = like.shape, period = like.period, length = like.length, len = like.len,
    at = now, since = now, counts = none,
  }
end

-- The time from which counts as of `time` equal none.
local function end_from(some, time, its_length)
  for i = 1, #some do
    if some[i] > 0 then return (floor(time / its_length) + #some - i + 1) * its_length end
  end
  return 0
end

local function end_of(counter)
  return end_from(counter.counts, counter.at, counter.length)
end

local function set_back(counter)
  counter.since, counter.at = counter.at + 1, now
end

-- The counts of a counter at a time that is not before theirs.
local function advanced(counter, time)
  local some, its_length = counter.counts, counter.length
  local by = floor(time / its_length) - floor(counter.at / its_length)
  if by == 0 then return some end
  local later = {}
  for i = 1, #some do later[i] = some[i - by] or 0 end
  return later
end

-- The same counts in other sub-windows.
local function derived(counter, like)
  local cut, old_length, time = fresh(like), counter.length, counter.at
  -- Units that have left the old window stay out, even if no charge has removed them yet.
  local old, old_newest = advanced(counter, max(time, now)), floor(max(time, now) / old_length)
  local new, newest = cut.counts, floor(time / like.length)
  for age = 0, #old - 1 do
    if old[age + 1] > 0 then
      local last = min((old_newest - age + 1) * old_length - 1, time)
      local i = newest - floor(last / like.length) + 1
      if i <= like.len then new[i] = min(new[i] + old[age + 1], MAX_COUNT) end
    end
  end
  cut.at, cut.since = time, time + 1
  return cut
end

local function enter(counter, units)
  local time = max(counter.at, now)
  local some, sum = advanced(counter, time), 0
  for i = 1, #some do sum = sum + some[i] end
  some[1] = some[1] + max(min(units, MAX_SUM - sum, MAX_FOREIGN - some[1]), 0)
  counter.counts, counter.at = some, time
end

local function take_back(counter, units, charged_at)
  if charged_at < counter.since or charged_at > counter.at then return false end
  local some = counter.counts
  local i = floor(counter.at / counter.length) - floor(charged_at / counter.length) + 1
  if not some[i] then return false end
  some[i] = max(some[i] - units, 0)
  return true
end

-- A counter with the counts that are in the value from `next` on; nil if they cannot have
-- been stored.
local function read_counts(value, len, its_length, time, since, asked, next)
  if len < 2 or len > MAX_SUB_WINDOWS + 1 or its_length == 0 or its_length > MAX_LENGTH
    or time > MAX_EXACT or #value < next - 1 + 7 * len then
    return nil
  end
  local some = {struct.unpack('>' .. counts_format(len), value, next)}
  some[len + 1] = nil
  for i = 1, len do
    if some[i] > MAX_COUNT then return nil end
  end
  return {
    shape = its_length * 128 + len, period = its_length * (len - 1), length = its_length,
    len = len, at = time, since = since, asked = asked, counts = some,
  }
end

local function read(value)
  if #value < HEAD_SIZE then return nil end
  local kind, len, first_length, time, since, next = struct.unpack(HEAD, value)
  if kind ~= KIND then return nil end
  local counters, asked = {}, nil
  repeat
    local counter = read_counts(value, len, first_length, time, since, asked, next)
    if not counter or #counters == 4 then return nil end
    counters[#counters + 1] = counter
    next = next + 7 * len
    local rest = #value - next + 1
    if rest == 0 then return counters end
    if rest < OTHER_SIZE then return nil end
    len, first_length, time, since, asked, next = struct.unpack(OTHER, value, next)
  until false
end

local function write(counters)
  local it = counters[1]
  local value = struct.pack(HEAD, KIND, it.len, it.length, it.at, it.since)
    .. struct.pack('>' .. counts_format(it.len), unpack(it.counts))
  for i = 2, #counters do
    it = counters[i]
    value = value .. struct.pack(OTHER, it.len, it.length, it.at, it.since, it.asked)
      .. struct.pack('>' .. counts_format(it.len), unpack(it.counts))
  end
  return value
end

local function look(counter)
  own, at = counter, max(now, counter.at)
  counts = advanced(counter, at)
  used = ceil(counts[sub_windows + 1] * (length - at % length) / length)
  for i = 1, sub_windows do used = used + counts[i] end
end

-- The first time at which no more than `room` units count.
local function time_until(room)
  local full, newest = 0, floor(at / length)
  for i = 1, #counts do full = full + counts[i] end
  for i = #counts, 1, -1 do
    local leaving = counts[i]
    full = full - leaving
    if room >= full then
      local left = 0
      if leaving > 0 then left = floor((room - full) * length / leaving) end
      return (newest + #counts - i) * length + max(length - left, 0)
    end
  end
end

local function ask(cost)
  local status, retry_after, units = ALLOWED, -1, used
  if cost > limit then
    status = EXCEEDS_CAPACITY
  elseif cost > 0 and used + cost > limit then
    status, retry_after = DENIED, time_until(limit - cost) - now
  else
    units = used + cost
  end
  local ends_at
  if units > used then
    ends_at = (floor(at / length) + sub_windows + 1) * length
  else
    ends_at = end_from(counts, at, length)
  end
  return status, max(limit - units, 0), retry_after, max(ends_at - now, 0)
end

local function charge_own(cost)
  counts[1], used = counts[1] + cost, used + cost
  own.counts, own.at = counts, at
  return own
end

local function room(max_debt)
  return limit + max_debt - used
end

local len = sub_windows + 1
return include('rotation', now, {
  shape = length * 128 + len, period = length * sub_windows, length = length, len = len,
  fresh = fresh, end_of = end_of, set_back = set_back, derived = derived, enter = enter,
  take_back = take_back, read = read, write = write, look = look, ask = ask, charge = charge_own,
  room = room,
})

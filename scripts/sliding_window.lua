-- Sliding window: a window that moves in cells.
-- Twin: src/algorithm/sliding_window.rs, which has the reasons.
--
-- value    22 bytes and 7 for each cell and the one being left, or false for an untouched budget:
--            B  kind   B  len      how many counts there are
--                      I6 length   of a cell in us
--                      I7 at       time of the last charge, in us
--                      I7 since    time of the first charge that can be taken back
--                      I7 counts   of the last charge's cell and of those before it
--          28 and 7 for each count for each other shape (rotation.lua): the same without a kind, and
--          with, before the counts,
--                      I7 asked
-- limit    limit, length, cells
local KIND = 2
local CELLS, CELLS_SIZE, MAX_CELLS = '>BBI6I7I7', 22, 101
local USUAL = '>I2I6I7I7'
local TWO_CELLS, TWO_SIZE = '>I2I6I7I7I7I7', 36
local OTHER, OTHER_SIZE = '>BI6I7I7I7', 28
-- No limit is greater, so no cell's count.
local MAX_COUNT = (MAX_EXACT - 1) / 2
-- The most units of quotas with a higher limit in one cell, and in all: see the twin.
local MAX_FOREIGN, MAX_SUM = 2 ^ 45, MAX_EXACT - 2 ^ 32

local limit, length, cells = ...
-- Kind and len as one number.
local kind_and_len = KIND * 256 + cells + 1

local usual
if cells == 1 then
  function usual(value, cost)
    local cell, newest, oldest, since, old_end = floor(now / length), 0, 0, nil, nil
    if value then
      if #value ~= TWO_SIZE then return nil end
      local kind, cell_length, at, was_since, at_newest, at_oldest = unpack_from(TWO_CELLS, value)
      if kind ~= kind_and_len or cell_length ~= length or at > now
        or at_newest > MAX_COUNT or at_oldest > MAX_COUNT then
        return nil
      end
      local by = cell - floor(at / length)
      if by == 0 then
        newest, oldest = at_newest, at_oldest
      elseif by == 1 then
        oldest = at_newest
      end
      if newest + oldest > 0 then since = was_since end
      if at_newest > 0 then old_end = (cell - by + 2) * length end
    end
    newest = newest + cost
    local used = ceil(oldest * (length - now % length) / length) + newest
    if used > limit then return nil end
    return pack(TWO_CELLS, kind_and_len, length, now, since or now, newest, oldest),
      limit - used, (cell + 2) * length - now, 0, old_end
  end
else
  local all_cells = USUAL .. string.rep('I7', cells + 1)
  local NEWEST, NEWEST_SIZE = USUAL .. 'I7', CELLS_SIZE + 7

  function usual(value, cost)
    local cell, by, stored, old_end = floor(now / length), cells + 1, nil, nil
    if value then
      if #value ~= CELLS_SIZE + 7 * (cells + 1) then return nil end
      stored = {unpack_from(all_cells, value)}
      if stored[1] ~= kind_and_len or stored[2] ~= length or stored[3] > now then return nil end
      for i = 5, cells + 5 do
        if stored[i] > MAX_COUNT then return nil end
      end
      by = cell - floor(stored[3] / length)
      if stored[5] > 0 then old_end = (cell - by + cells + 1) * length end
    end
    -- Most charges are in the cell of the last one, and leave the others as they are.
    local used, oldest, counts = cost, nil, nil
    if by == 0 then
      for i = 5, cells + 5 do used = used + stored[i] end
      oldest = stored[cells + 5]
    else
      counts = {}
      for i = 1, cells + 1 do
        local count = i > by and stored[4 + i - by] or 0
        counts[i], used = count, used + count
      end
      oldest = counts[cells + 1]
    end
    -- Nothing that was stored counts any more: what can be taken back starts with this charge.
    local since = used == cost and now or stored[4]
    used = used - oldest + ceil(oldest * (length - now % length) / length)
    if used > limit then return nil end
    local new
    if by == 0 then
      new = pack(NEWEST, kind_and_len, length, now, since, stored[5] + cost)
        .. string.sub(value, NEWEST_SIZE + 1)
    else
      counts[1] = counts[1] + cost
      new = pack(all_cells, kind_and_len, length, now, since, unpack(counts))
    end
    return new, limit - used, (cell + cells + 1) * length - now, 0, old_end
  end
end

local function window()
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

  -- From when on some counts as of `time` say nothing.
  local function end_from(some, time, length)
    for i = 1, #some do
      if some[i] > 0 then return (floor(time / length) + #some - i + 1) * length end
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
    local some, by = counter.counts, floor(time / counter.length) - floor(counter.at / counter.length)
    if by == 0 then return some end
    local later = {}
    for i = 1, #some do later[i] = some[i - by] or 0 end
    return later
  end

  -- The same counts in other cells.
  local function derived(counter, like)
    local cut, old_length, time = fresh(like), counter.length, counter.at
    -- What has left the old window stays out, whether a charge has noticed it or not.
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

  -- A counter with the counts that are in the value from `next` on; nil if they cannot be there.
  local function read_counts(value, len, length, at, since, asked, next)
    if len < 2 or len > MAX_CELLS or length == 0 or length > MAX_REFILL or at > MAX_EXACT
      or #value < next - 1 + 7 * len then
      return nil
    end
    local some = {unpack_from('>' .. string.rep('I7', len), value, next)}
    some[len + 1] = nil
    for i = 1, len do
      if some[i] > MAX_COUNT then return nil end
    end
    return {
      shape = length * 128 + len, period = length * (len - 1), length = length, len = len,
      at = at, since = since, asked = asked, counts = some,
    }
  end

  local function read(value)
    if #value < CELLS_SIZE then return nil end
    local kind, len, cell_length, time, since, next = unpack_from(CELLS, value)
    if kind ~= KIND then return nil end
    local counters, asked = {}, nil
    repeat
      local counter = read_counts(value, len, cell_length, time, since, asked, next)
      if not counter or #counters == 4 then return nil end
      counters[#counters + 1] = counter
      next = next + 7 * len
      local rest = #value - next + 1
      if rest == 0 then return counters end
      if rest < OTHER_SIZE then return nil end
      len, cell_length, time, since, asked, next = unpack_from(OTHER, value, next)
    until false
  end

  local function write(counters)
    local it, value = counters[1], nil
    value = pack(CELLS, KIND, it.len, it.length, it.at, it.since)
      .. pack('>' .. string.rep('I7', it.len), unpack(it.counts))
    for i = 2, #counters do
      it = counters[i]
      value = value .. pack(OTHER, it.len, it.length, it.at, it.since, it.asked)
        .. pack('>' .. string.rep('I7', it.len), unpack(it.counts))
    end
    return value
  end

  local function look(counter)
    own, at = counter, max(now, counter.at)
    counts = advanced(counter, at)
    used = ceil(counts[cells + 1] * (length - at % length) / length)
    for i = 1, cells do used = used + counts[i] end
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
      status = NEVER
    elseif cost > 0 and used + cost > limit then
      status, retry_after = REFUSED, time_until(limit - cost) - now
    else
      units = used + cost
    end
    local ends_at
    if units > used then
      ends_at = (floor(at / length) + cells + 1) * length
    else
      ends_at = end_from(counts, at, length)
    end
    return status, max(limit - units, 0), retry_after, max(ends_at - now, 0)
  end

  local function charge(cost)
    counts[1], used = counts[1] + cost, used + cost
    own.counts, own.at = counts, at
    return own
  end

  local len = cells + 1
  local mine = {shape = length * 128 + len, period = length * cells, length = length, len = len}
  return fresh, end_of, set_back, derived, enter, take_back, read, write, look, ask, charge, mine
end

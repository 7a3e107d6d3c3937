-- Sliding window: a window that moves in cells.
-- Twin: src/algorithm/sliding_window.rs, which has the reasons.
--
-- value    14 bytes and 7 for each cell and the one being left, or false for an untouched budget:
--            B  kind   I6 length of a cell in us
--                      I7 at       time of the last charge, in us
--                      I7 counts   of that time's cell and of those before it
-- limit    limit, length, cells
local KIND = 2
local CELLS, CELLS_SIZE, MAX_CELLS = '>BI6I7', 14, 101

local function is_whole(value)
  local len = (#value - CELLS_SIZE) / 7
  if len < 2 or len > MAX_CELLS or len ~= floor(len) then return false end
  local _, length, at = struct.unpack(CELLS, value)
  if length == 0 or length > MAX_REFILL or at > MAX_EXACT then return false end
  for i = 0, len - 1 do
    local count = struct.unpack('>I7', value, CELLS_SIZE + 1 + i * 7)
    if count > MAX_EXACT / MAX_CELLS then return false end
  end
  return true
end

-- length, at, counts
local function unpack_cells(value)
  local len = (#value - CELLS_SIZE) / 7
  local _, length, at = struct.unpack(CELLS, value)
  local counts = {struct.unpack('>' .. string.rep('I7', len), value, CELLS_SIZE + 1)}
  counts[len + 1] = nil
  return length, at, counts
end

-- From when on the counts say nothing.
local function end_of(length, at, counts)
  local youngest = 1
  for i = 1, #counts do
    if counts[i] > 0 then youngest = i break end
  end
  return (floor(at / length) + #counts - youngest + 1) * length
end

-- value, ends_at
local function pack_cells(length, at, counts)
  return struct.pack(CELLS, KIND, length, at)
    .. struct.pack('>' .. string.rep('I7', #counts), unpack(counts)),
    end_of(length, at, counts)
end

local function fresh(cells)
  local counts = {}
  for i = 1, cells + 1 do counts[i] = 0 end
  return counts
end

-- The same counts in other cells.
local function recut(old, old_length, at, length, cells)
  local counts, old_newest, newest = fresh(cells), floor(at / old_length), floor(at / length)
  for age = 0, #old - 1 do
    if old[age + 1] > 0 then
      local last = min((old_newest - age + 1) * old_length - 1, at)
      local i = newest - floor(last / length) + 1
      if i <= cells + 1 then counts[i] = counts[i] + old[age + 1] end
    end
  end
  return counts
end

-- The counts at the time of the last charge, under this quota: counts, at, and whether they were
-- made to last longer.
local function resume(value, length, cells, now)
  if not value then return fresh(cells), now, false end
  local old_length, at, counts = unpack_cells(value)
  local old_end, moved = end_of(old_length, at, counts), false
  if now >= old_end then return fresh(cells), now, false end
  if old_length ~= length or #counts ~= cells + 1 then
    counts = recut(counts, old_length, at, length, cells)
    moved = end_of(length, at, counts) > old_end
  end
  if at - now > length * cells then at, moved = now, true end
  if now >= end_of(length, at, counts) then return fresh(cells), now, false end
  return counts, at, moved
end

-- The counts at `time`, which is not before `at`.
local function advance(counts, at, length, time)
  local by = floor(time / length) - floor(at / length)
  if by == 0 then return counts end
  local advanced = {}
  for i = 1, #counts do advanced[i] = counts[i - by] or 0 end
  return advanced
end

-- The first time at which no more than `room` units count.
local function time_until(counts, at, length, room)
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

local function decide(value, limit, length, cells, _, now, cost, effect)
  local held, at, moved = resume(value, length, cells, now)
  local time = max(now, at)
  local counts = advance(held, at, length, time)
  local used = ceil(counts[cells + 1] * (length - time % length) / length)
  for i = 1, cells do used = used + counts[i] end
  local status, retry_after = ALLOWED, -1
  if cost > limit then
    status = NEVER
  elseif cost > 0 and used + cost > limit then
    status = REFUSED
    retry_after = time_until(counts, time, length, limit - cost) - now
  else
    used = used + cost
  end
  local charges = status == ALLOWED and cost > 0
  local new, ends_at
  if not charges and moved and settles(effect, cost, status) then new, ends_at = pack_cells(length, at, held) end
  if charges then counts[1] = counts[1] + cost end
  local reset_after = 0
  if used > 0 then reset_after = end_of(length, time, counts) - now end
  if charges and effect == COMMIT then new, ends_at = pack_cells(length, time, counts) end
  return status, max(limit - used, 0), retry_after, reset_after, 0, new, ends_at
end

local function refund(value, _, length, cells, _, now, back)
  local counts, at = resume(value, length, cells, now)
  for i = 1, cells + 1 do
    local taken = min(back, counts[i])
    counts[i] = counts[i] - taken
    back = back - taken
  end
  local new, ends_at = pack_cells(length, at, counts)
  local left = 0
  for i = 1, cells + 1 do left = left + counts[i] end
  if left == 0 or now >= ends_at then return false end
  return new, ends_at
end

return KIND, is_whole, decide, refund

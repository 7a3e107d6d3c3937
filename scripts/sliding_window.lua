-- Sliding window: a window that moves in cells.
-- Twin: src/algorithm/sliding_window.rs, which has the reasons.
--
-- value    14 bytes and 7 for each cell and the one being left, or false for an untouched budget:
--            B  kind   I6 length of a cell in us
--                      I7 newest: the newest cell starts at newest * length
--                      I7 counts, newest first
-- limit    limit, length, cells
local CELLS_HEAD = '>BI6I7'
local CELLS_HEAD_SIZE = 14

local function cells_are_whole(value)
  local size = #value - CELLS_HEAD_SIZE
  if size <= 0 or size % 7 ~= 0 then return false end
  local _, length, newest = struct.unpack(CELLS_HEAD, value)
  if length == 0 or newest * length > MAX_EXACT then return false end
  for i = 0, size / 7 - 1 do
    if struct.unpack('>I7', value, CELLS_HEAD_SIZE + 1 + i * 7) > MAX_EXACT / length then return false end
  end
  return true
end

-- From when on the counts say nothing.
local function cells_end(length, newest, counts)
  local youngest = 1
  for i = 1, #counts do
    if counts[i] > 0 then youngest = i break end
  end
  return (newest + #counts - youngest + 1) * length
end

-- The counts at `now` under this quota: counts, newest, time, moved.
local function sliding_window_resume(value, length, cells, now)
  local counts, newest, time, moved = {}, floor(now / length), now, false
  for i = 1, cells + 1 do counts[i] = 0 end
  if not value then return counts, newest, time, moved end

  local _, l, n = struct.unpack(CELLS_HEAD, value)
  local len = (#value - CELLS_HEAD_SIZE) / 7
  local old = {struct.unpack('>' .. string.rep('I7', len), value, CELLS_HEAD_SIZE + 1)}
  old[len + 1] = nil
  if now >= cells_end(l, n, old) then return counts, newest, time, moved end

  if n * l - now > length * cells then
    n, moved = floor(now / l), true
  end
  time = max(now, n * l)
  newest = floor(time / length)
  if l ~= length or len ~= cells + 1 then
    moved = true
    for age = 0, len - 1 do
      if old[age + 1] > 0 then
        local last = min((n - age + 1) * l - 1, time)
        local i = newest - floor(last / length) + 1
        if i <= cells + 1 then
          counts[i] = min(counts[i] + old[age + 1], floor(MAX_EXACT / length))
        end
      end
    end
  else
    for i = newest - n + 1, cells + 1 do counts[i] = old[i - newest + n] end
  end
  return counts, newest, time, moved
end

-- The first time at which no more than `room` units count.
local function cells_time_until(counts, newest, length, room)
  local full = 0
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

local function cells_pack(counts, newest, length)
  return struct.pack(CELLS_HEAD, CELLS_KIND, length, newest)
    .. struct.pack('>' .. string.rep('I7', #counts), unpack(counts))
end

-- status, remaining, retry_after, reset_after, delay[, value, ends_at]
local function sliding_window_decide(value, limit, length, cells, _, now, cost, commit)
  local counts, newest, time, moved = sliding_window_resume(value, length, cells, now)
  local overlap = length - (time - newest * length)
  local used = ceil(counts[cells + 1] * overlap / length)
  for i = 1, cells do used = used + counts[i] end
  local status, retry_after = ALLOWED, -1
  if cost > limit then
    status = NEVER
  elseif cost > 0 and used + cost > limit then
    status = REFUSED
    retry_after = cells_time_until(counts, newest, length, limit - cost) - now
  else
    used = used + cost
    counts[1] = counts[1] + cost
  end
  local ends_at, reset_after = cells_end(length, newest, counts), 0
  if used > 0 then reset_after = ends_at - now end
  if commit and (moved or (status == ALLOWED and cost > 0)) then
    return status, max(limit - used, 0), retry_after, reset_after, 0,
      cells_pack(counts, newest, length), ends_at
  end
  return status, max(limit - used, 0), retry_after, reset_after, 0
end

-- value (false: nothing is left to remember), ends_at
local function sliding_window_refund(value, _, length, cells, _, now, back)
  local counts, newest = sliding_window_resume(value, length, cells, now)
  local left = 0
  for i = 1, cells + 1 do
    local taken = min(back, counts[i])
    counts[i] = counts[i] - taken
    back = back - taken
    left = left + counts[i]
  end
  if left == 0 then return false end
  return cells_pack(counts, newest, length), cells_end(length, newest, counts)
end

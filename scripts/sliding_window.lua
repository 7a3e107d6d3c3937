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
local TWO_CELLS, TWO_SIZE = '>BI6I7I7I7', 28
-- No limit is greater, so no cell's count.
local MAX_COUNT = MAX_EXACT / 2

local limit, length, cells = ...

local usual
if cells == 1 then
  function usual(value, cost)
    local cell, newest, oldest, old_end = floor(now / length), 0, 0, nil
    if value then
      if #value ~= TWO_SIZE then return nil end
      local kind, cell_length, at, at_newest, at_oldest = unpack_from(TWO_CELLS, value)
      if kind ~= KIND or cell_length ~= length or at > now
        or at_newest > MAX_COUNT or at_oldest > MAX_COUNT then
        return nil
      end
      local by = cell - floor(at / length)
      if by == 0 then
        newest, oldest = at_newest, at_oldest
      elseif by == 1 then
        oldest = at_newest
      end
      if at_newest > 0 then old_end = (cell - by + 2) * length end
    end
    newest = newest + cost
    local used = ceil(oldest * (length - now % length) / length) + newest
    if used > limit then return nil end
    return pack(TWO_CELLS, KIND, length, now, newest, oldest),
      limit - used, (cell + 2) * length - now, 0, old_end
  end
else
  local all_cells = CELLS .. string.rep('I7', cells + 1)
  local NEWEST, NEWEST_SIZE = CELLS .. 'I7', CELLS_SIZE + 7

  function usual(value, cost)
    local cell, by, stored, old_end = floor(now / length), cells + 1, nil, nil
    if value then
      if #value ~= CELLS_SIZE + 7 * (cells + 1) then return nil end
      stored = {unpack_from(all_cells, value)}
      if stored[1] ~= KIND or stored[2] ~= length or stored[3] > now then return nil end
      for i = 4, cells + 4 do
        if stored[i] > MAX_COUNT then return nil end
      end
      by = cell - floor(stored[3] / length)
      if stored[4] > 0 then old_end = (cell - by + cells + 1) * length end
    end
    -- Most charges are in the cell of the last one, and leave the others as they are.
    local used, oldest, counts = cost, nil, nil
    if by == 0 then
      for i = 4, cells + 4 do used = used + stored[i] end
      oldest = stored[cells + 4]
    else
      counts = {}
      for i = 1, cells + 1 do
        local count = i > by and stored[3 + i - by] or 0
        counts[i], used = count, used + count
      end
      oldest = counts[cells + 1]
    end
    used = used - oldest + ceil(oldest * (length - now % length) / length)
    if used > limit then return nil end
    local new
    if by == 0 then
      new = pack(NEWEST, KIND, length, now, stored[4] + cost)
        .. string.sub(value, NEWEST_SIZE + 1)
    else
      counts[1] = counts[1] + cost
      new = pack(all_cells, KIND, length, now, unpack(counts))
    end
    return new, limit - used, (cell + cells + 1) * length - now, 0, old_end
  end
end

local function machine()
  local value
  -- The counts at `at`, newest first, and how many units of them count there.
  local counts, at, used = {}, 0, 0
  -- What to remember to make an answer true: the counts as of their last charge, where the clock or
  -- the quota moved.
  local held, held_at
  -- Whether something was stored, and what has to be stored anew.
  local stored, changed, settled

  -- From when on the counts say nothing.
  local function end_of(cell_length, time, some)
    local youngest = 1
    for i = 1, #some do
      if some[i] > 0 then youngest = i break end
    end
    return (floor(time / cell_length) + #some - youngest + 1) * cell_length
  end

  local function fresh()
    local none = {}
    for i = 1, cells + 1 do none[i] = 0 end
    return none
  end

  -- The same counts in other cells.
  local function recut(old, old_length, time)
    local new, old_newest, newest = fresh(), floor(time / old_length), floor(time / length)
    for age = 0, #old - 1 do
      if old[age + 1] > 0 then
        local last = min((old_newest - age + 1) * old_length - 1, time)
        local i = newest - floor(last / length) + 1
        if i <= cells + 1 then new[i] = new[i] + old[age + 1] end
      end
    end
    return new
  end

  -- The counts at `time`, which is not before theirs.
  local function advance(some, since, time)
    local by = floor(time / length) - floor(since / length)
    if by == 0 then return some end
    local advanced = {}
    for i = 1, #some do advanced[i] = some[i - by] or 0 end
    return advanced
  end

  -- length, at, counts; nil if it cannot be read
  local function unpack_cells(value)
    local len = (#value - CELLS_SIZE) / 7
    if len < 2 or len > MAX_CELLS or len ~= floor(len) then return nil end
    local kind, cell_length, time = unpack_from(CELLS, value)
    if kind ~= KIND or cell_length == 0 or cell_length > MAX_REFILL or time > MAX_EXACT then
      return nil
    end
    local some = {unpack_from('>' .. string.rep('I7', len), value, CELLS_SIZE + 1)}
    some[len + 1] = nil
    for i = 1, len do
      if some[i] > MAX_COUNT then return nil end
    end
    return cell_length, time, some
  end

  -- What is stored under this quota, as of its last charge: counts, at, and whether they were made
  -- to last longer; nil if nothing counts.
  local function resume(old_length, time, some)
    local old_end, moved = end_of(old_length, time, some), false
    if now >= old_end then return nil end
    if old_length ~= length or #some ~= cells + 1 then
      some = recut(some, old_length, time)
      moved = end_of(length, time, some) > old_end
    end
    if time - now > length * cells then time, moved = now, true end
    if now >= end_of(length, time, some) then return nil end
    return some, time, moved
  end

  local function load(loaded)
    value = loaded
    held, stored, changed, settled = nil, false, false, false
    counts, at = fresh(), now
    local unreadable = 0
    if value then
      local old_length, v_at, v_counts = unpack_cells(value)
      if old_length then
        stored = true
        local some, time, moved = resume(old_length, v_at, v_counts)
        if some then
          at = max(now, time)
          counts = advance(some, time, at)
          if moved then held, held_at = some, time end
        end
      else
        unreadable = UNREADABLE
      end
    end
    used = ceil(counts[cells + 1] * (length - at % length) / length)
    for i = 1, cells do used = used + counts[i] end
    return unreadable
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

  local function decide(cost, effect)
    local status, retry_after, units = ALLOWED, -1, used
    if cost > limit then
      status = NEVER
    elseif cost > 0 and used + cost > limit then
      status, retry_after = REFUSED, time_until(limit - cost) - now
    else
      units = used + cost
    end
    local reset_after = 0
    if units > used then
      reset_after = (floor(at / length) + cells + 1) * length - now
      if effect == COMMIT then
        counts[1], used = counts[1] + cost, units
        held, changed = nil, true
      end
    else
      if used > 0 then reset_after = end_of(length, at, counts) - now end
      if held and settles(effect, cost, status) then settled = true end
    end
    return status, max(limit - units, 0), retry_after, reset_after, 0
  end

  local function refund(back)
    if not stored then return end
    changed = true
    local some, time = resume(unpack_cells(value))
    if not some then
      counts = fresh()
      return
    end
    counts, at = some, time
    for i = 1, #counts do
      local taken = min(back, counts[i])
      counts[i] = counts[i] - taken
      back = back - taken
    end
  end

  local function save()
    if not changed and not settled then return nil end
    local some, time = counts, at
    if held and not changed then some, time = held, held_at end
    local ends_at = end_of(length, time, some)
    local left = 0
    for i = 1, #some do left = left + some[i] end
    if left == 0 or now >= ends_at then return false end
    if #some == 2 then
      return pack(TWO_CELLS, KIND, length, time, some[1], some[2]), ends_at
    end
    return pack(CELLS, KIND, length, time)
      .. pack('>' .. string.rep('I7', #some), unpack(some)), ends_at
  end

  return {load = load, decide = decide, refund = refund, save = save}
end

return usual, machine

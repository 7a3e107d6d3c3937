-- Sliding log: exact; no window of `period` holds more than `limit` units.
-- Twin: src/algorithm/sliding_log.rs, which has the reasons.
--
-- The log is one string: a head, and a ring of slots of a fixed size. So one more request costs
-- one slot, and the slot that decides is found without reading the others. The newest entry is
-- in the head: requests of one microsecond never touch the ring. A log that is so short that it
-- comes along with the head is written whole.
--
-- head     56 bytes, or false for an untouched budget:
--            B  kind   I6 period    us in which an entry leaves
--                      B, B         bytes of a slot's clock and of its sum
--                      I4 slots     of the ring     I4 first   slot of the oldest entry
--                      I4 entries   in the ring
--                      I7 before    sum before the oldest entry
--                      I7 oldest    clock of the oldest entry, be it in the ring or the newest
--                      I7 newest    time of the newest entry, in us since the epoch
--                      I7 clock     clock of the newest entry
--                      I7 sum       units up to and including the newest entry
-- slot     clock and sum of an entry, oldest first, both modulo their size. Clocks only tell how
--          much older an entry is than the newest: setting the newest's time sets all.
-- limit    limit, period
local KIND = 3
local HEAD, HEAD_SIZE = '>BI6BBI4I4I4I7I7i7I7I7', 56
local SLOTS_AT = 10

-- What is read of a log at first.
local SHORT = 256

local limit, new_period = ...

-- Bytes that hold any number below `n`.
local function bytes_for(n)
  local bytes = 1
  while n > 256 ^ bytes do bytes = bytes + 1 end
  return bytes
end

-- How many slots a ring gets that has no room for one entry more.
local function more_slots(entries)
  return max(entries + 1, min(limit, max(8, entries * 2)))
end

-- How the numbers of a slot are written, by their bytes.
local slot_formats = {}
local function slot_format(clock_bytes, sum_bytes)
  local key = clock_bytes * 8 + sum_bytes
  local format = slot_formats[key]
  if not format then
    format = '>I' .. clock_bytes .. 'I' .. sum_bytes
    slot_formats[key] = format
  end
  return format
end

-- Whether the numbers of a head make sense.
local function makes_sense(kind, period, clock_bytes, sum_bytes, slots, first, entries, before,
  oldest, newest, clock, sum)
  if kind ~= KIND or period == 0 or period > MAX_REFILL or newest > MAX_EXACT or sum > MAX_EXACT
    or before > sum or oldest > clock or clock > MAX_EXACT
    or (entries == 0 and oldest ~= clock) then
    return false
  end
  if slots == 0 then return entries == 0 and clock_bytes == 0 and sum_bytes == 0 end
  return clock_bytes >= 1 and clock_bytes <= 7 and sum_bytes >= 1 and sum_bytes <= 7
    and first < slots and entries <= slots
end

-- A log of one entry.
local function usual_first(cost)
  if cost > limit then return nil end
  return pack(HEAD, KIND, new_period, 0, 0, 0, 0, 0, 0, 0, now, 0, cost),
    limit - cost, new_period, 0
end

local function usual(value, cost)
  if not value then return usual_first(cost) end
  -- What is as long as all that was read may go on.
  if #value < HEAD_SIZE or #value >= SHORT then return nil end
  local kind, period, clock_bytes, sum_bytes, slots, first, entries, before, oldest, newest, clock,
    sum = unpack_from(HEAD, value)
  local size = clock_bytes + sum_bytes
  if period ~= new_period or newest > now or #value ~= HEAD_SIZE + slots * size
    or not makes_sense(kind, period, clock_bytes, sum_bytes, slots, first, entries, before, oldest,
      newest, clock, sum) then
    return nil
  end
  if now >= newest + period then return usual_first(cost) end

  if slots == 0 and newest ~= now then
    clock_bytes, sum_bytes = bytes_for(period), bytes_for(limit + 1)
  end
  size = clock_bytes + sum_bytes
  local slot = slot_format(clock_bytes, sum_bytes)
  local clocks, sums = 256 ^ clock_bytes, 256 ^ sum_bytes
  if clocks < period or sums < limit + 1 then return nil end
  -- The oldest entries leave.
  local age, left = newest - (now - period), 0
  while clock - oldest >= age do
    local _, slot_sum = unpack_from(slot, value, HEAD_SIZE + first * size + 1)
    left = min((slot_sum - before) % sums, sum - before)
    first, entries = (first + 1) % slots, entries - 1
    oldest = clock
    if entries > 0 then
      oldest = clock - (clock - unpack_from(slot, value, HEAD_SIZE + first * size + 1)) % clocks
    end
  end
  before = before + left
  local used = sum - before + cost
  if used > limit or sum + cost > MAX_EXACT / 2 then return nil end

  local old_end = newest + period
  local ring = string.sub(value, HEAD_SIZE + 1)
  if newest ~= now then
    if entries == slots then
      slots = more_slots(entries)
      ring = string.sub(ring, first * size + 1) .. string.sub(ring, 1, first * size)
        .. string.rep('\0', (slots - entries) * size)
      first, old_end = 0, nil
    end
    -- The newest entry goes into the ring.
    local place = (first + entries) % slots * size
    ring = string.sub(ring, 1, place) .. pack(slot, clock % clocks, sum % sums)
      .. string.sub(ring, place + size + 1)
    entries, clock, newest = entries + 1, clock + now - newest, now
  end
  return pack(HEAD, KIND, period, clock_bytes, sum_bytes, slots, first, entries, before, oldest,
    newest, clock, sum + cost) .. ring, limit - used, period, 0, old_end
end

local function machine()
  local key
  -- The log, as stored.
  local period, clock_bytes, sum_bytes, slots, first, entries, before, oldest, newest, clock, sum
  -- Whether there is a log; the time that counts, how far the clock was set back, how many of the
  -- oldest entries have left, the units they had, and whether the log was made to last longer.
  local stored, time, set_back, gone, left, moved
  -- How much older than the newest the first entry is that has not left, if some have.
  local stays_age
  -- Whether the head has to be stored anew, and when what is stored ends, if its expiry is by that.
  local changed, old_end

  -- Reads a head, and whether it is whole, and its ring there.
  local function unpack_head(value)
    if #value < HEAD_SIZE then return false end
    local kind
    kind, period, clock_bytes, sum_bytes, slots, first, entries, before, oldest, newest, clock, sum =
      unpack_from(HEAD, value)
    local length = HEAD_SIZE + slots * (clock_bytes + sum_bytes)
    return makes_sense(kind, period, clock_bytes, sum_bytes, slots, first, entries, before, oldest,
        newest, clock, sum)
      and ((#value == length and length < SHORT) or call('STRLEN', key) == length)
  end

  -- The place of the i-th oldest entry's slot in the string.
  local function place_of(i)
    return HEAD_SIZE + (first + i) % slots * (clock_bytes + sum_bytes)
  end

  -- Of the i-th oldest entry: how much older than the newest it is, and the units since `before`.
  local function entry(i)
    if i == entries then return 0, sum - before end
    local place = place_of(i)
    local slot_clock, slot_sum = unpack_from(slot_format(clock_bytes, sum_bytes),
      call('GETRANGE', key, place, place + clock_bytes + sum_bytes - 1))
    return (clock - slot_clock) % 256 ^ clock_bytes,
      min((slot_sum - before) % 256 ^ sum_bytes, sum - before)
  end

  -- The first entry, from `from` on, that is less than `age` older than the newest and has at least
  -- `units` up to it, or the newest; and how much older it is. Most often it is one of the next, so
  -- the steps start small.
  local function find(from, age, units)
    local low, high, step, high_age = from - 1, entries, 1, 0
    while low + 1 < high do
      local i = min(low + step, high - 1)
      if step == 0 then i = floor((low + high) / 2) end
      local entry_age, entry_units = entry(i)
      if entry_age < age and entry_units >= units then
        high, step, high_age = i, 0, entry_age
      else
        low, step = i, step * 2
      end
    end
    return high, high_age
  end

  local function start_anew()
    period, clock_bytes, sum_bytes, slots, first, entries = new_period, 0, 0, 0, 0, 0
    before, oldest, newest, clock, sum = 0, 0, now, 0, 0
    time, set_back, gone, left, moved = now, 0, 0, 0, false
  end

  local function load(value, its_key)
    key, stored, changed, old_end = its_key, false, false, nil
    if not value then
      start_anew()
      return 0
    end
    if not unpack_head(value) then
      start_anew()
      return UNREADABLE
    end
    stored, set_back, gone, left = true, 0, 0, 0
    if newest - now > new_period then set_back = newest - now end
    time = max(now, newest - set_back)
    local age = newest - (time + set_back - min(period, new_period))
    if now >= newest + period or age <= 0 then
      start_anew()
      return 0
    end
    moved, old_end = set_back > 0 or period < new_period, newest + period
    if clock - oldest >= age then
      gone, stays_age = find(1, age, 0)
      left = select(2, entry(gone - 1))
    end
    return 0
  end

  -- Carries out what was found.
  local function adopt()
    if gone > 0 then
      oldest = clock - stays_age
      first = (first + gone) % slots
      entries = entries - gone
      before = before + left
    end
    newest = newest - set_back
    period = new_period
    set_back, gone, left, moved = 0, 0, 0, false
  end

  -- The slots of the ring, oldest first, as one string.
  local function all_slots()
    if entries == 0 then return '' end
    local size = clock_bytes + sum_bytes
    local start, bytes = place_of(0), entries * size
    local ring_end = HEAD_SIZE + slots * size
    local ring = call('GETRANGE', key, start, min(start + bytes, ring_end) - 1)
    if #ring < bytes then
      ring = ring .. call('GETRANGE', key, HEAD_SIZE, HEAD_SIZE + bytes - #ring - 1)
    end
    return ring
  end

  -- Writes the ring anew, with room for more entries and for the numbers of this quota.
  local function rebuild(new_clock_bytes, new_sum_bytes)
    local new_slots = more_slots(entries)
    local ring = all_slots()
    if new_clock_bytes ~= clock_bytes or new_sum_bytes ~= sum_bytes then
      local wide, at = {}, 1
      local old = slot_format(clock_bytes, sum_bytes)
      local new = slot_format(new_clock_bytes, new_sum_bytes)
      for i = 1, entries do
        local c, s
        c, s, at = unpack_from(old, ring, at)
        c = clock - (clock - c) % 256 ^ clock_bytes
        s = before + (s - before) % 256 ^ sum_bytes
        wide[i] = pack(new, c % 256 ^ new_clock_bytes, s % 256 ^ new_sum_bytes)
      end
      ring = table.concat(wide)
    end
    call('SET', key, string.rep('\0', HEAD_SIZE) .. ring
      .. string.rep('\0', (new_slots - entries) * (new_clock_bytes + new_sum_bytes)))
    old_end = nil
    first, slots, clock_bytes, sum_bytes = 0, new_slots, new_clock_bytes, new_sum_bytes
  end

  -- Makes room for a newer newest entry: the one there is goes into the ring.
  local function shift()
    local for_clock, for_sum = bytes_for(period), bytes_for(limit + 1)
    if entries == slots or clock_bytes < for_clock or sum_bytes < for_sum then
      rebuild(max(for_clock, clock_bytes), max(for_sum, sum_bytes))
    end
    call('SETRANGE', key, place_of(entries), pack(slot_format(clock_bytes, sum_bytes),
      clock % 256 ^ clock_bytes, sum % 256 ^ sum_bytes))
    entries = entries + 1
  end

  local function charge(cost)
    adopt()
    if newest ~= time then
      shift()
      clock = clock + time - newest
      newest = time
    end
    sum = sum + cost
    if sum > MAX_EXACT / 2 then
      -- Sums only count from `before`; slots hold them modulo their size.
      local base = before - before % 256 ^ sum_bytes
      before, sum = before - base, sum - base
    end
    changed = true
  end

  local function decide(cost, effect)
    local used = sum - before - left
    local status, retry_after = ALLOWED, -1
    if cost > limit then
      status = NEVER
    elseif cost > 0 and used + cost > limit then
      local _, frees_age = find(gone, math.huge, left + used + cost - limit)
      status = REFUSED
      -- A ring that was tampered with may say that it was long ago.
      retry_after = max(newest - frees_age - set_back + new_period - now, 1)
    else
      used = used + cost
    end
    local reset_after = 0
    if status == ALLOWED and cost > 0 then
      reset_after = time + new_period - now
      if effect == COMMIT then charge(cost) end
    else
      if used > 0 then reset_after = newest - set_back + new_period - now end
      if moved and settles(effect, cost, status) then
        adopt()
        changed = true
      end
    end
    return status, max(limit - used, 0), retry_after, reset_after, 0
  end

  local function refund(back)
    if not stored then return end
    changed = true
    local kept = sum - before - left - back
    adopt()
    if kept <= 0 then
      sum = before
      return
    end
    -- The newest entries go; the first that reaches what is kept becomes the newest.
    local last, age = find(0, math.huge, kept)
    sum, entries = before + kept, last
    newest, clock = newest - age, clock - age
  end

  local function save()
    if not changed then return nil end
    if sum == before then return false end
    return pack(HEAD, KIND, period, clock_bytes, sum_bytes, slots, first, entries, before, oldest,
      newest, clock, sum), newest + period, old_end
  end

  local function has_ring(head)
    return unpack_from('>I4', head, SLOTS_AT) > 0
  end

  return {
    load = load, decide = decide, refund = refund, save = save,
    has_ring = has_ring,
  }
end

return usual, machine, SHORT

-- Sliding log: exact; no window of `period` holds more than `limit` units.
-- Twin: src/algorithm/sliding_log.rs, which has the reasons.
--
-- The log is one string: a head, and a ring of slots of a fixed size. So one more request costs
-- one slot, and the slot that decides is found without reading the others. The newest entry is
-- in the head: requests of one microsecond never touch the ring. A log that is so short that it
-- comes along with the head is written whole.
--
-- head     76 bytes, or false for an untouched budget:
--            B  kind   I6 period    us for which an entry is kept: the longest period that asks
--                      I6 most      the largest limit that asks
--                      I7 asks      until when that period needs its entries, in us
--                      I7 since     time of the first charge that can be taken back
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
local HEAD, HEAD_SIZE = '>BI6I6I7I7BBI4I4I4I7I7i7I7I7', 76
local SLOTS_AT = 30

-- What is read of a log at first.
local SHORT = 256

-- How many newer entries a refund changes at most.
local MAX_CHANGED = 1024

local limit, new_period = ...

-- Bytes that hold any number below `n`.
local function bytes_for(n)
  local bytes = 1
  while n > 256 ^ bytes do bytes = bytes + 1 end
  return bytes
end

-- How many slots a ring gets that has no room for one entry more. Of one quota there are no more
-- entries than its limit; what several leave is less than twice the largest.
local function more_slots(entries, most)
  if entries >= most then most = 2 * most end
  return max(entries + 1, min(most, max(8, entries * 2)))
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
local function makes_sense(kind, period, most, asks, clock_bytes, sum_bytes, slots, first, entries,
  before, oldest, newest, clock, sum)
  if kind ~= KIND or period == 0 or period > MAX_REFILL or most == 0 or asks > MAX_EXACT
    or newest > MAX_EXACT or sum > MAX_EXACT
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
  return pack(HEAD, KIND, new_period, limit, now + new_period, now, 0, 0, 0, 0, 0, 0, 0, now, 0,
    cost), limit - cost, new_period, 0
end

local function usual(value, cost)
  if not value then return usual_first(cost) end
  -- What is as long as all that was read may go on.
  if #value < HEAD_SIZE or #value >= SHORT then return nil end
  local kind, period, most, asks, since, clock_bytes, sum_bytes, slots, first, entries, before,
    oldest, newest, clock, sum = unpack_from(HEAD, value)
  local size = clock_bytes + sum_bytes
  if period ~= new_period or newest > now or #value ~= HEAD_SIZE + slots * size
    or not makes_sense(kind, period, most, asks, clock_bytes, sum_bytes, slots, first, entries,
      before, oldest, newest, clock, sum) then
    return nil
  end
  if now >= newest + period then return usual_first(cost) end
  if most < limit or asks <= now then return nil end

  if slots == 0 and newest ~= now then
    clock_bytes, sum_bytes = bytes_for(period), bytes_for(2 * most)
  end
  size = clock_bytes + sum_bytes
  local slot = slot_format(clock_bytes, sum_bytes)
  local clocks, sums = 256 ^ clock_bytes, 256 ^ sum_bytes
  if clocks < period or sums < 2 * most then return nil end
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
      slots = more_slots(entries, most)
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
  return pack(HEAD, KIND, period, most, now + period, since, clock_bytes, sum_bytes, slots, first,
    entries, before, oldest, newest, clock, sum + cost) .. ring, limit - used, period, 0, old_end
end

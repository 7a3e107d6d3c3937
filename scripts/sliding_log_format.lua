-- The format of a sliding log, which sliding_log.lua and sliding_log_budget.lua share.
--
-- The log is one string: a head, and a ring of slots of a fixed size. So one more request costs one
-- slot, and the deciding slot is found without reading the others. The newest entry is in the head:
-- requests of one microsecond never touch the ring. A log that is short enough to be read with its
-- head is written whole.
--
-- head     69 bytes:
--            B  kind   I6 period    us for which an entry is kept: the longest period of a check
--                      I6 most      the largest limit of a check
--                      I7 since     time of the first charge that can be refunded
--                      B, B         bytes of a slot's clock and of its sum
--                      I4 slots     of the ring     I4 first   slot of the oldest entry
--                      I4 entries   in the ring
--                      I7 before    sum before the oldest entry
--                      I7 oldest    clock of the oldest entry, be it in the ring or the newest
--                      I7 newest    time of the newest entry, in us since the epoch
--                      I7 clock     clock of the newest entry
--                      I7 sum       units up to and including the newest entry
-- slot     clock and sum of an entry, oldest first, both modulo their size. A clock only says how
--          much older an entry is than the newest: setting the newest's time sets all.
local KIND = 3
local MAX_EXACT = 2 ^ 53 - 1
-- More us than any period lasts: ten leap years.
local MAX_PERIOD = 10 * 366 * 86400 * 1000000
local HEAD, HEAD_SIZE = '>BI6I6I7BBI4I4I4I7I7i7I7I7', 69

-- How many bytes of a log are read at first.
local SHORT = 256

-- Bytes that hold any number below `n`.
local function bytes_for(n)
  local bytes = 1
  while n > 256 ^ bytes do bytes = bytes + 1 end
  return bytes
end

-- How many slots a full ring gets for one more entry. One quota has no more entries than its limit;
-- several quotas have fewer than twice the largest limit.
local function more_slots(entries, most)
  if entries >= most then most = 2 * most end
  return math.max(entries + 1, math.min(most, math.max(8, entries * 2)))
end

-- The formats of slots, by the bytes of their numbers.
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

-- Whether a head of these numbers can have been stored.
local function is_valid(kind, period, most, clock_bytes, sum_bytes, slots, first, entries,
  before, oldest, newest, clock, sum)
  if kind ~= KIND or period == 0 or period > MAX_PERIOD or most == 0
    or newest > MAX_EXACT or sum > MAX_EXACT
    or before > sum or oldest > clock or clock > MAX_EXACT
    or (entries == 0 and oldest ~= clock) then
    return false
  end
  if slots == 0 then return entries == 0 and clock_bytes == 0 and sum_bytes == 0 end
  return clock_bytes >= 1 and clock_bytes <= 7 and sum_bytes >= 1 and sum_bytes <= 7
    and first < slots and entries <= slots
end

return KIND, HEAD, HEAD_SIZE, SHORT, bytes_for, more_slots, slot_format, is_valid

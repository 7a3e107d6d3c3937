-- Sliding log: exact; no window of `period` holds more than `limit` units.
-- Twin: src/algorithm/sliding_log.rs, which has the reasons.
--
-- value    see sliding_log_format.lua
-- limit    limit, period
local KIND, HEAD, HEAD_SIZE, SHORT, bytes_for, more_slots, slot_format, is_valid =
  include('sliding_log_format')
-- Sums stay below it: see sliding_log_budget.lua.
local MAX_SUM = (2 ^ 53 - 1) / 2

-- Starts a log of one entry.
local function charge_first(cost, now, limit, new_period)
  if cost > limit then return nil end
  return struct.pack(HEAD, KIND, new_period, limit, now, 0, 0, 0, 0, 0, 0, 0, now,
    0, cost), limit - cost, new_period, 0, nil, 0
end

-- The fast path: see bucket.lua.
local function charge(value, cost, now, limit, new_period)
  if not value then return charge_first(cost, now, limit, new_period) end
  -- A value as long as what is read at first may be longer.
  if #value < HEAD_SIZE or #value >= SHORT then return nil end
  local kind, period, most, since, clock_bytes, sum_bytes, slots, first, entries, before,
    oldest, newest, clock, sum = struct.unpack(HEAD, value)
  local size = clock_bytes + sum_bytes
  if period ~= new_period or newest > now or #value ~= HEAD_SIZE + slots * size
    or not is_valid(kind, period, most, clock_bytes, sum_bytes, slots, first, entries,
      before, oldest, newest, clock, sum) then
    return nil
  end
  if now >= newest + period then return charge_first(cost, now, limit, new_period) end
  if most < limit then return nil end

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
    local _, slot_sum = struct.unpack(slot, value, HEAD_SIZE + first * size + 1)
    left = math.min((slot_sum - before) % sums, sum - before)
    first, entries = (first + 1) % slots, entries - 1
    oldest = clock
    if entries > 0 then
      oldest = clock - (clock - struct.unpack(slot, value, HEAD_SIZE + first * size + 1)) % clocks
    end
  end
  before = before + left
  local used = sum - before + cost
  if used > limit or sum + cost > MAX_SUM then return nil end

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
    ring = string.sub(ring, 1, place) .. struct.pack(slot, clock % clocks, sum % sums)
      .. string.sub(ring, place + size + 1)
    entries, clock, newest = entries + 1, clock + now - newest, now
  end
  return struct.pack(HEAD, KIND, period, most, since, clock_bytes, sum_bytes, slots,
    first, entries, before, oldest, newest, clock, sum + cost) .. ring,
    limit - used, period, 0, old_end, period
end

return charge, SHORT

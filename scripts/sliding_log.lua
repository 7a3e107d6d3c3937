-- Sliding log: exact; no window of `period` holds more than `limit` units.
-- Twin: src/algorithm/sliding_log.rs, which has the reasons.
--
-- The log is one string: a head, and a ring of slots of a fixed size. So one more request costs
-- one slot, and the slot that decides is found without reading the others. The newest entry is
-- in the head: requests of one microsecond never touch the ring.
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

-- Bytes that hold any number below `n`.
local function bytes_for(n)
  local bytes = 1
  while n > 256 ^ bytes do bytes = bytes + 1 end
  return bytes
end

-- Whether a head that was read is whole, and its ring there.
local function is_whole(head, key)
  if #head ~= HEAD_SIZE then return false end
  local _, period, clock_bytes, sum_bytes, slots, first, entries, before, oldest, newest, clock, sum =
    struct.unpack(HEAD, head)
  if period == 0 or period > MAX_REFILL or newest > MAX_EXACT or sum > MAX_EXACT or before > sum
    or oldest > clock or clock > MAX_EXACT or (entries == 0 and oldest ~= clock) then
    return false
  end
  if slots == 0 then return entries == 0 and clock_bytes == 0 and sum_bytes == 0 end
  return clock_bytes >= 1 and clock_bytes <= 7 and sum_bytes >= 1 and sum_bytes <= 7
    and first < slots and entries <= slots
    and redis.call('STRLEN', key) == HEAD_SIZE + slots * (clock_bytes + sum_bytes)
end

local function unpack_head(value)
  local _, period, clock_bytes, sum_bytes, slots, first, entries, before, oldest, newest, clock, sum =
    struct.unpack(HEAD, value)
  return {
    period = period, clock_bytes = clock_bytes, sum_bytes = sum_bytes, slots = slots, first = first,
    entries = entries, before = before, oldest = oldest, newest = newest, clock = clock, sum = sum,
  }
end

local function pack_head(log)
  return struct.pack(HEAD, KIND, log.period, log.clock_bytes, log.sum_bytes, log.slots,
    log.first, log.entries, log.before, log.oldest, log.newest, log.clock, log.sum),
    log.newest + log.period
end

-- The place of the i-th oldest entry's slot in the string.
local function place_of(log, i)
  return HEAD_SIZE + (log.first + i) % log.slots * (log.clock_bytes + log.sum_bytes)
end

-- Of the i-th oldest entry: how much older than the newest it is, and the units since `before`.
local function entry(log, key, i)
  if i == log.entries then return 0, log.sum - log.before end
  local place = place_of(log, i)
  local clock, sum = struct.unpack('>I' .. log.clock_bytes .. 'I' .. log.sum_bytes,
    redis.call('GETRANGE', key, place, place + log.clock_bytes + log.sum_bytes - 1))
  return (log.clock - clock) % 256 ^ log.clock_bytes,
    min((sum - log.before) % 256 ^ log.sum_bytes, log.sum - log.before)
end

-- The first entry, from `from` on, that is less than `age` older than the newest and has at least
-- `units` up to it, or the newest. Most often it is one of the next, so the steps start small.
local function find(log, key, from, age, units)
  local low, high, step = from - 1, log.entries, 1
  while low + 1 < high do
    local i = min(low + step, high - 1)
    if step == 0 then i = floor((low + high) / 2) end
    local entry_age, entry_units = entry(log, key, i)
    if entry_age < age and entry_units >= units then
      high, step = i, 0
    else
      low, step = i, step * 2
    end
  end
  return high
end

-- The log at `now` under this quota: log (nil: nothing counts), time, set_back, gone (how many of
-- the oldest have left), left (units they had), and whether it was made to last longer.
local function resume(value, period, now, key)
  local log = value and unpack_head(value)
  if not log or now >= log.newest + log.period then return nil, now, 0, 0, 0, false end
  local set_back = 0
  if log.newest - now > period then set_back = log.newest - now end
  local time = max(now, log.newest - set_back)
  local age = log.newest - (time + set_back - min(log.period, period))
  if age <= 0 then return nil, now, 0, 0, 0, false end
  local moved = set_back > 0 or log.period < period
  local gone, left = 0, 0
  if log.clock - log.oldest >= age then
    gone = find(log, key, 1, age, 0)
    left = select(2, entry(log, key, gone - 1))
  end
  return log, time, set_back, gone, left, moved
end

-- Carries out what resume found.
local function adopt(log, key, period, set_back, gone, left)
  if gone > 0 then
    local age = entry(log, key, gone)
    log.oldest = log.clock - age
    log.first = (log.first + gone) % log.slots
    log.entries = log.entries - gone
    log.before = log.before + left
  end
  log.newest = log.newest - set_back
  log.period = period
end

-- The slots of the ring, oldest first, as one string.
local function all_slots(log, key)
  if log.entries == 0 then return '' end
  local size = log.clock_bytes + log.sum_bytes
  local start, length = place_of(log, 0), log.entries * size
  local ring_end = HEAD_SIZE + log.slots * size
  local slots = redis.call('GETRANGE', key, start, min(start + length, ring_end) - 1)
  if #slots < length then
    slots = slots .. redis.call('GETRANGE', key, HEAD_SIZE, HEAD_SIZE + length - #slots - 1)
  end
  return slots
end

-- Writes the ring anew, with room for more entries and for the numbers of this quota.
local function rebuild(log, key, limit, clock_bytes, sum_bytes)
  local slots = max(log.entries + 1, min(limit, max(8, log.entries * 2)))
  local ring = all_slots(log, key)
  if clock_bytes ~= log.clock_bytes or sum_bytes ~= log.sum_bytes then
    local wide, at = {}, 1
    local old, new = '>I' .. log.clock_bytes .. 'I' .. log.sum_bytes, '>I' .. clock_bytes .. 'I' .. sum_bytes
    for i = 1, log.entries do
      local clock, sum
      clock, sum, at = struct.unpack(old, ring, at)
      clock = log.clock - (log.clock - clock) % 256 ^ log.clock_bytes
      sum = log.before + (sum - log.before) % 256 ^ log.sum_bytes
      wide[i] = struct.pack(new, clock % 256 ^ clock_bytes, sum % 256 ^ sum_bytes)
    end
    ring = table.concat(wide)
  end
  redis.call('SET', key, string.rep('\0', HEAD_SIZE) .. ring
    .. string.rep('\0', (slots - log.entries) * (clock_bytes + sum_bytes)))
  log.first, log.slots, log.clock_bytes, log.sum_bytes = 0, slots, clock_bytes, sum_bytes
end

-- Makes room for a newer newest entry: the one there is goes into the ring.
local function shift(log, key, limit)
  local clock_bytes, sum_bytes = bytes_for(log.period), bytes_for(limit + 1)
  if log.entries == log.slots or log.clock_bytes < clock_bytes or log.sum_bytes < sum_bytes then
    rebuild(log, key, limit, max(clock_bytes, log.clock_bytes), max(sum_bytes, log.sum_bytes))
  end
  redis.call('SETRANGE', key, place_of(log, log.entries),
    struct.pack('>I' .. log.clock_bytes .. 'I' .. log.sum_bytes,
      log.clock % 256 ^ log.clock_bytes, log.sum % 256 ^ log.sum_bytes))
  log.entries = log.entries + 1
end

local function decide(value, limit, period, _, _, now, cost, effect, key)
  local log, time, set_back, gone, left, moved = resume(value, period, now, key)
  local used = 0
  if log then used = log.sum - log.before - left end
  local status, retry_after = ALLOWED, -1
  if cost > limit then
    status = NEVER
  elseif cost > 0 and used + cost > limit then
    local frees = find(log, key, gone, math.huge, left + used + cost - limit)
    status = REFUSED
    -- A ring that was tampered with may say that it was long ago.
    retry_after = max(log.newest - entry(log, key, frees) - set_back + period - now, 1)
  else
    used = used + cost
  end
  local charges = status == ALLOWED and cost > 0
  local reset_after = 0
  if charges then
    reset_after = time + period - now
  elseif used > 0 then
    reset_after = log.newest - set_back + period - now
  end
  local remaining = max(limit - used, 0)
  if not ((charges and effect == COMMIT) or (moved and not charges and settles(effect, cost, status))) then
    return status, remaining, retry_after, reset_after, 0
  end

  if not log then
    log = {
      period = period, clock_bytes = 0, sum_bytes = 0, slots = 0, first = 0, entries = 0,
      before = 0, oldest = 0, newest = time, clock = 0, sum = 0,
    }
  else
    adopt(log, key, period, set_back, gone, left)
  end
  if charges then
    if log.newest ~= time then
      shift(log, key, limit)
      log.clock = log.clock + time - log.newest
      log.newest = time
    end
    log.sum = log.sum + cost
    if log.sum > MAX_EXACT / 2 then
      -- Sums only count from `before`; slots hold them modulo their size.
      local base = log.before - log.before % 256 ^ log.sum_bytes
      log.before, log.sum = log.before - base, log.sum - base
    end
  end
  return status, remaining, retry_after, reset_after, 0, pack_head(log)
end

local function refund(value, _, period, _, _, now, back, key)
  local log, _, set_back, gone, left = resume(value, period, now, key)
  if not log then return false end
  local kept = log.sum - log.before - left - back
  if kept <= 0 then return false end
  adopt(log, key, period, set_back, gone, left)
  -- The newest entries go; the first that reaches what is kept becomes the newest.
  local newest = find(log, key, 0, math.huge, kept)
  local age = entry(log, key, newest)
  log.sum, log.entries = log.before + kept, newest
  log.newest, log.clock = log.newest - age, log.clock - age
  return pack_head(log)
end

local function has_ring(head)
  return struct.unpack('>I4', head, SLOTS_AT) > 0
end

return KIND, is_whole, decide, refund, HEAD_SIZE, has_ring

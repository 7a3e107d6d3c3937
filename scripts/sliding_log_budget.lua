-- The slow path of a sliding log: see slow_path.lua.
-- Twin: src/algorithm/sliding_log.rs, which has the reasons.
local now, limit, new_period = ...
local KIND, HEAD, HEAD_SIZE, SHORT, bytes_for, more_slots, slot_format, is_valid =
  include('sliding_log_format')
local DENIED, ALLOWED, EXCEEDS_CAPACITY, UNREADABLE = 0, 1, 2, 4
-- How many newer entries a refund changes at most.
local MAX_CHANGED = 1024
local floor, max, min = math.floor, math.max, math.min
local MAX_SUM = (2 ^ 53 - 1) / 2
-- The largest limit.
local MAX_LOGGED = 2 ^ 47 - 1

-- Where the value begins in its key, and where its ring does.
local key, start, ring_start
-- The log, as stored.
local period, most, since, clock_bytes, sum_bytes, slots, first, entries, before, oldest,
  newest, clock, sum
-- Whether there is a log; the time to decide by; how far the clock was set back; the number of the
-- oldest entries that have left for this quota, and their units.
local stored, time, set_back, gone, left
-- The longest period and the largest limit after this check, and whether a denied check has to
-- store them or the time.
local next_period, next_most, moved
-- Whether the head has to be stored again; until when the stored value counts, if that is known,
-- and how long it lasts after its last charge.
local changed, old_end, lasted

-- Reads a head. Returns whether it is valid and its ring is complete.
local function unpack_head(value)
  if #value < HEAD_SIZE then return false end
  local kind
  kind, period, most, since, clock_bytes, sum_bytes, slots, first, entries, before, oldest,
    newest, clock, sum = struct.unpack(HEAD, value)
  local length = HEAD_SIZE + slots * (clock_bytes + sum_bytes)
  return is_valid(kind, period, most, clock_bytes, sum_bytes, slots, first, entries,
      before, oldest, newest, clock, sum)
    and ((#value == length and length < SHORT) or redis.call('STRLEN', key) == start + length)
end

-- The place of the i-th oldest entry's slot in the string.
local function place_of(i)
  return ring_start + (first + i) % slots * (clock_bytes + sum_bytes)
end

-- Of the i-th oldest entry: how much older than the newest it is, and the units since `before`.
local function entry(i)
  if i == entries then return 0, sum - before end
  local place = place_of(i)
  local slot_clock, slot_sum = struct.unpack(slot_format(clock_bytes, sum_bytes),
    redis.call('GETRANGE', key, place, place + clock_bytes + sum_bytes - 1))
  return (clock - slot_clock) % 256 ^ clock_bytes,
    min((slot_sum - before) % 256 ^ sum_bytes, sum - before)
end

-- The units up to the i-th entry, without it.
local function units_before(i)
  if i == 0 then return 0 end
  if i > entries then return sum - before end
  return select(2, entry(i - 1))
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

-- How many entries are at least `age` older than the newest, and how much older the next one is.
local function count_older(age)
  if clock - oldest < age then return 0, clock - oldest end
  if age <= 0 then return entries + 1, 0 end
  return find(1, age, 0)
end

local function start_anew()
  period, most, since = new_period, limit, now
  clock_bytes, sum_bytes, slots, first, entries = 0, 0, 0, 0, 0
  before, oldest, newest, clock, sum = 0, 0, now, 0, 0
  time, set_back, gone, left, moved = now, 0, 0, 0, false
  next_period, next_most = period, most
end

local function look()
  time = max(now, newest - set_back)
  gone = count_older(newest - (time + set_back - min(period, new_period)))
  left = units_before(gone)

  next_period, next_most = max(period, new_period), max(most, limit)
  moved = set_back > 0 or new_period > period or limit > most
end

local function load(value, its_key, its_start)
  key, stored, changed, old_end = its_key, false, false, nil
  start, ring_start = its_start or 0, HEAD_SIZE + (its_start or 0)
  if not value then
    start_anew()
    return 0
  end
  if not unpack_head(value) then
    start_anew()
    return UNREADABLE
  end
  if now >= newest + period then
    start_anew()
    return 0
  end
  stored, set_back, old_end, lasted = true, 0, newest + period, period
  if newest - now > new_period then set_back = newest - now end
  look()
  return 0
end

-- Forgets the oldest entries; the next one is `age` older than the newest.
local function forget(count, age)
  if count == 0 then return end
  local units = units_before(count)
  if count > entries then
    first, entries, oldest = 0, 0, clock
  else
    first, entries, oldest = (first + count) % slots, entries - count, clock - age
  end
  before = before + units
  gone, left = max(gone - count, 0), max(left - units, 0)
end

-- Applies what `look` found, and forgets the entries that no quota needs.
local function adopt()
  if set_back > 0 then since = newest + 1 end
  newest = newest - set_back
  local age = newest - (time - period)
  period, most = next_period, next_most
  set_back, moved = 0, false
  forget(count_older(age))
  local surplus = sum - before - most
  if surplus > 0 then
    local leaving, next_age = find(0, math.huge, surplus + 1)
    -- They still count. A refund of the units that stand in for them would expose that.
    if leaving > 0 then since = max(since, newest + 1) end
    forget(leaving, next_age)
  end
end

-- The slots of the ring from the i-th oldest entry on, as one string.
local function slots_from(i)
  if i == entries then return '' end
  local size = clock_bytes + sum_bytes
  local from, bytes = place_of(i), (entries - i) * size
  local ring_end = ring_start + slots * size
  local ring = redis.call('GETRANGE', key, from, min(from + bytes, ring_end) - 1)
  if #ring < bytes then
    ring = ring .. redis.call('GETRANGE', key, ring_start, ring_start + bytes - #ring - 1)
  end
  return ring
end

-- Writes a new ring, with room for more entries and for the numbers of this quota.
local function rebuild(new_clock_bytes, new_sum_bytes)
  local new_slots = more_slots(entries, most)
  local ring = slots_from(0)
  if new_clock_bytes ~= clock_bytes or new_sum_bytes ~= sum_bytes then
    local wide, at = {}, 1
    local old = slot_format(clock_bytes, sum_bytes)
    local new = slot_format(new_clock_bytes, new_sum_bytes)
    for i = 1, entries do
      local c, s
      c, s, at = struct.unpack(old, ring, at)
      c = clock - (clock - c) % 256 ^ clock_bytes
      s = before + (s - before) % 256 ^ sum_bytes
      wide[i] = struct.pack(new, c % 256 ^ new_clock_bytes, s % 256 ^ new_sum_bytes)
    end
    ring = table.concat(wide)
  end
  redis.call('SET', key, string.rep('\0', ring_start) .. ring
    .. string.rep('\0', (new_slots - entries) * (new_clock_bytes + new_sum_bytes)))
  old_end = nil
  first, slots, clock_bytes, sum_bytes = 0, new_slots, new_clock_bytes, new_sum_bytes
end

-- Makes room for a new newest entry: moves the present one into the ring.
local function shift()
  local for_clock, for_sum = bytes_for(period), bytes_for(2 * most)
  if entries == slots or clock_bytes < for_clock or sum_bytes < for_sum then
    rebuild(max(for_clock, clock_bytes), max(for_sum, sum_bytes))
  end
  redis.call('SETRANGE', key, place_of(entries), struct.pack(slot_format(clock_bytes, sum_bytes),
    clock % 256 ^ clock_bytes, sum % 256 ^ sum_bytes))
  entries = entries + 1
end

local function commit(cost)
  adopt()
  if newest ~= time then
    local was_empty = sum == before
    if not was_empty then shift() end
    clock = clock + time - newest
    newest = time
    if was_empty then oldest = clock end
  end
  sum = sum + cost
  if sum > MAX_SUM then
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
    status = EXCEEDS_CAPACITY
  elseif cost > 0 and used + cost > limit then
    local _, frees_age = find(gone, math.huge, left + used + cost - limit)
    status = DENIED
    -- A ring that was tampered with may say that it was long ago.
    retry_after = max(newest - frees_age - set_back + new_period - now, 1)
  else
    used = used + cost
  end
  local reset_after = 0
  if status == ALLOWED and cost > 0 then
    reset_after = time + new_period - now
    if effect == 'commit' then commit(cost) end
  else
    if used > 0 then reset_after = newest - set_back + new_period - now end
    if moved and effect ~= 'dry' and status ~= EXCEEDS_CAPACITY then
      adopt()
      changed = true
    end
  end
  return status, max(limit - used, 0), retry_after, reset_after, 0
end

local function overdraw(cost, max_debt)
  local used = sum - before - left
  local units = min(cost, min(limit + max_debt, MAX_LOGGED) - used)
  if units <= 0 then return end
  -- As a check under so large a limit: otherwise entries that still count would leave.
  next_most = max(next_most, used + units)
  commit(units)
end

-- Takes units out of the sums in the ring, from the i-th oldest entry on.
local function lower(i, units)
  local ring, at, lowered = slots_from(i), 1, {}
  local format, sums = slot_format(clock_bytes, sum_bytes), 256 ^ sum_bytes
  for slot = i, entries - 1 do
    local c, s
    c, s, at = struct.unpack(format, ring, at)
    lowered[slot - i + 1] = struct.pack(format, c, (s - units) % sums)
  end
  -- The ring may go on at its start.
  local whole = slots - (first + i) % slots
  redis.call('SETRANGE', key, place_of(i), table.concat(lowered, '', 1, min(whole, #lowered)))
  if #lowered > whole then
    redis.call('SETRANGE', key, ring_start, table.concat(lowered, '', whole + 1))
  end
end

local function refund(back, charged_at)
  if not stored or set_back > 0 or charged_at < since or charged_at > newest then return end
  local i, age = count_older(newest - charged_at + 1)
  if newest - age ~= charged_at then return end
  local units = min(back, select(2, entry(i)) - units_before(i))
  if units <= 0 then return end
  changed = true
  if entries - i < MAX_CHANGED then
    if i < entries then lower(i, units) end
    sum = sum - units
  else
    local goal = before + units
    forget(find(0, math.huge, units + 1))
    before = goal
  end
  if sum > before then
    -- The newest entry must not be empty: the log would outlive its other entries.
    local last, last_age = find(0, math.huge, sum - before)
    newest, clock, entries = newest - last_age, clock - last_age, last
  end
end

local function save()
  if not changed then return nil end
  if sum == before then return false end
  return struct.pack(HEAD, KIND, period, most, since, clock_bytes, sum_bytes, slots, first,
    entries, before, oldest, newest, clock, sum), newest + period, period, old_end, lasted,
    slots > 0
end

return {load = load, decide = decide, overdraw = overdraw, refund = refund, save = save}

-- Permits of concurrency limits: their holders, and the queue.
-- Twin: src/algorithm/permits.rs, which has the reasons.
--
-- A limit has one number: the most permits of a key.
-- claim    c8 holder, I7 granted, I7 released, I4 waiting, I4 at_once, I7 lease in us
-- value    B  kind   I2 number of holders   I7 permits in use   I7 lower bound of the first expiry
--          I7 time of the last write   I7 upper bound of the last expiry; for each holder: c8
--          holder, I7 granted, I7 released, I7 expires_at, I7 lease, I4 places in the queue; then
--          rows of the queue, each of one holder: c8 holder, I4 places
--
-- returns  a function (key, value, limit, at): applies the claim at `at` of the request to a key
--          with this value (false: none). It returns how many permits were granted to the holder
--          of which it does not know yet, 0 or UNREADABLE, the number of holders, and the end of
--          the claim
local now, grace, request, write = ...
local UNREADABLE = 4
local CLAIM = '>c8I7I7I4I4I7'
local KIND, HEAD, HEAD_SIZE = 9, '>BI2I7I7I7I7', 31
local HOLDER, HOLDER_SIZE, PLACE, PLACE_SIZE = '>c8I7I7I7I7I4', 40, '>c8I4', 12
-- A value with one holder, and no queue.
local ALONE = '>BI2I7I7I7I7c8I7I7I7I7I4'
-- The expiry and the lease of a holder, and their place in it.
local LEASE, LEASE_AT = '>I7I7', 22
-- A queue of so many rows does not get more of a holder that has one.
local MOST_ROWS = 64
-- What no holder has: see src/algorithm/permits.rs and src/store/redis/wire.rs.
local MAX_HELD, MAX_LEASE = 1000000, 600 * 1000000
local max, min = math.max, math.min

local function holder_of(id, granted, released, expires_at, lease)
  return {
    id = id, granted = granted, released = released, expires_at = expires_at, lease = lease,
  }
end

-- Whether no holder has such numbers.
local function is_impossible(granted, released, lease)
  return granted - released > MAX_HELD or granted < released or lease > MAX_LEASE
end

-- The holders and the queue of a value; nil if it is unreadable.
local function unpack_holders(value)
  if #value < HEAD_SIZE then return nil end
  local kind, count, _, _, _, _, next = struct.unpack(HEAD, value)
  local rest = #value - HEAD_SIZE - count * HOLDER_SIZE
  if kind ~= KIND or rest < 0 or rest % PLACE_SIZE ~= 0 then return nil end
  local holders, queue = {}, {}
  for i = 1, count do
    local id, granted, released, expires_at, lease, _
    id, granted, released, expires_at, lease, _, next = struct.unpack(HOLDER, value, next)
    if is_impossible(granted, released, lease) then return nil end
    holders[i] = holder_of(id, granted, released, expires_at, lease)
  end
  for i = 1, rest / PLACE_SIZE do
    local id, places
    id, places, next = struct.unpack(PLACE, value, next)
    queue[i] = {id = id, count = places}
  end
  return holders, queue
end

-- The value, and when it expires.
local function pack_holders(holders, queue)
  local parts, queued, in_use, first, last = {''}, {}, 0, math.huge, 0
  for i = 1, #queue do
    local it = queue[i]
    queued[it.id] = (queued[it.id] or 0) + it.count
  end
  for i = 1, #holders do
    local it = holders[i]
    in_use = in_use + it.granted - it.released
    first, last = min(first, it.expires_at), max(last, it.expires_at)
    parts[i + 1] = struct.pack(
      HOLDER, it.id, it.granted, it.released, it.expires_at, it.lease, queued[it.id] or 0
    )
  end
  for i = 1, #queue do
    parts[#parts + 1] = struct.pack(PLACE, queue[i].id, queue[i].count)
  end
  parts[1] = struct.pack(HEAD, KIND, #holders, in_use, first, now, last)
  return table.concat(parts), last
end

-- Removes what does not pass `is_kept`, in place.
local function retain(list, is_kept)
  local kept = 0
  for i = 1, #list do
    local it = list[i]
    list[i] = nil
    if is_kept(it) then
      kept = kept + 1
      list[kept] = it
    end
  end
end

-- The slow path: applies a claim over all holders and the queue. Returns what was granted so far,
-- 0 or UNREADABLE, and the number of holders.
local function claim(key, value, id, granted, released, waiting, at_once, limit, lease)
  local holders, queue, unreadable = {}, {}, 0
  if value then
    holders, queue = unpack_holders(value)
    if not holders then holders, queue, unreadable = {}, {}, UNREADABLE end
  end

  local by_id = {}
  retain(holders, function(it)
    it.expires_at = min(it.expires_at, now + it.lease)
    if it.expires_at <= now then return false end
    by_id[it.id] = it
    return true
  end)
  retain(queue, function(it) return by_id[it.id] end)

  local own = by_id[id]
  if not own then
    own = holder_of(id, 0, 0, 0, lease)
    holders[#holders + 1], by_id[id] = own, own
  end
  own.granted = max(own.granted, granted)
  own.released = min(max(own.released, released), own.granted)
  own.expires_at, own.lease = now + lease, lease

  -- The places that it still needs.
  local wanted, queued = max(granted + waiting - own.granted, 0), 0
  for i = 1, #queue do
    if queue[i].id == id then queued = queued + queue[i].count end
  end
  if wanted > queued then
    local back = queue[#queue]
    if #queue >= MOST_ROWS and queued > 0 then
      for i = #queue, 1, -1 do
        back = queue[i]
        if back.id == id then break end
      end
    end
    if back and back.id == id then
      back.count = back.count + wanted - queued
    else
      queue[#queue + 1] = {id = id, count = wanted - queued}
    end
  end
  local fewer = max(queued - wanted, 0)
  for i = #queue, 1, -1 do
    if queue[i].id == id then
      local removed = min(fewer, queue[i].count)
      queue[i].count, fewer = queue[i].count - removed, fewer - removed
    end
  end

  local in_use = 0
  for i = 1, #holders do in_use = in_use + holders[i].granted - holders[i].released end
  local free = max(limit - in_use, 0)
  for i = 1, #queue do
    local it = queue[i]
    local served = min(free, it.count)
    free, it.count = free - served, it.count - served
    by_id[it.id].granted = by_id[it.id].granted + served
  end
  local is_queued = false
  retain(queue, function(it)
    if it.count > 0 and it.id == id then is_queued = true end
    return it.count > 0
  end)
  -- A repeated claim gets nothing more.
  if #queue == 0 then
    own.granted = own.granted + min(free, max(granted + waiting + at_once - own.granted, 0))
  end

  retain(holders, function(it)
    return it ~= own or own.granted > own.released or is_queued
  end)
  if #holders > 0 then
    local packed, last = pack_holders(holders, queue)
    write(key, packed, last, nil, nil, nil, false, now, grace)
  elseif value then
    write(key, false)
  end
  return own.granted, unreadable, #holders
end

-- A claim without waiters, of a key without another holder. Returns what was granted and released
-- so far; nil if it is another claim. It is the slow path above, without its tables.
local function claim_alone(value, id, granted, released, waiting, at_once, limit)
  if waiting > 0 then return nil end
  if value then
    if #value ~= HEAD_SIZE + HOLDER_SIZE then return nil end
    local kind, count, _, _, _, _, holder, had, gave, expires_at, lease =
      struct.unpack(ALONE, value)
    if kind ~= KIND or count ~= 1 or holder ~= id then return nil end
    if is_impossible(had, gave, lease) then return nil end
    if min(expires_at, now + lease) > now then
      at_once = max(granted + at_once - max(had, granted), 0)
      granted, released = max(had, granted), max(gave, released)
    end
  end
  released = min(released, granted)
  return granted + min(max(limit - granted + released, 0), at_once), released
end

-- A claim that changes nothing but the expiry of its holder: all permits are in use, and its places
-- in the queue stay. Waiters poll, so this reads neither the other holders nor the queue. Returns
-- what was granted so far, and the number of holders; nil if it is another claim.
local function claim_in_vain(key, value, id, granted, released, waiting, limit, lease)
  if not value or #value < HEAD_SIZE then return nil end
  local kind, count, in_use, first, written_at, last = struct.unpack(HEAD, value)
  if kind ~= KIND or in_use < limit then return nil end
  if now < written_at or now >= first or first > now + MAX_LEASE then return nil end
  local holders_end = HEAD_SIZE + count * HOLDER_SIZE
  if #value < holders_end then return nil end
  local place = string.find(value, id, HEAD_SIZE + 1, true)
  if not place or place > holders_end then
    -- A holder without permits that does not wait.
    return granted == released and waiting == 0 and granted or nil, count
  end
  if (place - 1 - HEAD_SIZE) % HOLDER_SIZE ~= 0 then return nil end
  local _, had, gave, _, _, queued = struct.unpack(HOLDER, value, place)
  if granted > had or released > gave then return nil end
  if max(granted + waiting - had, 0) ~= queued then return nil end
  local own_end = now + lease
  local ends = max(last, own_end)
  redis.call('SETRANGE', key, place - 1 + LEASE_AT, struct.pack(LEASE, own_end, lease))
  local head = struct.pack(HEAD, kind, count, in_use, min(first, own_end), now, ends)
  write(key, head, ends, nil, last, nil, true, now, grace)
  return had, count
end

return function(key, value, limit, at)
  local id, granted, released, waiting, at_once, lease
  id, granted, released, waiting, at_once, lease, at = struct.unpack(CLAIM, request, at)
  local had, gave = claim_alone(value, id, granted, released, waiting, at_once, limit)
  if had then
    if had > gave then
      local ends = now + lease
      local packed =
        struct.pack(ALONE, KIND, 1, had - gave, ends, now, ends, id, had, gave, ends, lease, 0)
      write(key, packed, ends, nil, nil, nil, false, now, grace)
    elseif value then
      write(key, false)
    end
    return had - granted, 0, had > gave and 1 or 0, at
  end
  local count
  had, count = claim_in_vain(key, value, id, granted, released, waiting, limit, lease)
  if had then return had - granted, 0, count, at end
  local unreadable
  had, unreadable, count = claim(key, value, id, granted, released, waiting, at_once, limit, lease)
  return had - granted, unreadable, count, at
end

-- Decides a batch of checks, in groups: within a group all are charged, or none is.
-- Twin: src/store/batch.rs. The other side of the wire: src/store/redis/wire.rs.
--
-- KEYS     every budget that is touched
-- ARGV[1]  the time in us since the epoch; empty for the server's own. With a time set by hand
--          (tests, dry runs) the server's expiry, which goes by the real one, must not interfere:
--          states are kept for an hour more.
-- ARGV[2]  I2 number of limits, then for each: B algorithm, I7 four numbers, as its file says;
--          then runs, each of one group that is asked several times in a row: B op, B size,
--          I2 times, and for each charge of it: I2 key, I2 limit (both from 1), I4 cost
--
-- returns  five integers for each charge of a group: status, remaining, retry_after (-1: none),
--          reset_after, delay. For a run of more than one time: how often the group's answer
--          follows; the last stands for all that are left, which are answered alike
local CHARGE, PEEK, REFUND, RESET = 0, 1, 2, 3
local RUN, NEXT_CHARGE = '>BBI2I2I2I4', '>I2I2I4'

-- By the number of an algorithm, which is that in src/store/redis/wire.rs.
local ALGORITHMS = {fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket, gcra}

local call, pcall = redis.call, redis.pcall
local keys, request = KEYS, ARGV[2]

local grace = 3600000
now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now, grace = time[1] * 1000000 + time[2], 0
end

local count, at = unpack_from('>I2', request)
local limits, has_heads = {}, false
for i = 1, count do
  local algorithm, p1, p2, p3, p4
  algorithm, p1, p2, p3, p4, at = unpack_from('>BI7I7I7I7', request, at)
  limits[i] = ALGORITHMS[algorithm](p1, p2, p3, p4)
  has_heads = has_heads or limits[i].head_size
end

-- What is stored under each key, by its number: read once, written once. False is nothing.
local values = {}
local ends, limit_of, written = {}, {}, {}

-- Several are read at once, unless only the head of some is needed.
if keys[2] and not has_heads then
  values = call('MGET', unpack(keys))
  local none = {}
  for i = 1, #keys do
    if not values[i] then none[#none + 1] = keys[i] end
  end
  -- Nothing, or something that is no string, and that nothing can read.
  if none[1] and call('EXISTS', unpack(none)) > 0 then values = {} end
end

local function read(k, head_size)
  local value
  if head_size then
    value = pcall('GETRANGE', keys[k], 0, head_size - 1)
    if value == '' then value = false end
  else
    value = pcall('GET', keys[k])
  end
  values[k] = value
  return value
end

-- Loads a key's budget under a limit: 0, or UNREADABLE.
local function load(k, limit)
  local value = values[k]
  if value == nil then value = read(k, limit.head_size) end
  return limit.load(value, keys[k])
end

-- Keeps what the last loaded budget has become.
local function save(k, limit)
  local value, ends_at = limit.save()
  if value == nil then return end
  if not limit_of[k] then written[#written + 1] = k end
  values[k], ends[k], limit_of[k] = value, ends_at, limit
end

local reply, n = {}, 0
-- What answers groups of several charges, and takes charges back. Made when it is first needed.
local function make_groups()
  local key_of, limit_for, cost_of = {}, {}, {}

  -- Takes a charge back, or all charges, and loads what is left.
  local function give_back(op, k, limit, cost)
    local unreadable = load(k, limit)
    if op == REFUND then
      limit.refund(cost)
      save(k, limit)
    else
      if not limit_of[k] then written[#written + 1] = k end
      values[k], limit_of[k] = false, limit
    end
    -- What cannot be read is told once, and stays until something is put in its place.
    load(k, limit)
    return unreadable
  end

  -- Answers a group of several charges once. Returns whether all allow it.
  local function decide_group(op, size)
    local start, all = n, true
    for i = 1, size do
      local k, limit, cost, unreadable = key_of[i], limit_for[i], cost_of[i]
      if op >= REFUND then
        unreadable, cost = give_back(op, k, limit, cost), 0
      else
        unreadable = load(k, limit)
      end
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = limit.decide(cost, DRY)
      all = all and reply[n + 1] == ALLOWED
      reply[n + 1] = reply[n + 1] + unreadable
      n = n + 5
    end
    if op >= REFUND or (op == PEEK and all) then return all end
    n = start
    for i = 1, size do
      local k, limit, cost = key_of[i], limit_for[i], cost_of[i]
      local effect, status = DRY, reply[n + 1]
      if op == CHARGE and cost > 0 then effect = all and COMMIT or SETTLE end
      -- Nothing is taken from a limit that agrees with a check that another refuses.
      if not all and status % UNREADABLE == ALLOWED then cost = 0 end
      load(k, limit)
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = limit.decide(cost, effect)
      if effect ~= DRY then save(k, limit) end
      if status >= UNREADABLE then reply[n + 1] = reply[n + 1] + UNREADABLE end
      n = n + 5
    end
    return all
  end

  -- Answers a group as often as it is asked. Returns where the request goes on.
  return function(op, size, times, k, l, cost, next)
    key_of[1], limit_for[1], cost_of[1] = k, limits[l], cost
    for i = 2, size do
      k, l, cost, next = unpack_from(NEXT_CHARGE, request, next)
      key_of[i], limit_for[i], cost_of[i] = k, limits[l], cost
    end
    for _ = 1, times do
      if not decide_group(op, size) or op == PEEK or op == RESET then break end
    end
    return next
  end
end

local decide_groups
local last = #request
while at <= last do
  local op, size, times, k, l, cost
  op, size, times, k, l, cost, at = unpack_from(RUN, request, at)
  local start = n
  if times > 1 then n = n + 1 end
  local first = n
  if size == 1 and op <= PEEK then
    local limit = limits[l]
    local unreadable = load(k, limit)
    local decide, effect = limit.decide, op == CHARGE and COMMIT or DRY
    for _ = 1, times do
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = decide(cost, effect)
      n = n + 5
      if effect == DRY or reply[n - 4] ~= ALLOWED then break end
    end
    reply[first + 1] = reply[first + 1] + unreadable
    if effect == COMMIT then save(k, limit) end
  else
    decide_groups = decide_groups or make_groups()
    at = decide_groups(op, size, times, k, l, cost, at)
  end
  if times > 1 then reply[start + 1] = (n - first) / (size * 5) end
end

for i = 1, #written do
  local k = written[i]
  local key, value, has_ring = keys[k], values[k], limit_of[k].has_ring
  if not value then
    call('DEL', key)
  else
    local ttl = max(ceil((ends[k] - now) / 1000), 1) + grace
    if has_ring and has_ring(value) then
      call('SETRANGE', key, 0, value)
      call('PEXPIRE', key, ttl)
    else
      call('PSETEX', key, ttl, value)
    end
  end
end

return reply

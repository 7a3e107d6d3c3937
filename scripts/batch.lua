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

local now, grace = tonumber(ARGV[1]), 3600000
if not now then
  local time = redis.call('TIME')
  now, grace = time[1] * 1000000 + time[2], 0
end

-- The limits, by their number: an algorithm's functions, and its numbers.
local LOAD, DECIDE, REFUND_UNITS, SAVE, HEAD_SIZE, HAS_RING = 1, 2, 3, 4, 5, 6
local request = ARGV[2]
local count, at = unpack_from('>I2', request)
local limits, made = {}, {}
for i = 1, count do
  local a, p1, p2, p3, p4
  a, p1, p2, p3, p4, at = unpack_from('>BI7I7I7I7', request, at)
  local same = made[a]
  if same then
    limits[i] = {same[1], same[2], same[3], same[4], same[5], same[6], p1, p2, p3, p4}
  else
    local load, decide, refund, save, head_size, has_ring = ALGORITHMS[a]()
    limits[i] = {load, decide, refund, save, head_size or false, has_ring or false, p1, p2, p3, p4}
    made[a] = limits[i]
  end
end

-- What is known of each key, by its number: read once, written once. False is nothing.
local values, ends, limit_of, written = {}, {}, {}, {}

-- Loads a key's budget under a limit: 0, or UNREADABLE.
local function load(k, limit)
  local value = values[k]
  if value == nil then
    if limit[5] then
      value = redis.pcall('GETRANGE', KEYS[k], 0, limit[5] - 1)
      if value == '' then value = false end
    else
      value = redis.pcall('GET', KEYS[k])
    end
    -- A key of another type answers with an error. No algorithm can read the empty string.
    if type(value) == 'table' then value = '' end
    values[k] = value
  end
  return limit[1](value, limit[7], limit[8], limit[9], limit[10], now, KEYS[k])
end

-- Keeps what the last loaded budget has become.
local function save(k, limit)
  local value, ends_at = limit[4]()
  if value == nil then return end
  if not limit_of[k] then written[#written + 1] = k end
  values[k], ends[k], limit_of[k] = value, ends_at, limit
end

-- Takes a charge back, or all charges, and loads what is left.
local function give_back(op, k, limit, cost)
  local unreadable = load(k, limit)
  if op == REFUND then
    limit[3](cost)
    save(k, limit)
  else
    if not limit_of[k] then written[#written + 1] = k end
    values[k], limit_of[k] = false, limit
  end
  -- What cannot be read is told once, and stays until something is put in its place.
  load(k, limit)
  return unreadable
end

local reply, n = {}, 0
local key_of, limit_for, cost_of = {}, {}, {}

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
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = limit[2](cost, DRY)
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
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = limit[2](cost, effect)
    if effect ~= DRY then save(k, limit) end
    if status >= UNREADABLE then reply[n + 1] = reply[n + 1] + UNREADABLE end
    n = n + 5
  end
  return all
end

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
    local decide, effect = limit[2], op == CHARGE and COMMIT or DRY
    for _ = 1, times do
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = decide(cost, effect)
      n = n + 5
      if effect == DRY or reply[n - 4] ~= ALLOWED then break end
    end
    reply[first + 1] = reply[first + 1] + unreadable
    if effect == COMMIT then save(k, limit) end
  else
    key_of[1], limit_for[1], cost_of[1] = k, limits[l], cost
    for i = 2, size do
      k, l, cost, at = unpack_from(NEXT_CHARGE, request, at)
      key_of[i], limit_for[i], cost_of[i] = k, limits[l], cost
    end
    for _ = 1, times do
      if not decide_group(op, size) or op == PEEK or op == RESET then break end
    end
  end
  if times > 1 then reply[start + 1] = (n - first) / (size * 5) end
end

for i = 1, #written do
  local k = written[i]
  local key, value, limit = KEYS[k], values[k], limit_of[k]
  if not value then
    redis.call('DEL', key)
  else
    local ttl = max(ceil((ends[k] - now) / 1000), 1) + grace
    if limit[6] and limit[6](value) then
      redis.call('SETRANGE', key, 0, value)
      redis.call('PEXPIRE', key, ttl)
    else
      redis.call('SET', key, value, 'PX', ttl)
    end
  end
end

return reply

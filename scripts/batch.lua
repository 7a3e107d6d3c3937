-- Decides a batch of checks, in groups: within a group all are charged, or none is.
-- Twin: src/store/batch.rs.
--
-- KEYS     every budget that is touched
-- ARGV[1]  the time in us since the epoch; empty for the server's own. With a time set by hand
--          (tests, dry runs) the server's expiry, which goes by the real one, must not interfere:
--          states are kept for an hour more.
-- ARGV[2]  I2 number of limits, then for each: B algorithm, I7 four numbers, as its file says;
--          then groups: B op, B size, and for each charge of it: I2 key, I2 limit (both from 1),
--          I4 cost
--
-- returns  five integers a charge, in order: status, remaining, retry_after (-1: none),
--          reset_after, delay
local CHARGE, PEEK, REFUND, RESET = 0, 1, 2, 3

-- By the number of an algorithm, which is that in src/store/redis/wire.rs.
local ALGORITHMS = {fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket, gcra}

local now, grace = tonumber(ARGV[1]), 3600000
if not now then
  local time = redis.call('TIME')
  now, grace = time[1] * 1000000 + time[2], 0
end

-- The limits, by their number: their algorithm's functions, and their numbers.
local request = ARGV[2]
local count, at = struct.unpack('>I2', request)
local kind, is_whole, decide, refund, head_size, has_ring = {}, {}, {}, {}, {}, {}
local p1, p2, p3, p4 = {}, {}, {}, {}
local first_of = {}
for i = 1, count do
  local a
  a, p1[i], p2[i], p3[i], p4[i], at = struct.unpack('>BI7I7I7I7', request, at)
  local known = first_of[a]
  if known then
    kind[i], is_whole[i], decide[i], refund[i], head_size[i], has_ring[i] =
      kind[known], is_whole[known], decide[known], refund[known], head_size[known], has_ring[known]
  else
    first_of[a] = i
    kind[i], is_whole[i], decide[i], refund[i], head_size[i], has_ring[i] = ALGORITHMS[a]()
  end
end

-- What is known of each key, by its number: read once, written once.
local values, kinds, ends, written_by = {}, {}, {}, {}

-- The value of a key for a limit, and UNREADABLE if there is another.
local function read(k, l)
  if kinds[k] == kind[l] then return values[k], 0 end
  if kinds[k] then return false, UNREADABLE end
  local value
  if head_size[l] then
    value = redis.pcall('GETRANGE', KEYS[k], 0, head_size[l] - 1)
    if value == '' then value = false end
  else
    value = redis.pcall('GET', KEYS[k])
  end
  if value and (type(value) ~= 'string' or string.byte(value) ~= kind[l]
    or not is_whole[l](value, KEYS[k])) then
    return false, UNREADABLE
  end
  kinds[k], values[k] = kind[l], value
  return value, 0
end

local function keep(k, l, value, ends_at)
  kinds[k], values[k], ends[k], written_by[k] = kind[l], value, ends_at, l
end

-- Applies `op` to one charge: status, remaining, retry_after, reset_after, delay.
local function apply(op, k, l, cost, effect)
  local value, unreadable = read(k, l)
  if op == REFUND and value then
    keep(k, l, refund[l](value, p1[l], p2[l], p3[l], p4[l], now, cost, KEYS[k]))
    value = values[k]
  elseif op == RESET then
    keep(k, l, false)
    value = false
  end
  if op >= REFUND then cost = 0 end
  local status, remaining, retry_after, reset_after, delay, new, ends_at =
    decide[l](value, p1[l], p2[l], p3[l], p4[l], now, cost, effect, KEYS[k])
  if new then keep(k, l, new, ends_at) end
  return status + unreadable, remaining, retry_after, reset_after, delay
end

local reply, n = {}, 0

local function answer(i, status, remaining, retry_after, reset_after, delay)
  reply[i + 1], reply[i + 2], reply[i + 3], reply[i + 4], reply[i + 5] =
    status, remaining, retry_after, reset_after, delay
end

local key_of, limit_of, cost_of = {}, {}, {}
local last = #request
while at <= last do
  local op, size
  op, size, at = struct.unpack('>BB', request, at)
  local effect, all = DRY, true
  if op == CHARGE and size == 1 then effect = COMMIT end
  for i = 1, size do
    local k, l, cost
    k, l, cost, at = struct.unpack('>I2I2I4', request, at)
    key_of[i], limit_of[i], cost_of[i] = k, l, cost
    answer(n + i * 5 - 5, apply(op, k, l, cost, effect))
    all = all and reply[n + i * 5 - 4] % UNREADABLE == ALLOWED
  end
  if size > 1 and op <= PEEK and (op == CHARGE or not all) then
    for i = 1, size do
      local place = n + i * 5 - 5
      local status, cost = reply[place + 1], cost_of[i]
      effect = DRY
      if op == CHARGE and cost > 0 then effect = all and COMMIT or SETTLE end
      -- Nothing is taken from a limit that agrees with a check that another refuses.
      if not all and status % UNREADABLE == ALLOWED then cost = 0 end
      answer(place, apply(op, key_of[i], limit_of[i], cost, effect))
      -- What was unreadable is told by whoever read it first.
      if status >= UNREADABLE and reply[place + 1] < UNREADABLE then
        reply[place + 1] = reply[place + 1] + UNREADABLE
      end
    end
  end
  n = n + size * 5
end

for k, l in pairs(written_by) do
  local key, value = KEYS[k], values[k]
  if not value then
    redis.call('DEL', key)
  else
    local ttl = string.format('%d', max(ceil((ends[k] - now) / 1000), 1) + grace)
    if has_ring[l] and has_ring[l](value) then
      redis.call('SETRANGE', key, 0, value)
      redis.call('PEXPIRE', key, ttl)
    else
      redis.call('SET', key, value, 'PX', ttl)
    end
  end
end

return reply

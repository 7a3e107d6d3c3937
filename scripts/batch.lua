-- Decides a batch of groups of checks: all charges of a group are made, or none. Permits are
-- claimed one by one.
-- Twin: src/store/group.rs.
--
-- request  I2 number of limits, then for each: its algorithm and a zero byte, I7 four numbers, as
--          the algorithm's file says. Before that, of a limit that blocks keys: `offences` and a
--          zero byte, I7 denials, I7 within, I7 length, I7 longest, B factor (offences.lua);
--          then runs: B op, B size, I2 times, and for each charge: I2 key, I2 limit (both from 1),
--          I4 cost; if the limit blocks keys I2 key of the offences; of a block I7 its length; of
--          a settlement I7 time, I4 cost and I7 drains_at of its charge, and I7 the largest debt;
--          of a payment I2 key of the payer's last number, I7 its number; of a claim what
--          permits.lua says; of a charge or a peek with terms (8 is added to the
--          op)
--          B 1 if its limit is in shadow mode, and 2 more if a denied peek counts as an offence, I7
--          the longest wait for reserved units, I7 the longest wait.
--          A run is one group of `size` charges that is asked `times` times in a row. With the op
--          EACH it is one charge, with a cost above 0, of each of `times` keys from `key` on, which
--          no other run touches. If the limit blocks keys, budgets and offences take turns.
--
-- returns  the number of the call, the time of the decisions, then the verdicts of one run after
--          another. A run of more than one time starts with the number of its answers; the last one
--          stands for all that are missing. Identical charges of one budget are answered in short:
--          0, how many are allowed; if any are, remaining, reset_after and slack of the first, and
--          the parts that were given back to a bucket; if any are not, their verdict. After each
--          charge `cost` less remains, and reset_after grows at the limit's rate
local call, now, grace, at, request = ...
local EACH, CHARGE, PAY, ALLOWED = 6, 0, 7, 1
local LIMIT, RUN = '>sI7I7I7I7', '>BBI2I2I2I4'
-- Of a key that is read as a whole.
local WHOLE = {}
local keys, unpack_from = KEYS, struct.unpack
local read, write = include('stored')

local limits, all_read_whole = {}, true
local count
count, at = unpack_from('>I2', request, at)
for l = 1, count do
  local algorithm
  local limit = {}
  algorithm, limit.p1, limit.p2, limit.p3, limit.p4, at = unpack_from(LIMIT, request, at)
  if algorithm == 'offences' then
    local policy = {
      denials = limit.p1, within = limit.p2, length = limit.p3, longest = limit.p4,
    }
    policy.factor, algorithm, limit.p1, limit.p2, limit.p3, limit.p4, at =
      unpack_from('>BsI7I7I7I7', request, at)
    limit.policy = policy
  end
  if algorithm == 'permits' then
    limit.claim = include('permits', now, grace, request, write)
  else
    limit.algorithm = algorithm
    limit.charge, limit.head_size = include(algorithm, limit.p1, limit.p2, limit.p3)
  end
  all_read_whole = all_read_whole and not limit.head_size
  limits[l] = limit
end

-- The stored values by key number: false if there is none, nil if it is not read yet. Algorithms
-- that first need only the head of a value read it later.
local values = {}
if all_read_whole and keys[2] then
  values = redis.call('MGET', unpack(keys))
  local missing = {}
  for k = 1, #keys do
    if not values[k] then missing[#missing + 1] = keys[k] end
  end
  -- MGET also answers nothing for a key of another type.
  if missing[1] and redis.call('EXISTS', unpack(missing)) > 0 then values = {} end
end

local function value_of(k, limit)
  local value = values[k]
  if value == nil then
    value = read(keys[k], limit.head_size)
    values[k] = value
  end
  return value
end

local reply = {call, now}

local function answer(status, remaining, retry_after, reset_after, delay, drains_after, blocked_for)
  local n = #reply
  if status == ALLOWED and delay == 0 and not drains_after then
    reply[n + 1], reply[n + 2] = remaining, reset_after
  else
    if drains_after then status = status + 8 end
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5], reply[n + 6] =
      -1 - status, remaining, retry_after, reset_after, delay, drains_after or blocked_for
  end
end

-- The slow path and the payments, included on first use.
local decide, write_changes, pay

local last = #request
while at <= last do
  local op, size, times, first_k, l, cost
  op, size, times, first_k, l, cost, at = unpack_from(RUN, request, at)
  local limit, last_k = limits[l], first_k
  -- From a budget to the next, and to the offences of its key.
  local step, behind = 1, nil
  if limit.policy then
    local offences
    offences, at = unpack_from('>I2', request, at)
    step, behind = 2, offences - first_k
  end
  local charge
  if op == EACH then
    op, times, last_k, charge = CHARGE, 1, first_k + (times - 1) * step, limit.charge
  end
  local p1, p2, p3, p4 = limit.p1, limit.p2, limit.p3, limit.p4
  if limit.claim then
    local granted, unreadable, holders
    granted, unreadable, holders, at =
      limit.claim(keys[first_k], value_of(first_k, WHOLE), limit.p1, at)
    -- The next claim of the key reads what this one has written.
    values[first_k] = nil
    answer(ALLOWED + unreadable, granted, -1, holders, 0)
    -- No charge follows.
    last_k = 0
  end
  -- The slow path writes its keys at the end of the call. Once it has begun, it also decides all
  -- payments.
  if op == PAY and cost > 0 and not (decide or behind) then
    pay = pay or include('payment', now, grace, write, value_of, values, answer)
    local paid, number, next = unpack_from('>I2I7', request, at)
    if pay(limit, first_k, cost, paid, number) then last_k, at = 0, next end
  end
  for k = first_k, last_k, step do
    local value, remaining, reset_after, delay, old_end, lasted
    if charge and not (behind and value_of(k + behind, WHOLE)) then
      value, remaining, reset_after, delay, old_end, lasted =
        charge(value_of(k, limit), cost, now, p1, p2, p3, p4)
    end
    if value then
      write(keys[k], value, now + reset_after, lasted and reset_after, old_end, lasted, false, now,
        grace)
      answer(ALLOWED, remaining, -1, reset_after, delay)
    else
      if not decide then
        decide, write_changes =
          include('slow_path', now, grace, request, write, value_of, values, limits, reply, answer)
      end
      at = decide(op, size, times, k, l, cost, behind and k + behind, at)
    end
  end
end
if write_changes then write_changes() end

return reply

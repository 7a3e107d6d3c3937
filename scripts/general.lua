-- Decides what is not one usual charge of a budget: groups, peeks, refunds, resets, budgets that
-- several checks hit, refusals, changed quotas, clocks that were set back. batch.lua calls this
-- when it comes to the first of them; the reply is as it says there.
local keys, values, read, request, usuals, machines, head_sizes, reply = ...
local NEXT_CHARGE, RECEIPT = '>I2I2I4', '>I7I4'

-- How many numbers the reply has.
local n

local function tell(status, remaining, retry_after, reset_after, delay)
  if status == ALLOWED and delay == 0 then
    reply[n + 1], reply[n + 2] = remaining, reset_after
    n = n + 2
  else
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] =
      -1 - status, remaining, retry_after, reset_after, delay
    n = n + 5
  end
end

-- The machines that were made, by the number of their limit.
local made = {}
-- What was written, in that order, by the number of its key: when it ends, which machine it is of,
-- and when what is stored ends, as long as each write here was in place of a value as long.
local written, ends, writer, old_ends = {}, {}, {}, {}

local function machine_of(l)
  local machine = made[l]
  if not machine then
    machine = machines[l]()
    made[l] = machine
  end
  return machine
end

-- What is stored: read once, written once. All limits that share a key read as much of it.
local function value_of(k, l)
  local value = values[k]
  if value == nil then value = read(k, head_sizes[l]) end
  return value
end

-- The machine of a limit with a key's budget, and 0, or UNREADABLE.
local function load(k, l)
  local machine = machine_of(l)
  return machine, machine.load(value_of(k, l), keys[k])
end

local function keep(k, value, ends_at, machine, old_end)
  if not ends[k] then
    written[#written + 1], old_ends[k] = k, old_end
  elseif not old_end then
    old_ends[k] = nil
  end
  values[k], ends[k], writer[k] = value, ends_at or 0, machine
end

-- Keeps what the last loaded budget has become.
local function save(k, machine)
  local value, ends_at, old_end = machine.save()
  if value ~= nil then keep(k, value, ends_at, machine, old_end) end
end

-- Answers a charge once. Returns whether it is to be asked again.
local function decide_once(op, machine, cost, unreadable)
  local status, remaining, retry_after, reset_after, delay =
    machine.decide(cost, op == CHARGE and COMMIT or DRY)
  tell(status + unreadable, remaining, retry_after, reset_after, delay)
  return status == ALLOWED and op == CHARGE
end

-- Answers a charge as often as it is asked, in short: those that fit are as many as what is left,
-- divided, and leave together what they leave one by one. Returns whether it could.
local function decide_at_once(machine, times, cost)
  local slack = 0
  if machine.slack then slack = machine.slack(cost) end
  if not slack then return false end
  local _, left = machine.decide(0, DRY)
  local admitted = min(floor(left / cost), times)
  reply[n + 1], reply[n + 2] = IN_SHORT, admitted
  n = n + 2
  if admitted > 0 then
    local _, remaining, _, reset_after = machine.decide(cost, DRY)
    reply[n + 1], reply[n + 2], reply[n + 3] = remaining, reset_after, slack
    n = n + 3
    machine.decide(admitted * cost, COMMIT)
  end
  if admitted < times then decide_once(CHARGE, machine, cost, 0) end
  return true
end

local function decide_run(op, times, k, l, cost)
  local machine, unreadable = load(k, l)
  if times == 1 then
    decide_once(op, machine, cost, unreadable)
  elseif op ~= CHARGE or cost == 0 or unreadable > 0
    or not decide_at_once(machine, times, cost) then
    n = n + 1
    local place, told = n, 0
    repeat
      told = told + 1
      local again = decide_once(op, machine, cost, unreadable)
      unreadable = 0
    until told == times or not again
    reply[place] = told
  end
  if op == CHARGE then save(k, machine) end
end

-- The group that is decided: of each charge its key, its limit, its cost, and what the first look
-- said of it.
local key_of, limit_of, cost_of, seen = {}, {}, {}, {}
-- Of a refund, the charge that is taken back: its time, and its cost.
local charged_at, charged = {}, {}
-- What it would leave, if all charges are usual.
local new, remaining_of, reset_of, delay_of, old_end_of = {}, {}, {}, {}, {}

-- Charges the group if each of its charges is usual, and of a budget of its own.
local function charge_as_usual(size)
  for i = 1, size do
    local k, l = key_of[i], limit_of[i]
    for j = 1, i - 1 do
      if key_of[j] == k then return false end
    end
    -- What is kept until the end must not be in the way of a machine that writes parts of it.
    if head_sizes[l] or cost_of[i] == 0 then return false end
    new[i], remaining_of[i], reset_of[i], delay_of[i], old_end_of[i] =
      usuals[l](value_of(k, l), cost_of[i])
    if not new[i] then return false end
  end
  for i = 1, size do
    keep(key_of[i], new[i], now + reset_of[i], nil, old_end_of[i])
    tell(ALLOWED, remaining_of[i], -1, reset_of[i], delay_of[i])
  end
  return true
end

-- Takes the group's i-th charge back, or all charges, and loads what is left.
local function give_back(op, i)
  local k, l = key_of[i], limit_of[i]
  local machine, unreadable = load(k, l)
  if op == REFUND then
    machine.refund(min(cost_of[i], charged[i]), charged_at[i], charged[i])
    save(k, machine)
  else
    keep(k, false)
  end
  -- What cannot be read is told once, and stays until something is put in its place.
  load(k, l)
  return machine, unreadable
end

-- Answers the group once. Whether it is to be asked again.
local function decide_group(op, size)
  if op == CHARGE and charge_as_usual(size) then return true end
  local all = true
  for i = 1, size do
    local k, l, cost = key_of[i], limit_of[i], cost_of[i]
    if op >= REFUND then
      local machine, unreadable = give_back(op, i)
      decide_once(PEEK, machine, 0, unreadable)
    else
      local machine, unreadable = load(k, l)
      local status = machine.decide(cost, DRY)
      all = all and status == ALLOWED
      seen[i] = status + unreadable
    end
  end
  if op >= REFUND then return op == REFUND end
  for i = 1, size do
    local k, cost, unreadable = key_of[i], cost_of[i], 0
    local effect = DRY
    if op == CHARGE and cost > 0 then effect = all and COMMIT or SETTLE end
    -- Nothing is taken from a limit that agrees with a check that another refuses.
    if not all and seen[i] % UNREADABLE == ALLOWED then cost = 0 end
    if seen[i] >= UNREADABLE then unreadable = UNREADABLE end
    local machine = load(k, limit_of[i])
    local status, remaining, retry_after, reset_after, delay = machine.decide(cost, effect)
    tell(status + unreadable, remaining, retry_after, reset_after, delay)
    if effect ~= DRY then save(k, machine) end
  end
  return all and op == CHARGE
end

local function decide_groups(op, size, times)
  local place, told = n + 1, 0
  if times > 1 then n = place end
  repeat
    told = told + 1
    local again = decide_group(op, size)
  until told == times or not again
  if times > 1 then reply[place] = told end
end

-- Answers a run. Returns how long the reply is now, and where the request goes on.
local function decide(length, op, size, times, k, l, cost, next)
  n = length
  if size == 1 and op <= PEEK then
    decide_run(op, times, k, l, cost)
  else
    key_of[1], limit_of[1], cost_of[1] = k, l, cost
    for i = 1, size do
      if i > 1 then
        key_of[i], limit_of[i], cost_of[i], next = unpack_from(NEXT_CHARGE, request, next)
      end
      if op == REFUND then
        charged_at[i], charged[i], next = unpack_from(RECEIPT, request, next)
      end
    end
    decide_groups(op, size, times)
  end
  return n, next
end

local function write()
  for i = 1, #written do
    local k = written[i]
    local key, value, machine = keys[k], values[k], writer[k]
    if not value then
      call('DEL', key)
    else
      put(key, value, ends[k], old_ends[k],
        machine and machine.has_ring and machine.has_ring(value))
    end
  end
end

return decide, write

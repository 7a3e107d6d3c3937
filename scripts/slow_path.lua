-- Decides what batch.lua's fast path does not: groups, peeks, most changes, budgets that several
-- runs touch, denials, keys with offences, changed quotas, clocks that were set back. Each key is
-- written once, at the end.
--
-- A budget, which bucket_budget.lua and its like make for a limit, holds the state of one key at a
-- time:
--   load    (value, key, start): brings a stored value (false: none), which begins at byte `start`
--           of its key, to this limit and this time. Returns 0, or 4 if the value is unreadable;
--           then it counts as none. Returns true behind it if the windows of a calendar that the
--           request has do not hold this time, and the budget needs one
--   decide (cost, effect, max_wait): status, remaining, retry_after (-1: none), reset_after, delay,
--           drains_after (see main.lua). The effect 'dry' changes nothing. 'adopt' stores that the
--           clock or the quota moved, so that the answer stays true. 'commit' charges the cost if
--           it fits, and else adopts
--   overdraw (units, max_debt): charges units even if they do not fit
--   refund (units, charged_at, charged, drains_at): takes back units of a charge of `charged` units
--   slack (cost): bucket.lua. Algorithms without it have the same reset_after after each charge
--   save (): value, ends_at, lasts, old_end, lasted, is_head, as `write` in stored.lua takes them
local now, grace, request, write, value_of, values, limits, reply, answer = ...
local keys = KEYS
local DENIED, ALLOWED, BLOCKED, BLOCK_BEGINS, UNDECIDED = 0, 1, 16, 48, 64
local CHARGE, PEEK, SETTLE, RESET, BLOCK, PAY = 0, 1, 2, 3, 4, 7
-- Added to a charge or a peek whose checks have terms.
local WITH_TERMS = 8
-- In place of the number of answers.
local IN_SHORT = 0
local NEXT_CHARGE, SETTLEMENT, TERMS = '>I2I2I4', '>I7I4I7I7', '>BI7I7'
local NO_DEBT_BOUND = 9007199254740991
-- Of a key that is read as a whole.
local WHOLE = {}
-- The policy of a limit that does not block keys.
local NO_POLICY = {denials = 0, within = 0, length = 0, longest = 0, factor = 1}
-- The first byte of a value behind a block by an operator: see operator_block.lua.
local OPERATOR_BLOCK = 10

-- Answers a group `times` times, or until all further answers are the same.
local function repeated(times, decide_once)
  if times == 1 then return decide_once() end
  local place, answers = #reply + 1, 0
  reply[place] = answers
  repeat
    answers = answers + 1
    local again = decide_once()
  until answers == times or not again
  reply[place] = answers
end

-- The budgets that were made, by the number of their limit.
local budgets = {}
-- The changed keys, in the order of their first change. By key, as `write` takes them: `ends` and
-- `lasts_of` of the new value; `old_ends` and `lasted_of` of the stored one, if all new values are
-- as long; and `is_head_of`.
local changed, ends, lasts_of, old_ends, lasted_of, is_head_of = {}, {}, {}, {}, {}, {}

-- The blocks by operators, by key: see operator_block.lua.
local operator_blocks = {}
local split_block, settle_block, write_behind

local function include_operator_block()
  if split_block then return end
  split_block, settle_block, write_behind = include('operator_block', now, grace, write)
end

-- Returns the budget with a key's state, and 0 or UNREADABLE.
local function load(k, l)
  local limit, budget = limits[l], budgets[l]
  if not budget then
    budget = include(limit.algorithm .. '_budget', now, limit.p1, limit.p2, limit.p3, limit.p4)
    budgets[l] = budget
  end
  local value = value_of(k, limit)
  if value and string.byte(value) == OPERATOR_BLOCK then
    include_operator_block()
    operator_blocks[k], value = split_block(value)
    values[k] = value
  end
  local block = operator_blocks[k]
  return budget, budget.load(value, keys[k], block and block.at or 0)
end

local function keep(k, value, ends_at, lasts, old_end, lasted, is_head)
  if value == nil then return end
  if not ends[k] then
    changed[#changed + 1], old_ends[k], lasted_of[k] = k, old_end, lasted
  elseif not old_end then
    old_ends[k] = nil
  end
  values[k], ends[k], lasts_of[k], is_head_of[k] = value, ends_at or 0, lasts, is_head
end

-- Has the block by an operator written, with the value that the key has now.
local function keep_block(k, l)
  local is_head = is_head_of[k]
  if not ends[k] then
    is_head = limits[l].head_size and values[k] and values[k] ~= ''
  end
  keep(k, values[k], ends[k], lasts_of[k], nil, nil, is_head)
end

-- Blocks a key in place of its block. A length of 0 ends it.
local function block_key(k, l, length)
  local block = operator_blocks[k]
  if not block then
    if length == 0 then return end
    include_operator_block()
    block = {at = 0}
    operator_blocks[k] = block
  end
  block.ends_at, block.length = length > 0 and now + length or 0, length
  keep_block(k, l)
end

-- Answers identical charges of a budget in short. The remaining units divided by the cost are the
-- number allowed, and one charge of their sum leaves the same state. Returns whether it could.
local function charge_in_short(times, k, l, cost, offences_k)
  if offences_k and value_of(offences_k, WHOLE) then return false end
  local budget, unreadable = load(k, l)
  if operator_blocks[k] then return false end
  local slack, returned = 0, 0
  if budget.slack then slack, returned = budget.slack(cost) end
  if not slack or unreadable > 0 then return false end
  local _, left = budget.decide(0, 'dry')
  local allowed = math.min(math.floor(left / cost), times)
  -- Denials that are counted differ from each other.
  if offences_k and limits[l].policy.denials > 0 and allowed < times then return false end
  local n = #reply
  reply[n + 1], reply[n + 2] = IN_SHORT, allowed
  if allowed > 0 then
    local _, remaining, _, reset_after = budget.decide(cost, 'dry')
    reply[n + 3], reply[n + 4], reply[n + 5], reply[n + 6] =
      remaining, reset_after, slack, returned
    budget.decide(allowed * cost, 'commit')
  end
  if allowed < times then answer(budget.decide(cost, 'commit')) end
  keep(k, budget.save())
  return true
end

-- The checks of a group. Their tables are used again for the next one. A check has: k and l, the
-- numbers of its key and its limit; cost; offences, the key of the offences; is_shadow and
-- peek_counts (whether a denied peek counts as an offence), max_wait and patience, its terms; of a
-- settlement charged_at, charged, drains_at and max_debt; of a block its length; of a payment paid,
-- the key of its payer's last number, and number.
local checks = {}

-- Charges the group if each check is one for the fast path, and of a budget of its own. Returns
-- whether it could.
local function charge_fast(size)
  for i = 1, size do
    local check = checks[i]
    local k, cost, limit = check.k, check.cost, limits[check.l]
    for j = 1, i - 1 do
      if checks[j].k == k then return false end
    end
    -- The slow path may already have written parts of a value that is read by its head.
    if limit.head_size or cost == 0 or check.max_wait > 0 then return false end
    if operator_blocks[k] then return false end
    if check.offences and value_of(check.offences, WHOLE) then return false end
    check.new, check.remaining, check.reset_after, check.delay, check.old_end, check.lasted =
      limit.charge(value_of(k, limit), cost, now, limit.p1, limit.p2, limit.p3, limit.p4)
    if not check.new then return false end
  end
  for i = 1, size do
    local check = checks[i]
    local reset_after, lasted = check.reset_after, check.lasted
    keep(check.k, check.new, now + reset_after, lasted and reset_after, check.old_end, lasted)
    answer(ALLOWED, check.remaining, -1, check.reset_after, check.delay)
  end
  return true
end

-- The offences of one key at a time.
local offences

local function load_offences(check)
  offences = offences or include('offences', now)
  local record, policy = false, NO_POLICY
  if check.offences then
    record, policy = value_of(check.offences, WHOLE), limits[check.l].policy
  end
  return offences.load(record, policy, operator_blocks[check.k])
end

-- Decides a check. Returns `unreadable`, then what `budget.decide` does.
local function decide_check(check, cost, effect)
  local budget, unreadable = load(check.k, check.l)
  if not (check.offences or operator_blocks[check.k]) then
    return unreadable, budget.decide(cost, effect, check.max_wait)
  end
  unreadable = math.max(unreadable, load_offences(check))
  local patience = check.patience
  if effect == 'dry' and not check.peek_counts then patience = math.huge end
  return unreadable, offences.decide(budget, cost, effect, check.max_wait, patience)
end

-- Keeps what a decision left of a budget and of the offences of its key. Returns whether the next
-- denial may differ from this one.
local function keep_check(check, cost, effect, status)
  local k, l = check.k, check.l
  if effect ~= 'dry' then keep(k, budgets[l].save()) end
  if cost == 0 or (effect == 'dry' and not check.peek_counts) then return false end
  local block = operator_blocks[k]
  if block and settle_block(block) then keep_block(k, l) end
  if not check.offences then return false end
  keep(check.offences, offences.save())
  return limits[l].policy.denials > 0 and (status == DENIED or status == BLOCK_BEGINS)
end

-- Returns whether the next identical group may have another answer than this denial.
local function decide_group(op, size)
  if op == CHARGE and size > 1 and charge_fast(size) then return true end
  local all_allowed, has_blocked_key = true, false
  -- A check that is a group by itself is decided below, at once.
  for i = 1, size > 1 and size or 0 do
    local check = checks[i]
    local _, status = decide_check(check, check.cost, 'dry')
    -- A check of cost 0 is allowed, even if its key is blocked.
    check.is_allowed = status % 2 == ALLOWED
    has_blocked_key = has_blocked_key or status == BLOCKED
    all_allowed = all_allowed and (check.is_allowed or check.is_shadow)
  end
  local all_charged, may_differ = op == CHARGE, false
  for i = 1, size do
    local check = checks[i]
    local cost, effect = check.cost, 'dry'
    if op == CHARGE and cost > 0 then effect = all_allowed and 'commit' or 'adopt' end
    -- A charge that fits consumes nothing if another one of the group is denied.
    if not all_allowed and check.is_allowed then cost = 0 end
    -- With a blocked key, no denial of the group counts.
    if has_blocked_key then check.patience = math.huge end
    local unreadable, status, remaining, retry_after, reset_after, delay, drains_after, left =
      decide_check(check, cost, effect)
    answer(status + unreadable, remaining, retry_after, reset_after, delay, drains_after, left)
    may_differ = keep_check(check, cost, effect, status) or may_differ
    -- A check of cost 0 is allowed, even if its key is blocked.
    all_charged = all_charged and (status % 2 == ALLOWED or (size > 1 and check.is_shadow))
  end
  return all_charged or may_differ
end

local last_number, record_of

-- Charges a payment, unless it was charged before. Returns the units that did not fit.
local function pay(budget, check)
  if not last_number then
    local _
    _, last_number, record_of = include('payment', now, grace, write, value_of, values, answer)
  end
  if check.number <= last_number(check.paid) then return 0 end
  local _, left = budget.decide(0, 'dry')
  budget.overdraw(check.cost, NO_DEBT_BOUND)
  keep(check.k, budget.save())
  keep(check.paid, record_of(check.number))
  return math.max(check.cost - left, 0)
end

-- Settles, pays or resets a budget, or blocks its key. Returns whether the next identical change
-- may have another answer.
local function change(op)
  local check = checks[1]
  local k, l = check.k, check.l
  local budget, unreadable, is_undecided = load(k, l)
  local above
  if op == BLOCK then
    if check.offences then
      unreadable = math.max(unreadable, load_offences(check))
      offences.block(check.length)
      keep(check.offences, offences.save())
    end
    block_key(k, l, check.length)
  elseif op == RESET then
    keep(k, false)
    if operator_blocks[k] then operator_blocks[k].ends_at = 0 end
    if check.offences then keep(check.offences, false) end
  elseif is_undecided then
    answer(UNDECIDED, 0, -1, 0, 0)
    return false
  elseif op == PAY then
    above = pay(budget, check)
  else
    local back = check.charged - check.cost
    if back < 0 then
      budget.overdraw(-back, check.max_debt)
    elseif back > 0 then
      budget.refund(back, check.charged_at, check.charged, check.drains_at)
    end
    keep(k, budget.save())
  end
  local _, status, remaining, retry_after, reset_after, delay, _, left =
    decide_check(check, 0, 'dry')
  answer(status + unreadable, remaining, retry_after, reset_after, above or delay, nil, left)
  return op == SETTLE
end

-- Reads what a check has beside its key, limit and cost. Returns where the request goes on.
local function read_terms(check, op, has_terms, at)
  check.is_shadow, check.peek_counts, check.max_wait, check.patience = false, false, 0, 0
  if has_terms then
    local flags
    flags, check.max_wait, check.patience, at = struct.unpack(TERMS, request, at)
    check.is_shadow, check.peek_counts = flags % 2 == 1, flags >= 2
  elseif op == BLOCK then
    check.length, at = struct.unpack('>I7', request, at)
  elseif op == PAY then
    check.paid, check.number, at = struct.unpack('>I2I7', request, at)
  elseif op == SETTLE then
    check.charged_at, check.charged, check.drains_at, check.max_debt, at =
      struct.unpack(SETTLEMENT, request, at)
  end
  return at
end

-- Decides a run. Returns where the request goes on.
local function decide(op, size, times, k, l, cost, offences_k, next)
  if op == CHARGE and size == 1 and times > 1 and cost > 0
    and charge_in_short(times, k, l, cost, offences_k) then
    return next
  end
  local has_terms = op >= WITH_TERMS
  if has_terms then op = op - WITH_TERMS end
  for i = 1, size do
    local check = checks[i]
    if not check then
      check = {}
      checks[i] = check
    end
    if i == 1 then
      check.k, check.l, check.cost, check.offences = k, l, cost, offences_k
    else
      check.k, check.l, check.cost, next = struct.unpack(NEXT_CHARGE, request, next)
      check.offences = nil
      if limits[check.l].policy then
        check.offences, next = struct.unpack('>I2', request, next)
      end
    end
    next = read_terms(check, op, has_terms, next)
  end
  local decide_once = op <= PEEK and decide_group or change
  repeated(times, function() return decide_once(op, size) end)
  return next
end

local function write_changes()
  for i = 1, #changed do
    local k = changed[i]
    local block = operator_blocks[k]
    if block then
      write_behind(keys[k], block, values[k], ends[k], lasts_of[k], is_head_of[k])
    else
      write(keys[k], values[k], ends[k], lasts_of[k], old_ends[k], lasted_of[k], is_head_of[k], now,
        grace)
    end
  end
end

return decide, write_changes

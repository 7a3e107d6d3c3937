-- Decides what batch.lua's fast path does not: groups, peeks, refunds, resets, budgets that several
-- runs touch, denials, keys with offences, changed quotas, clocks that were set back. Each key is
-- written once, at the end.
--
-- A budget, which an algorithm's `new_budget` makes for a limit, holds the state of one key at a
-- time:
--   load    (value, key, start): brings a stored value (false: none), which begins at byte `start`
--           of its key, to this limit and this time. Returns 0, or 4 if the value is unreadable;
--           then it counts as none
--   decide (cost, effect, max_wait): status, remaining, retry_after (-1: none), reset_after, delay,
--           drains_after (see main.lua). The effect 'dry' changes nothing. 'adopt' stores that the
--           clock or the quota moved, so that the answer stays true. 'commit' charges the cost if
--           it fits, and else adopts
--   overdraw (units, max_debt): charges units even if they do not fit
--   refund (units, charged_at, charged, drains_at): takes back units of a charge of `charged` units
--   slack (cost): bucket.lua. Algorithms without it have the same reset_after after each charge
--   save (): value, ends_at, old_end, is_head, as `write` in stored.lua takes them
local now, grace, request, write, value_of, values, limits, reply, answer = ...
local keys = KEYS
local DENIED, ALLOWED, BLOCKED, BLOCK_BEGINS = 0, 1, 16, 48
local CHARGE, PEEK, REFUND, RESET, SETTLE, BLOCK = 0, 1, 2, 3, 5, 6
-- Added to a charge or a peek whose checks have terms.
local WITH_TERMS = 8
-- In place of the number of answers.
local IN_SHORT = 0
local NEXT_CHARGE, RECEIPT, TERMS = '>I2I2I4', '>I7I4I7', '>BI7I7'
-- Of a key that is read as a whole.
local WHOLE = {}
-- The policy of a limit that does not block keys.
local NO_POLICY = {denials = 0, within = 0, length = 0, longest = 0, factor = 1}
-- The first byte of a value behind a block by an operator: see operator_block.lua.
local OPERATOR_BLOCK = 10

-- Answers a group `times` times, or until it is denied.
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
-- The changed keys, in the order of their first change. By key: when the new value expires; when
-- the stored value expires, if all new values are as long; and whether the value is only a head.
local changed, ends, old_ends, is_head_of = {}, {}, {}, {}

-- The blocks by operators, by key: see operator_block.lua.
local operator_blocks = {}
local split_block, settle_block, write_behind

local function include_operator_block()
  if split_block then return end
  split_block, settle_block, write_behind = include('operator_block', now, grace)
end

-- Returns the budget with a key's state, and 0 or UNREADABLE.
local function load(k, l)
  local limit, budget = limits[l], budgets[l]
  if not budget then
    budget = limit.new_budget(now, limit.p1, limit.p2, limit.p3, limit.p4)
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

local function keep(k, value, ends_at, old_end, is_head)
  if value == nil then return end
  if not ends[k] then
    changed[#changed + 1], old_ends[k] = k, old_end
  elseif not old_end then
    old_ends[k] = nil
  end
  values[k], ends[k], is_head_of[k] = value, ends_at or 0, is_head
end

-- Has the block by an operator written, with the value that the key has now.
local function keep_block(k, l)
  local is_head = is_head_of[k]
  if not ends[k] then
    is_head = limits[l].head_size and values[k] and values[k] ~= ''
  end
  keep(k, values[k], ends[k], nil, is_head)
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

-- The charges of a group: key, limit, cost, the key of the offences, its terms (whether the limit
-- is in shadow mode, and the longest waits, with reserved units and without), of a refund or a
-- settlement the refunded charge and the largest debt, and the length of a block. A peek may count
-- as an offence.
local key_of, limit_of, cost_of, offences_of = {}, {}, {}, {}
local is_shadow_of, peek_counts_of, max_wait_of, patience_of = {}, {}, {}, {}
local charged_at_of, charged_of, drains_at_of, max_debt_of, block_of = {}, {}, {}, {}, {}
local is_allowed = {}
-- What the fast path makes of the group's charges.
local new_of, remaining_of, reset_after_of, delay_of, old_end_of = {}, {}, {}, {}, {}

-- Charges the group if each charge is one for the fast path, and of a budget of its own. Returns
-- whether it could.
local function charge_fast(size)
  for i = 1, size do
    local k, cost, limit = key_of[i], cost_of[i], limits[limit_of[i]]
    for j = 1, i - 1 do
      if key_of[j] == k then return false end
    end
    -- The slow path may already have written parts of a value that is read by its head.
    if limit.head_size or cost == 0 then return false end
    if operator_blocks[k] then return false end
    if offences_of[i] and value_of(offences_of[i], WHOLE) then return false end
    new_of[i], remaining_of[i], reset_after_of[i], delay_of[i], old_end_of[i] =
      limit.charge(value_of(k, limit), cost, now, limit.p1, limit.p2, limit.p3, limit.p4)
    if not new_of[i] then return false end
  end
  for i = 1, size do
    keep(key_of[i], new_of[i], now + reset_after_of[i], old_end_of[i])
    answer(ALLOWED, remaining_of[i], -1, reset_after_of[i], delay_of[i])
  end
  return true
end

-- The offences of one key at a time.
local offences

local function load_offences(i)
  offences = offences or include('offences', now)
  local record, policy = false, NO_POLICY
  if offences_of[i] then
    record, policy = value_of(offences_of[i], WHOLE), limits[limit_of[i]].policy
  end
  return offences.load(record, policy, operator_blocks[key_of[i]])
end

-- Decides a charge of a group. Returns `unreadable`, then what `budget.decide` does.
local function decide_charge(i, cost, effect)
  local budget, unreadable = load(key_of[i], limit_of[i])
  if cost == 0 or not (offences_of[i] or operator_blocks[key_of[i]]) then
    return unreadable, budget.decide(cost, effect, max_wait_of[i])
  end
  unreadable = math.max(unreadable, load_offences(i))
  local patience = patience_of[i]
  if effect == 'dry' and not peek_counts_of[i] then patience = math.huge end
  return unreadable, offences.decide(budget, cost, effect, max_wait_of[i], patience)
end

-- Keeps what a decision left of a budget and of the offences of its key. Returns whether the next
-- denial may differ from this one.
local function keep_charge(i, cost, effect, status)
  if effect ~= 'dry' then keep(key_of[i], budgets[limit_of[i]].save()) end
  if cost == 0 or (effect == 'dry' and not peek_counts_of[i]) then return false end
  local block = operator_blocks[key_of[i]]
  if block and settle_block(block) then keep_block(key_of[i], limit_of[i]) end
  if not offences_of[i] then return false end
  keep(offences_of[i], offences.save())
  return limits[limit_of[i]].policy.denials > 0 and (status == DENIED or status == BLOCK_BEGINS)
end

-- Returns whether the next identical group may have another answer than this denial.
local function decide_group(op, size)
  if op == CHARGE and size > 1 and charge_fast(size) then return true end
  local all_allowed, has_blocked_key = true, false
  -- A charge that is a group by itself is decided below, at once.
  for i = 1, size > 1 and size or 0 do
    local _, status = decide_charge(i, cost_of[i], 'dry')
    is_allowed[i] = status == ALLOWED
    has_blocked_key = has_blocked_key or status == BLOCKED
    all_allowed = all_allowed and (is_allowed[i] or is_shadow_of[i])
  end
  local all_charged, may_differ = op == CHARGE, false
  for i = 1, size do
    local cost, effect = cost_of[i], 'dry'
    if op == CHARGE and cost > 0 then effect = all_allowed and 'commit' or 'adopt' end
    -- A charge that fits consumes nothing if another one of the group is denied.
    if not all_allowed and is_allowed[i] then cost = 0 end
    -- With a blocked key, no denial of the group counts.
    if has_blocked_key then patience_of[i] = math.huge end
    local unreadable, status, remaining, retry_after, reset_after, delay, drains_after, left =
      decide_charge(i, cost, effect)
    answer(status + unreadable, remaining, retry_after, reset_after, delay, drains_after, left)
    may_differ = keep_charge(i, cost, effect, status) or may_differ
    all_charged = all_charged and (status == ALLOWED or (size > 1 and is_shadow_of[i]))
  end
  return all_charged or may_differ
end

-- Refunds, settles or resets each budget of a group, or blocks its key.
local function change_each(op, size)
  for i = 1, size do
    local k, l = key_of[i], limit_of[i]
    local budget, unreadable = load(k, l)
    if op == BLOCK then
      if offences_of[i] then
        unreadable = math.max(unreadable, load_offences(i))
        offences.block(block_of[i])
        keep(offences_of[i], offences.save())
      end
      block_key(k, l, block_of[i])
    elseif op == RESET then
      keep(k, false)
      if operator_blocks[k] then operator_blocks[k].ends_at = 0 end
      if offences_of[i] then keep(offences_of[i], false) end
    else
      local cost, charged = cost_of[i], charged_of[i]
      local back = op == REFUND and math.min(cost, charged) or charged - cost
      if back < 0 then
        budget.overdraw(-back, max_debt_of[i])
      elseif back > 0 or op == REFUND then
        budget.refund(back, charged_at_of[i], charged, drains_at_of[i])
      end
      keep(k, budget.save())
    end
    local cost = op == BLOCK and cost_of[i] or 0
    local _, status, remaining, retry_after, reset_after, delay, _, left =
      decide_charge(i, cost, 'dry')
    answer(status + unreadable, remaining, retry_after, reset_after, delay, nil, left)
  end
  return op == REFUND or op == SETTLE
end

-- Decides a run. Returns where the request goes on.
local function decide(op, size, times, k, l, cost, offences_k, next)
  if op == CHARGE and size == 1 and times > 1 and cost > 0
    and charge_in_short(times, k, l, cost, offences_k) then
    return next
  end
  key_of[1], limit_of[1], cost_of[1], offences_of[1] = k, l, cost, offences_k
  local has_terms = op >= WITH_TERMS
  if has_terms then op = op - WITH_TERMS end
  for i = 1, size do
    if i > 1 then
      key_of[i], limit_of[i], cost_of[i], next = struct.unpack(NEXT_CHARGE, request, next)
      offences_of[i] = nil
      if limits[limit_of[i]].policy then
        offences_of[i], next = struct.unpack('>I2', request, next)
      end
    end
    is_shadow_of[i], peek_counts_of[i], max_wait_of[i], patience_of[i] = false, false, 0, 0
    if has_terms then
      local flags
      flags, max_wait_of[i], patience_of[i], next = struct.unpack(TERMS, request, next)
      is_shadow_of[i], peek_counts_of[i] = flags % 2 == 1, flags >= 2
    elseif op == BLOCK then
      block_of[i], next = struct.unpack('>I7', request, next)
    elseif op == REFUND or op == SETTLE then
      charged_at_of[i], charged_of[i], drains_at_of[i], next = struct.unpack(RECEIPT, request, next)
      if op == SETTLE then max_debt_of[i], next = struct.unpack('>I7', request, next) end
    end
  end
  local decide_once = op <= PEEK and decide_group or change_each
  repeated(times, function() return decide_once(op, size) end)
  return next
end

local function write_changes()
  for i = 1, #changed do
    local k = changed[i]
    local block = operator_blocks[k]
    if block then
      write_behind(keys[k], block, values[k], ends[k], is_head_of[k])
    else
      write(keys[k], values[k], ends[k], old_ends[k], is_head_of[k], now, grace)
    end
  end
end

return decide, write_changes

-- The denials of a key that are counted, and the block that follows too many of them.
-- Twin: src/algorithm/offences.rs, which has the reasons.
--
-- value    40 bytes:
--            B  kind   I4 denials  that were counted since the first
--                      I7 since    time of the first, in us
--                      I7 ends_at, I7 length  of the last block
--                      I7 grown    length of the last block that denials began, if blocks grow
--                      I7 kept_until  time from which all of this equals no value
-- policy   denials that begin a block (0: only an operator blocks), within, length of the first
--          block, longest, factor
local now = ...
local ALLOWED, EXCEEDS_CAPACITY, UNREADABLE, BLOCKED, BEGINS = 1, 2, 4, 16, 32
local KIND, RECORD, RECORD_SIZE = 8, '>BI4I7I7I7I7I7', 40
-- A time and a length are exact together. A block lasts a leap year at most.
local MAX_TIME, MAX_LENGTH = 8 * 10 ^ 15, 366 * 86400 * 1000000
local floor, max, min = math.floor, math.max, math.min

local policy, denials, since, ends_at, length, grown, kept_until, changed
-- When the block by an operator ends.
local operator_ends_at
-- The earliest time until which it is kept.
local at_least

local function clear()
  denials, since, ends_at, length, grown, kept_until, changed = 0, 0, 0, 0, 0, 0, false
  at_least = 0
end

-- Loads a stored value (false: none), and the block by an operator, if there is one. Returns 0 or
-- UNREADABLE.
local function load(value, of, operator_block)
  policy, operator_ends_at = of, 0
  if operator_block then
    operator_ends_at = min(operator_block.ends_at, now + operator_block.length)
  end
  clear()
  if not value then return 0 end
  local kind
  if #value == RECORD_SIZE then
    kind, denials, since, ends_at, length, grown, kept_until = struct.unpack(RECORD, value)
  end
  if kind ~= KIND or max(since, ends_at) > MAX_TIME or max(length, grown) > MAX_LENGTH then
    clear()
    -- The next write replaces it.
    changed = true
    return UNREADABLE
  end
  if kept_until <= now then
    clear()
    return 0
  end
  if ends_at > now + length then
    -- The clock was set back.
    ends_at, changed = now + length, true
  end
  return 0
end

local function left()
  return max(max(ends_at, operator_ends_at) - now, 0)
end

-- Counts a denial. Returns whether a block begins with it.
local function count()
  if denials == 0 or now >= since + policy.within then denials, since = 0, now end
  since, denials, changed = min(since, now), denials + 1, true
  if denials < policy.denials then return false end
  local last = 0
  if now < ends_at + policy.longest then last = grown end
  local longer = policy.longest
  if last <= floor(longer / policy.factor) then longer = last * policy.factor end
  length = max(longer, policy.length)
  denials, ends_at = 0, now + length
  grown = policy.factor > 1 and length or 0
  return true
end

-- Decides a check of the key, as `budget.decide` does, with the time until the block ends as a
-- seventh result. A denial that ends within `patience` is not counted. A check of cost 0 passes
-- during a block, and has no units left.
local function decide(budget, cost, effect, max_wait, patience)
  local was_left, on_budget = left(), effect
  if was_left > 0 and effect == 'commit' and cost > 0 then on_budget = 'adopt' end
  local status, remaining, retry_after, reset_after, delay, drains_after =
    budget.decide(cost, on_budget, max_wait)
  local counts = was_left == 0 and retry_after > patience and policy.denials > 0
  local begins = counts and count()
  local is_left = left()
  if is_left == 0 or status == EXCEEDS_CAPACITY then
    return status, remaining, retry_after, reset_after, delay, drains_after, nil
  end
  if status == ALLOWED then
    local _
    _, _, _, reset_after = budget.decide(0, 'dry')
  end
  if cost == 0 then return ALLOWED + BLOCKED, 0, -1, max(is_left, reset_after), 0, nil, is_left end
  return begins and BLOCKED + BEGINS or BLOCKED, 0, max(is_left, retry_after),
    max(is_left, reset_after), 0, nil, is_left
end

-- Blocks the key. A length of 0 ends the block, and forgets the offences.
local function block(new_length)
  if new_length == 0 then clear() end
  -- The operator's tool may have another policy, which remembers for a shorter time.
  at_least = kept_until
  denials, ends_at, length, changed = 0, now + new_length, new_length, true
end

-- The new value, as `write` in stored.lua takes it.
local function save()
  if not changed then return nil end
  kept_until = max(at_least, ends_at)
  if grown > 0 then kept_until = max(kept_until, ends_at + policy.longest) end
  if denials > 0 then kept_until = max(kept_until, since + policy.within) end
  if kept_until <= now then return false end
  return struct.pack(RECORD, KIND, denials, since, ends_at, length, grown, kept_until), kept_until
end

return {load = load, decide = decide, block = block, save = save}

-- A block that an operator began. It stands in front of the budget's value, so that it works under
-- any limit: no fast path takes such a value, and checks of other keys pay nothing for it.
-- Twin: OperatorBlock in src/algorithm/offences.rs.
--
-- value    15 bytes: B kind, I7 ends_at, I7 length; then the budget's value, if there is one
local now, grace, write = ...
local KIND, HEAD, SIZE = 10, '>BI7I7', 15
-- A block lasts a leap year at most.
local MAX_LENGTH = 366 * 86400 * 1000000

-- Takes a stored value apart: the block, and the budget's value (false: none). `at` is where that
-- begins.
local function split(value)
  local rest = string.sub(value, SIZE + 1)
  if rest == '' then rest = false end
  if #value < SIZE then return {ends_at = 0, length = 0, at = #value}, false end
  local _, ends_at, length = struct.unpack(HEAD, value)
  return {ends_at = ends_at, length = math.min(length, MAX_LENGTH), at = SIZE}, rest
end

-- Forgets a block that is over, and shortens one that the clock was set back behind. Returns
-- whether that changed it.
local function settle(block)
  local ends_at = block.ends_at
  if ends_at <= now then ends_at = 0 end
  ends_at = math.min(ends_at, now + block.length)
  local is_changed = ends_at ~= block.ends_at
  block.ends_at = ends_at
  return is_changed
end

-- Stores a block, and the budget's value behind it (false: none). `is_head`: the value
-- is only the head of the stored one. stored.lua explains `ends_at` and `lasts`. With an `ends_at`
-- of 0, the key lives as long as it did.
local function write_both(key, block, value, ends_at, lasts, is_head)
  if is_head then
    redis.call('SETRANGE', key, block.at, value)
    value = redis.call('GETRANGE', key, block.at, '-1')
  end
  value = value or ''
  if value ~= '' and ends_at == 0 then
    -- PTTL and PSETEX round up to whole ms. Two ms less keep the expiry at the same second.
    ends_at = now + math.max(redis.call('PTTL', key) - grace - 2, 0) * 1000
  end
  if block.ends_at > 0 then
    value = struct.pack(HEAD, KIND, block.ends_at, block.length) .. value
    ends_at = math.max(ends_at, block.ends_at)
  end
  -- `lasts` keeps the rounding of the budget's value, so that the next charge finds the expiry that
  -- it expects.
  write(key, value ~= '' and value, ends_at, lasts, nil, nil, false, now, grace)
end

return split, settle, write_both

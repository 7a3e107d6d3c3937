-- Payments charge units that were allowed before. Each counts once, by its number. The key `paid`
-- has the number of its payer's last payment.
-- Twin: `pay` in src/store/group.rs.
local now, grace, write, value_of, values, answer = ...
local keys = KEYS
local ALLOWED = 1
local NUMBER, LARGEST_NUMBER = '>I7', 9007199254740991
-- How long the last number is kept. Payments are repeated after up to ten seconds, so one that is
-- repeated within a minute counts once.
local LASTS = 70 * 1000000
-- In place of a limit, for a key that is read as a whole.
local WHOLE = {}

local function last_number(paid)
  local stored = value_of(paid, WHOLE)
  local number = stored and #stored == 7 and struct.unpack(NUMBER, stored) or 0
  -- A larger number is not of a payer.
  return number <= LARGEST_NUMBER and number or 0
end

-- The value of the key `paid`, and until when it counts.
local function record_of(number)
  return struct.pack(NUMBER, number), now + LASTS
end

-- The fast path: charges a new payment that fits, under the stored rate, and writes its keys.
-- Returns whether it could.
local function pay(limit, k, cost, paid, number)
  if number <= last_number(paid) then return false end
  local value, remaining, reset_after, _, old_end, lasted =
    limit.charge(value_of(k, limit), cost, now, limit.p1, limit.p2, limit.p3, limit.p4)
  if not value then return false end
  write(keys[k], value, now + reset_after, lasted and reset_after, old_end, lasted, false, now,
    grace)
  local record, ends_at = record_of(number)
  write(keys[paid], record, ends_at, nil, nil, nil, false, now, grace)
  values[paid] = record
  -- A value that is first read by its head is read again.
  values[k] = not limit.head_size and value or nil
  answer(ALLOWED, remaining, -1, reset_after, 0)
  return true
end

return pay, last_number, record_of

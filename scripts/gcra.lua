-- GCRA: the token bucket's promise as a schedule.
-- Twin: src/algorithm/gcra.rs. State, limit and arithmetic: bucket.lua; what counts is how far
-- the theoretical arrival time is ahead. A cell that conforms is not held back.
local function gcra_decide(value, units, micros, capacity, _, now, cost, effect)
  local status, remaining, retry_after, reset_after, _, new, ends_at =
    bucket_decide(value, units, micros, capacity, now, cost, effect)
  return status, remaining, retry_after, reset_after, 0, new, ends_at
end

local function gcra_refund(value, units, micros, capacity, _, now, back)
  return bucket_refund(value, units, micros, capacity, now, back)
end

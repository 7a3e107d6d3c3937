-- Leaky bucket: requests leave evenly.
-- Twin: src/algorithm/leaky_bucket.rs. State and arithmetic: bucket.lua; what counts is the water
-- that is held.
--
-- limit    units, micros, capacity, queue: 1 if what is admitted waits for its turn, 0 if the
--          bucket is a meter
local function leaky_bucket_decide(value, units, micros, capacity, queue, now, cost, effect)
  local status, remaining, retry_after, reset_after, waits, new, ends_at =
    bucket_decide(value, units, micros, capacity, now, cost, effect)
  return status, remaining, retry_after, reset_after, waits * queue, new, ends_at
end

local function leaky_bucket_refund(value, units, micros, capacity, _, now, back)
  return bucket_refund(value, units, micros, capacity, now, back)
end

-- Leaky bucket: requests leave evenly.
-- Twin: src/algorithm/leaky_bucket.rs. State and arithmetic: bucket.lua; what counts is the water
-- that is held.
--
-- limit    units, micros, capacity, queue: 1 if what is admitted waits for its turn, 0 if the
--          bucket is a meter
local kind, is_whole, level, refund = bucket()

local function decide(value, units, micros, capacity, queue, ...)
  local status, remaining, retry_after, reset_after, turn, new, ends_at =
    level(value, units, micros, capacity, queue, ...)
  return status, remaining, retry_after, reset_after, turn * queue, new, ends_at
end

return kind, is_whole, decide, refund

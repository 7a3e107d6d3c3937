-- Token bucket: a burst at once, then the rate.
-- Twin: src/algorithm/token_bucket.rs. State, limit and arithmetic: bucket.lua; what counts is
-- the tokens that are missing. A token that is there is taken without delay.
local function token_bucket_decide(value, units, micros, capacity, _, now, cost, effect)
  local status, remaining, retry_after, reset_after, _, new, ends_at =
    bucket_decide(value, units, micros, capacity, now, cost, effect)
  return status, remaining, retry_after, reset_after, 0, new, ends_at
end

local function token_bucket_refund(value, units, micros, capacity, _, now, back)
  return bucket_refund(value, units, micros, capacity, now, back)
end

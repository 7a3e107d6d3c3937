-- Token bucket: a burst at once, then the rate.
-- Twin: src/algorithm/token_bucket.rs. State, limit and arithmetic: bucket.lua; what counts is
-- the tokens that are missing. Those that are there can be taken without delay.
local kind, is_whole, level, refund = bucket()

local function decide(...)
  local status, remaining, retry_after, reset_after, _, new, ends_at = level(...)
  return status, remaining, retry_after, reset_after, 0, new, ends_at
end

return kind, is_whole, decide, refund

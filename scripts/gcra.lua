-- GCRA: the token bucket's promise as a schedule.
-- Twin: src/algorithm/gcra.rs. State, limit and arithmetic: bucket.lua; what counts is how far
-- the theoretical arrival time is ahead. A cell that conforms is not held back.
local kind, is_whole, level, refund = bucket()

local function decide(...)
  local status, remaining, retry_after, reset_after, _, new, ends_at = level(...)
  return status, remaining, retry_after, reset_after, 0, new, ends_at
end

return kind, is_whole, decide, refund

-- Fixed window: at most `limit` units in a window.
-- Twin: src/algorithm/fixed_window.rs, which has the reasons.
--
-- value    28 bytes, or false for an untouched budget:
--            B  kind   I7 count    units used in the window, the last of them
--                      I7 at       at this time in us
--                      I7 window_end, I6 period of the window, in us
-- limit    limit, period, aligned: 1 if windows are aligned to the clock, 0 if a window starts
--          with the key's first request
local KIND = 1
local WINDOW, WINDOW_SIZE = '>BI7I7I7I6', 28

local function is_whole(value)
  if #value ~= WINDOW_SIZE then return false end
  local _, count, at, window_end, p = struct.unpack(WINDOW, value)
  return p > 0 and p <= MAX_REFILL and count <= MAX_EXACT
    and at < window_end and window_end <= at + 2 * MAX_REFILL
end

-- The end of a window that holds `time`.
local function end_from(period, aligned, time)
  if aligned == 1 then return (floor(time / period) + 1) * period end
  return time + period
end

-- The window in force: count, at, window_end, period, and whether it was made to last longer.
local function resume(value, period, aligned, now)
  if value then
    local _, count, at, window_end, p = struct.unpack(WINDOW, value)
    if now < window_end then
      if at - now > period then
        return count, now, end_from(period, aligned, now), period, true
      end
      local new_end = window_end
      if aligned == 1 then
        -- To the end of an aligned window, or two of the old kind could share it.
        new_end = end_from(period, aligned, p > period and at or window_end - 1)
      elseif p < period then
        new_end = max(end_from(period, aligned, max(window_end - p, 0)), window_end)
      elseif p > period then
        new_end = min(end_from(period, aligned, at), window_end)
      end
      if now < new_end then return count, at, new_end, period, new_end > window_end end
    end
  end
  return 0, now, end_from(period, aligned, now), period, false
end

local function decide(value, limit, period, aligned, _, now, cost, effect)
  local count, at, window_end, p, moved = resume(value, period, aligned, now)
  local status, retry_after = ALLOWED, -1
  if cost > limit then
    status = NEVER
  elseif cost > 0 and count + cost > limit then
    status, retry_after = REFUSED, window_end - now
  else
    count = count + cost
  end
  local charges = status == ALLOWED and cost > 0
  if charges then at = max(at, now) end
  local reset_after = 0
  if count > 0 then reset_after = window_end - now end
  if (charges and effect == COMMIT) or (moved and not charges and settles(effect, cost, status)) then
    return status, max(limit - count, 0), retry_after, reset_after, 0,
      struct.pack(WINDOW, KIND, count, at, window_end, p), window_end
  end
  return status, max(limit - count, 0), retry_after, reset_after, 0
end

local function refund(value, _, period, aligned, _, now, back)
  local count, at, window_end, p = resume(value, period, aligned, now)
  if count <= back then return false end
  return struct.pack(WINDOW, KIND, count - back, at, window_end, p), window_end
end

return KIND, is_whole, decide, refund

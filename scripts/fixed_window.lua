-- Fixed window: at most `limit` units in a window.
-- Twin: src/algorithm/fixed_window.rs, which has the reasons.
--
-- value    21 bytes, or false for an untouched budget:
--            B  kind   I7 count    units used in the window
--                      I7 window_end, I6 period of the window, in us
-- limit    limit, period, aligned: 1 if windows are aligned to the clock, 0 if a window starts
--          with the key's first request
local WINDOW = '>BI7I7I6'

local function window_is_whole(value)
  if #value ~= 21 then return false end
  local _, count, window_end, p = struct.unpack(WINDOW, value)
  return p > 0 and count <= MAX_EXACT and window_end <= MAX_EXACT
end

local function fixed_window_end(period, aligned, time)
  if aligned == 1 then return (floor(time / period) + 1) * period end
  return time + period
end

-- The window in force: count, window_end, period, moved.
local function fixed_window_resume(value, period, aligned, now)
  if value then
    local _, count, window_end, p = struct.unpack(WINDOW, value)
    if now < window_end then
      local start = window_end - p
      if start - now > period then
        return count, fixed_window_end(period, aligned, now), period, true
      end
      if p > period then
        local shorter = fixed_window_end(period, aligned, max(now, start))
        return count, min(window_end, shorter), period, true
      end
      return count, window_end, p, false
    end
  end
  return 0, fixed_window_end(period, aligned, now), period, false
end

-- status, remaining, retry_after, reset_after, delay[, value, ends_at]
local function fixed_window_decide(value, limit, period, aligned, _, now, cost, commit)
  local count, window_end, p, moved = fixed_window_resume(value, period, aligned, now)
  local status, retry_after = ALLOWED, -1
  if cost > limit then
    status = NEVER
  elseif cost > 0 and count + cost > limit then
    status, retry_after = REFUSED, window_end - now
  else
    count = count + cost
  end
  local reset_after = 0
  if count > 0 then reset_after = window_end - now end
  if commit and (moved or (status == ALLOWED and cost > 0)) then
    return status, max(limit - count, 0), retry_after, reset_after, 0,
      struct.pack(WINDOW, WINDOW_KIND, count, window_end, p), window_end
  end
  return status, max(limit - count, 0), retry_after, reset_after, 0
end

-- value (false: nothing is left to remember), ends_at
local function fixed_window_refund(value, _, period, aligned, _, now, back)
  local count, window_end, p = fixed_window_resume(value, period, aligned, now)
  if count <= back then return false end
  return struct.pack(WINDOW, WINDOW_KIND, count - back, window_end, p), window_end
end

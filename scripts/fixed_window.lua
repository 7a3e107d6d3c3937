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

local limit, period, aligned = ...

-- The end of a window that holds `time`.
local function end_from(time)
  if aligned == 1 then return time - time % period + period end
  return time + period
end

local function usual(value, cost)
  local count, window_end, old_end = 0
  if value then
    if #value ~= WINDOW_SIZE then return nil end
    local kind, at, p
    kind, count, at, window_end, p = unpack_from(WINDOW, value)
    if kind ~= KIND or p ~= period or at > now or at >= window_end
      or window_end > at + 2 * MAX_REFILL or (aligned == 1 and window_end % period ~= 0) then
      return nil
    end
    old_end = window_end
    if now >= window_end then count, window_end = 0, nil end
  end
  count, window_end = count + cost, window_end or end_from(now)
  if count > limit then return nil end
  return pack(WINDOW, KIND, count, now, window_end, period),
    limit - count, window_end - now, 0, old_end
end

local function machine()
  -- The window in force.
  local count, at, window_end
  -- Whether something was stored, whether the window was made to last longer, and whether it has to
  -- be stored anew.
  local stored, moved, changed

  -- The end under this quota of the window that was stored under another.
  local function new_end(stored_period)
    if aligned == 1 then
      -- To the end of an aligned window, or two of the old kind could share it.
      return end_from(stored_period > period and at or window_end - 1)
    elseif stored_period < period then
      return max(end_from(max(window_end - stored_period, 0)), window_end)
    elseif stored_period > period then
      return min(end_from(at), window_end)
    end
    return window_end
  end

  local function load(value)
    count, at = 0, now
    stored, moved, changed = false, false, false
    if value then
      if #value ~= WINDOW_SIZE then
        window_end = end_from(now)
        return UNREADABLE
      end
      local kind, v_count, v_at, v_end, p = unpack_from(WINDOW, value)
      if kind ~= KIND or p == 0 or p > MAX_REFILL or v_count > MAX_EXACT
        or v_at >= v_end or v_end > v_at + 2 * MAX_REFILL then
        window_end = end_from(now)
        return UNREADABLE
      end
      stored = true
      if now < v_end then
        at, window_end = v_at, v_end
        if at - now > period then
          count, at, window_end, moved = v_count, now, end_from(now), true
          return 0
        end
        window_end = new_end(p)
        if now < window_end then
          count, moved = v_count, window_end > v_end
          return 0
        end
        at = now
      end
    end
    window_end = end_from(now)
    return 0
  end

  local function decide(cost, effect)
    local status, retry_after, units = ALLOWED, -1, count
    if cost > limit then
      status = NEVER
    elseif cost > 0 and count + cost > limit then
      status, retry_after = REFUSED, window_end - now
    else
      units = count + cost
    end
    local reset_after = 0
    if units > 0 then reset_after = window_end - now end
    if units > count then
      if effect == COMMIT then
        count, changed = units, true
        if at < now then at = now end
      end
    elseif moved and settles(effect, cost, status) then
      changed = true
    end
    if units > limit then return status, 0, retry_after, reset_after, 0 end
    return status, limit - units, retry_after, reset_after, 0
  end

  local function refund(back)
    if not stored then return end
    count, changed = max(count - back, 0), true
  end

  local function save()
    if not changed then return nil end
    if count == 0 then return false end
    return pack(WINDOW, KIND, count, at, window_end, period), window_end
  end

  return {load = load, decide = decide, refund = refund, save = save}
end

return usual, machine

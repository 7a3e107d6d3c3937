-- Fixed window: at most `limit` units in a window.
-- Twin: src/algorithm/fixed_window.rs, which has the reasons.
--
-- value    35 bytes:
--            B  kind   I7 count    units used in the window
--                      I7 at       time of the last charge, in us
--                      I7 stop     end of the window, in us
--                      I6 shape    twice the period in us, plus 1 if aligned to the clock; or the
--                                  number of a calendar
--                      I7 since    time of the first charge that can be refunded
--          41 more bytes for each other shape (rotation.lua): the same without a kind, then
--                      I7 asked    time of the last check by its own quota
-- limit    limit, period, aligned: 1 if windows are aligned to the clock, 0 if a window starts
--          with the key's first request, 0.
--          A limit with a calendar has the two windows around the time of the caller: limit, the
--          end of the first window in seconds, the number of the calendar (from 2^47 on), and the
--          lengths of both windows in seconds, 26 bits each

-- The fast path, without outer variables: see bucket.lua. fixed_window_budget.lua has names for the
-- kind 1 and the 35 bytes.
local function charge(value, cost, now, limit, period, aligned, lengths)
  local count, since, stop, old_end = 0, now, nil, nil
  local is_calendar = aligned > 1
  local own_shape = is_calendar and aligned or 2 * period + aligned
  if value then
    if #value ~= 35 then return nil end
    local kind, was_count, at, was_stop, shape, was_since = struct.unpack('>BI7I7I7I6I7', value)
    if kind ~= 1 or shape ~= own_shape or at > now or at >= was_stop
      or (is_calendar and was_stop % 1000000 ~= 0)
      or (not is_calendar and was_stop > at + period)
      or (aligned == 1 and was_stop % period ~= 0) then
      return nil
    end
    old_end = was_stop
    if now < was_stop then count, since, stop = was_count, was_since, was_stop end
  end
  count = count + cost
  if count > limit then return nil end
  if not stop then
    if is_calendar then
      local between, after = period * 1000000, lengths % 67108864
      local before = (lengths - after) / 67108864
      stop = now < between and between or between + after * 1000000
      -- The clocks differ by half a window or more.
      if now < between - before * 1000000 or now >= stop then return nil end
    else
      stop = now + period - (aligned == 1 and now % period or 0)
    end
  end
  return struct.pack('>BI7I7I7I6I7', 1, count, now, stop, own_shape, since),
    limit - count, stop - now, 0, old_end
end

return charge

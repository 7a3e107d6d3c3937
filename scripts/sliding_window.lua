-- Sliding window: a window that moves in sub-windows.
-- Twin: src/algorithm/sliding_window.rs, which has the reasons.
--
-- value    22 bytes, and 7 for each sub-window and the one that is leaving:
--            B  kind   B  len      how many counts there are
--                      I6 length   of a sub-window in us
--                      I7 at       time of the last charge, in us
--                      I7 since    time of the first charge that can be refunded
--                      I7 counts   of the last charge's sub-window and of those before it
--          28 more bytes, and 7 for each count, for each other shape (rotation.lua): the same
--          without a kind, and in front of the counts
--                      I7 asked    time of the last check by its own quota
-- limit    limit, length, sub_windows
local _, _, number_of_sub_windows = ...

-- The fast path with one sub-window, the default, without outer variables: see bucket.lua. The kind
-- is 2, and the value has 36 bytes. It needs no table: for a check of a batch, Redis takes a fifth
-- less time than with the function below.
if number_of_sub_windows == 1 then
  return function(value, cost, now, limit, length)
    local position, newest, oldest, since, old_end = math.floor(now / length), 0, 0
    if value then
      if #value ~= 36 then return nil end
      local kind, len, stored_length, at, was_since, at_newest, at_oldest =
        struct.unpack('>BBI6I7I7I7I7', value)
      if kind ~= 2 or len ~= 2 or stored_length ~= length or at > now then return nil end
      local moved_by = position - math.floor(at / length)
      if moved_by == 0 then
        newest, oldest = at_newest, at_oldest
      elseif moved_by == 1 then
        oldest = at_newest
      end
      if newest + oldest > 0 then since = was_since end
      if at_newest > 0 then old_end = (position - moved_by + 2) * length end
    end
    newest = newest + cost
    local used = math.ceil(oldest * (length - now % length) / length) + newest
    if used > limit or oldest > limit then return nil end
    return struct.pack('>BBI6I7I7I7I7', 2, 2, length, now, since or now, newest, oldest),
      limit - used, (position + 2) * length - now, 0, old_end
  end
end

local KIND, HEAD, HEAD_SIZE = 2, '>BBI6I7I7', 22
-- The place of the newest count among the numbers of a value.
local FIRST = 6

-- The formats of whole values by `len`: a batch has many values of one limit.
local formats = {}
local function format_of(len)
  local format = formats[len]
  if not format then
    format = HEAD .. string.rep('I7', len)
    formats[len] = format
  end
  return format
end

-- The fast path with several sub-windows.
return function(value, cost, now, limit, length, sub_windows)
  local len, newest = sub_windows + 1, math.floor(now / length)
  local moved_by, stored, old_end = len
  if value then
    if #value ~= HEAD_SIZE + 7 * len then return nil end
    stored = {struct.unpack(format_of(len), value)}
    if stored[1] ~= KIND or stored[2] ~= len or stored[3] ~= length or stored[4] > now then
      return nil
    end
    moved_by = newest - math.floor(stored[4] / length)
    if stored[FIRST] > 0 then old_end = (newest - moved_by + len) * length end
  end
  -- Most charges are in the sub-window of the last one, and leave the other counts as they are.
  local used, oldest, counts = cost
  if moved_by == 0 then
    for i = FIRST, len + FIRST - 1 do used = used + stored[i] end
    oldest = stored[len + FIRST - 1]
  else
    counts = {}
    for i = 1, len do
      local count = i > moved_by and stored[FIRST - 1 + i - moved_by] or 0
      counts[i], used = count, used + count
    end
    oldest = counts[len]
  end
  -- If no stored unit counts any more, this charge is the first that can be refunded.
  local since = used == cost and now or stored[5]
  used = used - oldest + math.ceil(oldest * (length - now % length) / length)
  if used > limit or oldest > limit then return nil end
  local new
  if moved_by == 0 then
    new = struct.pack(HEAD .. 'I7', KIND, len, length, now, since, stored[FIRST] + cost)
      .. string.sub(value, HEAD_SIZE + 8)
  else
    counts[1] = counts[1] + cost
    new = struct.pack(format_of(len), KIND, len, length, now, since, unpack(counts))
  end
  return new, limit - used, (newest + len) * length - now, 0, old_end
end

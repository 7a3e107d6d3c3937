-- The token bucket, the leaky bucket and GCRA: a level that drains evenly.
-- Twin: src/algorithm/bucket.rs, which has the reasons.
--
-- The level is what is missing from a token bucket, the water in a leaky bucket, and how far GCRA's
-- theoretical arrival time is ahead.
--
-- value    35 bytes:
--            B  kind   I7 at     time in us at which `used` was held
--                      I7 used   in parts of 1/micros of a unit
--                      I7 units, I6 micros: `units` drain in `micros` us, in lowest terms
--                      I7 since  time of the first charge that can be refunded
--          7 more bytes if units were given back since then:
--                      I7 returned  in parts
--          or 21 more bytes if units are reserved:
--                      I7 returned, I7 reserved_until (time of the last turn), I7 spare (in parts)
--          or 20 more bytes if another rate applies once the level is down to `low` units:
--                      I7 low, I7 units, I6 micros
-- limit    units, micros, capacity (in units), queue: if an allowed check waits until the level has
--          drained, 1 more than the longest delay in us of an allowed check (1: any), else 0

-- The fast path: a charge that fits, under the stored rate. Returns the new value, remaining,
-- reset_after, delay, and old_end and lasted of the stored value (see stored.lua; nil and 0 without
-- one). The new value lasts for reset_after. Returns nil if the slow path has to decide.
-- bucket_budget.lua is the slow path, and has names for the kind 4 and the 35 bytes. Each call of
-- Redis makes this function anew, and each outer variable would cost more, so it uses none.
local function charge(value, cost, now, units, micros, capacity, queue)
  local used, since, old_end, lasted = 0, now, nil, 0
  if value then
    if #value ~= 35 then return nil end
    local kind, at, was_used, u, m, was_since = struct.unpack('>BI7I7I7I6I7', value)
    if kind ~= 4 or u ~= units or m ~= micros or at > now or was_used > capacity * micros then
      return nil
    end
    local left = was_used - (now - at) * units
    if left > 0 then used, since = left, was_since end
    lasted = (was_used + -was_used % units) / units
    old_end = at + lasted
  end
  local free_after = (capacity - cost) * micros - used
  if free_after < 0 then return nil end
  local level, delay = used + cost * micros, 0
  if queue > 0 then
    delay = math.ceil(used / units)
    if queue > 1 and delay >= queue then return nil end
  end
  -- Divisions without a remainder are exact.
  return struct.pack('>BI7I7I7I6I7', 4, now, level, units, micros, since),
    (free_after - free_after % micros) / micros, (level + -level % units) / units, delay,
    old_end, lasted
end

return charge

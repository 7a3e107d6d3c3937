-- A level that drains evenly: what token_bucket.lua, leaky_bucket.lua and gcra.lua share.
-- Twin: src/algorithm/bucket.rs, which has the reasons.
--
-- value    28 bytes, or false for an untouched budget:
--            B  kind   I7 at     time in us at which `used` was held
--                      I7 used   in parts of 1/micros of a unit
--                      I7 units, I6 micros: `units` drain in `micros` us, in lowest terms
-- limit    units, micros, capacity (in units)
local BUCKET = '>BI7I7I7I6'

local function bucket_is_whole(value)
  if #value ~= 28 then return false end
  local _, at, used, u, m = struct.unpack(BUCKET, value)
  return u > 0 and m > 0 and at <= MAX_EXACT and used <= MAX_EXACT
end

-- The level at `now` under this quota: at, used, units, micros, behind, moved.
local function bucket_resume(value, units, micros, capacity, now)
  if not value then return now, 0, units, micros, 0, false end
  local _, at, used, u, m = struct.unpack(BUCKET, value)
  local behind, moved = at - now, false
  if behind <= 0 then
    used = used + behind * u
    if used <= 0 then return now, 0, units, micros, 0, false end
    at, behind = now, 0
  elseif behind > ceil(capacity * micros / units) then
    at, behind, moved = now, 0, true
  end
  if u ~= units or m ~= micros then
    if used <= capacity * m or units / micros > u / m then
      local whole = floor(used / m)
      local rest = used - whole * m
      local parts = 0
      if rest > 0 then parts = floor(rest / m * micros) + 1 end
      used = min(whole * micros + parts, MAX_EXACT)
      u, m, moved = units, micros, true
    end
  end
  return at, used, u, m, behind, moved
end

-- status, remaining, retry_after, reset_after, wait for the level to drain[, value, ends_at]
local function bucket_decide(value, units, micros, capacity, now, cost, commit)
  local at, used, u, m, behind, moved = bucket_resume(value, units, micros, capacity, now)
  local status, retry_after, waits = ALLOWED, -1, 0
  if cost > capacity then
    status = NEVER
  elseif cost > 0 then
    local excess = used - (capacity - cost) * m
    if excess > 0 then
      status, retry_after = REFUSED, ceil(excess / u) + behind
    else
      waits = ceil(used / u)
      used = used + cost * m
    end
  end
  local drains = ceil(used / u)
  local remaining = max(floor((capacity * m - used) / m), 0)
  local reset_after = 0
  if used > 0 then reset_after = drains + behind end
  if commit and (moved or (status == ALLOWED and cost > 0)) then
    return status, remaining, retry_after, reset_after, waits,
      struct.pack(BUCKET, BUCKET_KIND, at, used, u, m), at + drains
  end
  return status, remaining, retry_after, reset_after, waits
end

-- value (false: nothing is left to remember), ends_at
local function bucket_refund(value, units, micros, capacity, now, back)
  local at, used, u, m = bucket_resume(value, units, micros, capacity, now)
  used = used - back * m
  if used <= 0 then return false end
  return struct.pack(BUCKET, BUCKET_KIND, at, used, u, m), at + ceil(used / u)
end

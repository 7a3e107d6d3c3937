-- The counters of one budget of windows: one for each shape of window that asks.
-- Twin: src/algorithm/rotation.rs, which has the reasons.
--
-- value    the counter of the last charge, then the others, each with
--            I7 asked    time of the last check by its own quota
--
-- `window` is the algorithm's half: the shape and the period of this limit, and functions that know
-- what a counter counts:
--   fresh     (like): an empty counter of the same shape
--   end_of    (counter): the time from which it equals a fresh one
--   set_back  (counter): lets it go on from now, after the clock was set back
--   derived   (counter, like): the same units in a window of the shape of `like`
--   enter     (counter, units): adds a charge that another quota allowed
--   take_back (counter, units, charged_at): takes units back; whether it has changed
--   read      (value): all counters; nil if the value is unreadable
--   write     (counters): the value
--   settle_end    (counter): sets the end of a counter that a check of another quota started.
--                 Returns whether it did. nil if all counters have an end
--   look      (counter): makes it the one to decide by; whether its end cannot be known
--   ask       (cost): status, remaining, retry_after, reset_after
--   charge    (cost): adds a charge to that counter, and returns it
--   room      (max_debt): the units that fit into it with a debt, below 0 if it has more already
-- Every counter has a shape, a period, the time `at` of the last charge, and `since`, the time of
-- the first charge that can be refunded.
local now, window = ...
local ALLOWED, EXCEEDS_CAPACITY, UNREADABLE = 1, 2, 4
local MAX_COUNTERS = 4
local floor, max, min = math.floor, math.max, math.min

-- All counters, the counter of this quota, and its place, if it is stored.
local counters, own, place
-- Whether a denied check has to store that counter; whether the clock was set back for it; then
-- what has to be stored: the charged units, the counter of a denied check, a refund.
local moved, was_set_back, charged, adopted, refunded

local function end_of_all()
  local last = 0
  for i = 1, #counters do last = max(last, window.end_of(counters[i])) end
  return last
end

local function resumed(counter)
  if window.end_of(counter) <= now then
    local anew = window.fresh(counter)
    anew.asked = counter.asked
    return anew, false
  end
  local back = counter.at - now > counter.period
  if back then window.set_back(counter) end
  return counter, back
end

-- The counter to derive a new one from: the shortest active one that is at least as long, else the
-- longest.
local function best()
  local known, period = nil, window.period
  for i = 1, #counters do
    local counter = counters[i]
    if now < window.end_of(counter) then
      local length = counter.period
      if not known
        or (length >= period and (known.period < period or length < known.period))
        or (length < period and known.period < period and length > known.period) then
        known = counter
      end
    end
  end
  return known
end

local function find_own()
  for i = 1, #counters do
    local counter = counters[i]
    if counter.shape == window.shape then
      place = i
      local is_settled = window.settle_end and window.settle_end(counter)
      own, was_set_back = resumed(counter)
      local is_due = i > 1 and now - counter.asked > floor(own.period / 2)
      moved = was_set_back or ((is_due or is_settled) and window.end_of(own) > now)
      return
    end
  end
  local known = best()
  if not known then return end
  local counter = window.derived(known, window)
  if counter.at - now > counter.period then window.set_back(counter) end
  if now < window.end_of(counter) then own, moved = counter, true end
end

local function load(value)
  counters, own, place, moved, was_set_back = nil, nil, nil, false, false
  charged, adopted, refunded = nil, false, false
  local unreadable = 0
  if value then
    counters = window.read(value)
    if not counters then
      unreadable = UNREADABLE
    elseif end_of_all() <= now then
      counters = nil
    else
      find_own()
    end
  end
  own = own or window.fresh(window)
  local is_undecided = window.look(own)
  -- Nothing is stored of a counter without an end.
  if is_undecided then moved, was_set_back = false, true end
  return unreadable, is_undecided
end

local function decide(cost, effect)
  local status, remaining, retry_after, reset_after = window.ask(cost)
  if status == ALLOWED and cost > 0 then
    if effect == 'commit' then
      own, charged = window.charge(cost), (charged or 0) + cost
    end
  elseif moved and effect ~= 'dry' and status ~= EXCEEDS_CAPACITY then
    adopted = true
  end
  return status, remaining, retry_after, reset_after, 0
end

local function make_room(others, most)
  while #others > most do
    local least = 1
    for i = 2, #others do
      local needed_until = others[i].asked + others[i].period
      if needed_until < others[least].asked + others[least].period then least = i end
    end
    table.remove(others, least)
  end
end

-- Adds the charge to all counters, and forgets those whose quotas no longer ask.
local function rotate()
  local others = {}
  for i = 1, counters and #counters or 0 do
    local counter = counters[i]
    if counter.shape ~= window.shape then
      -- The quota of the last charge may have been denied until now.
      counter.asked = i == 1 and now or min(counter.asked, now)
      counter = resumed(counter)
      window.enter(counter, charged)
      others[#others + 1] = counter
    end
  end
  local before
  repeat
    before = #others
    local longest = window.period
    for i = 1, #others do longest = max(longest, others[i].period) end
    local kept = {}
    for i = 1, #others do
      if now < others[i].asked + longest + floor(longest / 2) then kept[#kept + 1] = others[i] end
    end
    make_room(kept, MAX_COUNTERS - 1)
    others = kept
  until #others == before
  table.insert(others, 1, own)
  counters = others
end

local function adopt()
  if place then
    counters[place] = own
  else
    local first = table.remove(counters, 1)
    make_room(counters, MAX_COUNTERS - 2)
    table.insert(counters, 1, own)
    table.insert(counters, 1, first)
  end
  own.asked = now
end

local function overdraw(units, max_debt)
  units = min(units, max(window.room(max_debt), 0))
  if units == 0 then return end
  window.enter(own, units)
  window.look(own)
  charged = (charged or 0) + units
end

local function refund(back, charged_at)
  if place and not was_set_back and now < window.end_of(own) then
    refunded = window.take_back(own, back, charged_at)
  end
end

local function save()
  if charged then
    rotate()
  elseif adopted then
    adopt()
  elseif not refunded then
    return nil
  end
  local ends_at = end_of_all()
  if ends_at <= now then return false end
  return window.write(counters), ends_at
end

return {load = load, decide = decide, overdraw = overdraw, refund = refund, save = save}

-- The counters of one budget of windows: one for each shape of window that asks. This is the rest of
-- fixed_window.lua and of sliding_window.lua.
-- Twin: src/algorithm/rotation.rs, which has the reasons.
--
-- value    the counter of the last charge, then the others, each with
--            I7 asked    when its own quota last asked
--
-- Counters are tables here. What they count is up to window(), which answers functions:
--   fresh     (like): a counter of nothing, of the same shape
--   end_of    (counter): from when on it says the same as a fresh one
--   set_back  (counter): goes on from now
--   derived   (counter, like): the same units in a window of the shape of `like`
--   enter     (counter, units): a charge that another quota allowed
--   take_back (counter, units, charged_at): whether it has changed
--   read      (value): all counters; nil if it cannot be read
--   write     (counters): the value
--   look      (counter): makes it the one to decide by
--   ask       (cost): status, remaining, retry_after, reset_after
--   charge    (cost): into that counter. Answers what it has become
-- All counters have a shape, a period, the time `at` of the last charge, and `since`, that of the
-- first which can be taken back.
local MAX_COUNTERS = 4

local function machine()
  local fresh, end_of, set_back, derived, enter, take_back, read, write, look, ask, charge, mine =
    window()
  -- All counters, the own one, and its place, if it is stored.
  local counters, own, place
  -- Whether a denied check has to store the own counter, whether the clock was set back for it, and
  -- what is to be stored: the units that were charged, a denied check, a refund.
  local moved, was_set_back, charged, settled, refunded

  local function end_of_all()
    local last = 0
    for i = 1, #counters do last = max(last, end_of(counters[i])) end
    return last
  end

  local function resumed(counter)
    if end_of(counter) <= now then
      local anew = fresh(counter)
      anew.asked = counter.asked
      return anew, false
    end
    local back = counter.at - now > counter.period
    if back then set_back(counter) end
    return counter, back
  end

  -- The counter to start from: the shortest in force that is at least as long, else the longest.
  local function best()
    local known, period = nil, mine.period
    for i = 1, #counters do
      local counter = counters[i]
      if now < end_of(counter) then
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
      if counter.shape == mine.shape then
        place = i
        own, was_set_back = resumed(counter)
        local is_due = i > 1 and now - counter.asked > floor(own.period / 2)
        moved = was_set_back or (is_due and end_of(own) > now)
        return
      end
    end
    local known = best()
    if not known then return end
    local counter = derived(known, mine)
    if counter.at - now > counter.period then set_back(counter) end
    if now < end_of(counter) then own, moved = counter, true end
  end

  local function load(value)
    counters, own, place, moved, was_set_back = nil, nil, nil, false, false
    charged, settled, refunded = nil, false, false
    local unreadable = 0
    if value then
      counters = read(value)
      if not counters then
        unreadable = UNREADABLE
      elseif end_of_all() <= now then
        counters = nil
      else
        find_own()
      end
    end
    own = own or fresh(mine)
    look(own)
    return unreadable
  end

  local function decide(cost, effect)
    local status, remaining, retry_after, reset_after = ask(cost)
    if status == ALLOWED and cost > 0 then
      if effect == COMMIT then
        own, charged = charge(cost), (charged or 0) + cost
      end
    elseif moved and settles(effect, cost, status) then
      settled = true
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

  -- Enters what was charged in all counters, and forgets those whose quotas no longer ask.
  local function rotate()
    local others = {}
    for i = 1, counters and #counters or 0 do
      local counter = counters[i]
      if counter.shape ~= mine.shape then
        -- The quota of the last charge may have been denied until now.
        counter.asked = i == 1 and now or min(counter.asked, now)
        counter = resumed(counter)
        enter(counter, charged)
        others[#others + 1] = counter
      end
    end
    local before
    repeat
      before = #others
      local longest = mine.period
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

  local function settle()
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

  local function refund(back, charged_at)
    if place and not was_set_back and now < end_of(own) then
      refunded = take_back(own, back, charged_at)
    end
  end

  local function save()
    if charged then
      rotate()
    elseif settled then
      settle()
    elseif not refunded then
      return nil
    end
    local ends_at = end_of_all()
    if ends_at <= now then return false end
    return write(counters), ends_at
  end

  return {load = load, decide = decide, refund = refund, save = save}
end

return usual, machine

-- Decides a batch of checks, in groups: within a group all are charged, or none is.
-- Twin: src/store/batch.rs. The other side of the wire: src/store/redis/wire.rs.
--
-- KEYS     every budget that is touched
-- ARGV[1]  the time in us since the epoch; empty for the server's own. With a time set by hand
--          (tests, dry runs) the server's expiry, which goes by the real one, must not interfere:
--          states are kept for an hour more.
-- ARGV[2]  I2 number of limits, then for each: B algorithm, I7 four numbers, as its file says;
--          then runs: B op, B size, I2 times, and for each charge: I2 key, I2 limit (both from 1),
--          I4 cost, and of a refund I7 time and I4 cost of the charge. A run is one group of `size` charges that is asked `times` times in a row.
--          With the op EACH it is one charge of each of `times` keys, from `key` on, that nothing
--          else touches
--
-- returns  the time of all decisions; then two or five integers for each charge of a group. An allowed
--          charge without a delay has two: remaining, reset_after. Any other has five: -1 - status,
--          remaining, retry_after (-1: none), reset_after, delay. A run of more than one time starts
--          with the number of its answers; the last one stands for all that are left. Or in short:
--          0, how many are allowed, if any remaining, reset_after and slack of the first, from
--          which the next follow (the cost less is left, and reset_after grows at the limit's rate),
--          and, if not all are, the answer of those that are left
local RUN = '>BBI2I2I2I4'

local keys, request = KEYS, ARGV[2]

now, grace = tonumber(ARGV[1]), 3600000
if not now then
  local time = call('TIME')
  now, grace = time[1] * 1000000 + time[2], 0
end

-- The two functions of each limit, and how much of a value they need at first, if not all.
local usuals, machines, head_sizes = {}, {}, {}
local count, at = unpack_from('>I2', request)
local all_are_whole = true
for i = 1, count do
  local number, p1, p2, p3, p4
  number, p1, p2, p3, p4, at = unpack_from('>BI7I7I7I7', request, at)
  usuals[i], machines[i], head_sizes[i] = algorithm(number, p1, p2, p3, p4)
  all_are_whole = all_are_whole and not head_sizes[i]
end

-- What was read. Only a value of another type counts as unreadable; any other error, as of a missing
-- right, is the call's: read again, it is raised.
local function readable(value, ...)
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return call(...)
  end
  return value
end

-- What is stored under each key, by its number: false is nothing. All are read at once, unless only
-- the head of some is needed.
local values = {}
if all_are_whole and not keys[2] then
  values = {readable(pcall('GET', keys[1]), 'GET', keys[1])}
elseif all_are_whole then
  values = call('MGET', unpack(keys))
  local none = {}
  for i = 1, #keys do
    if not values[i] then none[#none + 1] = keys[i] end
  end
  -- Nothing, or something that is no string, and that nothing can read.
  if none[1] and call('EXISTS', unpack(none)) > 0 then values = {} end
end

-- A value is read when it is first needed, if it was not before.
local function read(k, head_size)
  local value
  if head_size then
    value = readable(pcall('GETRANGE', keys[k], 0, head_size - 1), 'GETRANGE', keys[k], 0, 0)
    if value == '' then value = false end
  else
    value = readable(pcall('GET', keys[k]), 'GET', keys[k])
  end
  values[k] = value
  return value
end

-- Sized for three numbers, the answer to a lone check: a table that grows costs more.
local reply, n = {now, 0, 0}, 1
-- Two functions for what is not usual, made when it first comes.
local decide, write

local last = #request
while at <= last do
  local op, size, times, k, l, cost
  op, size, times, k, l, cost, at = unpack_from(RUN, request, at)
  local last_k, usual = k, nil
  if op == EACH then
    last_k, usual = k + times - 1, usuals[l]
    op, times = CHARGE, 1
  end
  for k = k, last_k do
    local value, remaining, reset_after, delay, old_end = values[k], nil, nil, nil, nil
    if usual then
      if value == nil then value = read(k, head_sizes[l]) end
      value, remaining, reset_after, delay, old_end = usual(value, cost)
    end
    if not remaining then
      if not decide then
        decide, write = general(keys, values, read, request, usuals, machines, head_sizes, reply)
      end
      n, at = decide(n, op, size, times, k, l, cost, at)
    else
      -- Written and told in place, though general.lua can do both: nearly every check ends here.
      put(keys[k], value, now + reset_after, old_end)
      if delay == 0 then
        reply[n + 1], reply[n + 2] = remaining, reset_after
        n = n + 2
      else
        reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] =
          -1 - ALLOWED, remaining, -1, reset_after, delay
        n = n + 5
      end
    end
  end
end
if write then write() end

return reply

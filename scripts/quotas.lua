-- Notes the quotas that a process uses, and finds limits of one name that have two quotas for long.
-- src/store/redis/notes/quotas.rs sends it, apart from the script that decides.
--
-- KEYS[1]  the notes of all processes: {"kind:name": {"quota": [first, last]}} in JSON, with the
--          times in s at which a process first and last used the quota
-- ARGV[1]  the time in s, for tests. Default: the server's time
-- ARGV     then the limits of the process: kind:name, quota, kind:name, quota, ...
--          A quota can be a text of several
--
-- returns  for each of its limits with another quota: kind:name, its quota, the other quota
--
-- A deployment also changes a quota, and the old quota is out of use after some minutes. Two quotas
-- therefore count only if both were used for LONG, and are still used.
local LONG, FORGOTTEN, KEPT_MS = 3600, 150, 300000
-- The most bytes that are read. A longer value is cut, so it is invalid JSON, and counts as none.
local LONGEST = 2 ^ 20

local now = tonumber(ARGV[1]) or tonumber(redis.call('TIME')[1])

-- Returns whether a time is one that this script can have written.
local function is_time(time)
  return type(time) == 'number' and time >= 0 and time <= now
end

-- The notes that are still true. Another program's value raises an error, or has none.
local function read(value)
  local notes = {}
  for name, quotas in pairs(cjson.decode(value)) do
    for quota, seen in pairs(quotas) do
      local is_name = type(name) == 'string' and type(quota) == 'string'
      if is_name and is_time(seen[1]) and is_time(seen[2]) and now - seen[2] <= FORGOTTEN then
        notes[name] = notes[name] or {}
        notes[name][quota] = {seen[1], seen[2]}
      end
    end
  end
  return notes
end

local is_ours, notes = pcall(read, redis.pcall('GETRANGE', KEYS[1], 0, LONGEST - 1))
if not is_ours then notes = {} end

local found = {}
for i = 2, #ARGV, 2 do
  local name, quota = ARGV[i], ARGV[i + 1]
  local quotas = notes[name] or {}
  local first = quotas[quota] and quotas[quota][1] or now
  for other, seen in pairs(quotas) do
    if other ~= quota and now - math.max(seen[1], first) >= LONG then
      found[#found + 1], found[#found + 2], found[#found + 3] = name, quota, other
    end
  end
  quotas[quota], notes[name] = {first, now}, quotas
end

redis.call('SET', KEYS[1], cjson.encode(notes), 'PX', KEPT_MS)
return found

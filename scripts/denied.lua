-- Adds the keys that a process denied most often in a minute to the keys of all processes.
-- src/store/redis/notes/denied.rs sends it, apart from the script that decides. `tollgate top`
-- reads what it writes.
--
-- KEYS[1]  the minute: {"limit": {"key": denials}} in JSON
-- ARGV     limit, key, denials, limit, key, denials, ...
local MOST, KEPT_MS = 256, 3900000
-- The most bytes that are read. A longer value is cut, so it is invalid JSON, and counts as none.
local LONGEST = 2 ^ 20

local list, by_limit = {}, {}

local function add(limit, key, denials)
  by_limit[limit] = by_limit[limit] or {}
  local denied = by_limit[limit][key]
  if not denied then
    denied = {limit = limit, key = key, denials = 0}
    by_limit[limit][key], list[#list + 1] = denied, denied
  end
  denied.denials = denied.denials + denials
end

local function read(value)
  for limit, keys in pairs(cjson.decode(value)) do
    for key, denials in pairs(keys) do
      local is_name = type(limit) == 'string' and type(key) == 'string'
      local is_count = type(denials) == 'number' and denials > 0 and denials < 2 ^ 53
      if is_name and is_count then add(limit, key, denials) end
    end
  end
end

-- A value of another program counts as none.
local is_ours = pcall(read, redis.pcall('GETRANGE', KEYS[1], 0, LONGEST - 1))
if not is_ours then list, by_limit = {}, {} end
for i = 1, #ARGV, 3 do add(ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])) end
table.sort(list, function(one, other) return one.denials > other.denials end)

local kept = {}
for i = 1, math.min(#list, MOST) do
  local denied = list[i]
  kept[denied.limit] = kept[denied.limit] or {}
  kept[denied.limit][denied.key] = denied.denials
end
redis.call('SET', KEYS[1], cjson.encode(kept), 'PX', KEPT_MS)

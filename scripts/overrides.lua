-- Sets or removes overrides, and announces that. src/store/redis/overrides.rs sends it, apart from
-- the script that decides.
--
-- KEYS[1]  a hash: the key and the name of a limit, with a space between, to the override in JSON;
--          and the version of all, in `version`
-- ARGV[1]  the channel
-- ARGV[2]  the most overrides
-- ARGV     then for each override: key and limit; the override, or an empty text to remove it; and
--          the only override that may be removed, or an empty text if any may
--
-- Returns how many overrides were set or removed. -1 if there is no room.
local MAX_EXACT = 2 ^ 53 - 1

local hash, most = KEYS[1], tonumber(ARGV[2])
local changed, last = 0, nil

for i = 3, #ARGV, 3 do
  local field, value, expected = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local known = redis.call('HGET', hash, field)
  if value == '' then
    if known and (expected == '' or expected == known) then
      redis.call('HDEL', hash, field)
      changed, last = changed + 1, field
    end
  else
    -- The version is also a field.
    if not known and redis.call('HLEN', hash) > most then return -1 end
    redis.call('HSET', hash, field, value)
    changed, last = changed + 1, field
  end
end
if changed == 0 then return 0 end

-- The version is the time, so it is another one after changes that a failover lost, or after the
-- hash was deleted.
local now = redis.call('TIME')
local before = tonumber(redis.call('HGET', hash, 'version'))
-- A value that this script cannot have written counts as none.
if not (before and before >= 0 and before < MAX_EXACT) then before = 0 end
local version = math.max(before + 1, now[1] * 1000000 + now[2])
redis.call('HSET', hash, 'version', string.format('%.0f', version))
local message = string.format('%.0f %.0f', before, version)
-- After one change, its field is read. After several, all are.
if changed == 1 then message = message .. ' ' .. last end
redis.call('PUBLISH', ARGV[1], message)
return changed

-- Sets or removes overrides, and announces that. src/store/redis/overrides.rs sends it, apart from
-- the script that decides.
--
-- KEYS[1]  a hash: the key and the name of a limit, with a space between, to the override in JSON;
--          and the version of all, in `version`
-- ARGV[1]  the channel
-- ARGV[2]  the most overrides
-- ARGV     key and limit, override, key and limit, override, ... An empty text removes an override.
--
-- Returns how many overrides are new, different or gone. -1 if there is no room.
local hash, most = KEYS[1], tonumber(ARGV[2])
local changed, last = 0, nil

for i = 3, #ARGV, 2 do
  local field, value = ARGV[i], ARGV[i + 1]
  local is_new = redis.call('HEXISTS', hash, field) == 0
  if value == '' then
    if not is_new then
      redis.call('HDEL', hash, field)
      changed, last = changed + 1, field
    end
  else
    -- The version is also a field.
    if is_new and redis.call('HLEN', hash) > most then return -1 end
    redis.call('HSET', hash, field, value)
    changed, last = changed + 1, field
  end
end
if changed == 0 then return 0 end

-- The version is the time, so it is another one after changes that a failover lost, or after the
-- hash was deleted.
local now = redis.call('TIME')
local before = tonumber(redis.call('HGET', hash, 'version')) or 0
local version = math.max(before + 1, now[1] * 1000000 + now[2])
redis.call('HSET', hash, 'version', string.format('%.0f', version))
local message = string.format('%.0f %.0f', before, version)
-- After one change, its field is read. After several, all are.
if changed == 1 then message = message .. ' ' .. last end
redis.call('PUBLISH', ARGV[1], message)
return changed

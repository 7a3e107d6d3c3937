-- Reads and writes the value of a key.

-- Returns the value, or its first `head_size` bytes; false if there is none. At most 4 MB are read:
-- a longer value is corrupt, and reading it would hold up all other clients (400 MB: for one to
-- three seconds). The MGET of a batch has no such bound. A key of another type than a string counts
-- as an empty value, which every algorithm finds unreadable. Any other error, such as a missing
-- right, is raised.
local function read(key, head_size)
  -- As text, because an argument that is a number takes Redis longer to format.
  local last = head_size and string.format('%d', head_size - 1) or '4194303'
  local value = redis.pcall('GETRANGE', key, '0', last)
  if value == '' then return false end
  if type(value) ~= 'table' then return value end
  if string.find(value.err, 'WRONGTYPE', 1, true) then return '' end
  -- Read again to raise the error.
  return redis.call('GETRANGE', key, '0', last)
end

-- Stores a value that counts until `ends_at`. false: deletes the key. nil: changes nothing.
-- `old_end`: until when the stored value counts, if it is as long as the new one. `is_head`: the
-- value is only the head of the stored one. `grace`: the key lives so many ms longer.
--
-- `lasts`, `lasted`: how long the new and the stored value count after their last charges. With
-- `lasts` and `old_end`, `lasted` is given too. Keys expire at whole seconds, or at every fourth
-- one if the value lasts 16 s, at every 16th if it lasts 64 s, and so on. So most charges leave the
-- expiry as it is, because setting it costs Redis more than writing the value. A key stays longer
-- than it counts by a second at most, or by a quarter of the longest time that a value of it
-- lasted.
--
-- The step depends on the value alone, so a charge knows when the value that it finds expires. If
-- the new value lasts less than 16 s, the old end is rounded to a second only. That is never later
-- than the key's expiry, so the comparison stays safe. The steps are part of the format, so a
-- version with other steps needs another kind of key. Windows, permits and offences pass no
-- `lasts`, and their keys expire at whole seconds.
local function write(key, value, ends_at, lasts, old_end, lasted, is_head, now, grace)
  if not value then
    if value == false then redis.call('DEL', key) end
    return
  end
  local step, old_step = 1000000, 1000000
  if lasts and lasts >= 16000000 then
    while lasts >= 16 * step do step = 4 * step end
    while old_end and lasted >= 16 * old_step do old_step = 4 * old_step end
  end
  local expires_at = ends_at + -ends_at % step
  local keeps_expiry = old_end and old_end + -old_end % old_step == expires_at
  if keeps_expiry or is_head then
    redis.call('SETRANGE', key, '0', value)
    -- With a manual clock, extend the TTL: it follows the server's time.
    if keeps_expiry and grace == 0 then return end
  end
  local ttl = string.format('%d', math.max(math.ceil((expires_at - now) / 1000), 1) + grace)
  if keeps_expiry or is_head then
    redis.call('PEXPIRE', key, ttl)
  else
    redis.call('PSETEX', key, ttl, value)
  end
end

return read, write

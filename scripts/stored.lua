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

-- Stores a value that expires at `ends_at`. false: deletes the key. nil: changes nothing.
-- `old_end`: when the stored value expires, if it is as long as the new one. `is_head`: the value
-- is only the head of the stored one. `grace`: the key lives so many ms longer.
local function write(key, value, ends_at, old_end, is_head, now, grace)
  if not value then
    if value == false then redis.call('DEL', key) end
    return
  end
  -- Keys expire at whole seconds. So the charges of one window, and frequent charges, leave the
  -- expiry as it is: setting it costs Redis more than the value does.
  local expires_at = ends_at + -ends_at % 1000000
  local keeps_expiry = old_end and old_end + -old_end % 1000000 == expires_at
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

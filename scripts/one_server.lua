-- Finds out whether an address is one server. With one key, writes it, or deletes it if it is
-- there. With two, returns whether the second is there. It may not be, behind a proxy that chooses
-- a server by the first key.
local first, second = KEYS[1], KEYS[2]
if second then return redis.call('EXISTS', second) end
if redis.call('DEL', first) == 0 then redis.call('PSETEX', first, '10000', 'probe') end
return 1

-- Runs each command that the script needs once, on a key that it deletes. So a missing right is
-- known when the store connects. Returns a command and its error for each that failed.
local key = KEYS[1]
local commands = {
  {'TIME'}, {'MGET', key}, {'EXISTS', key}, {'GETRANGE', key, '0', '0'},
  {'STRLEN', key}, {'PSETEX', key, '1000', 'probe'}, {'SETRANGE', key, '0', 'probe'},
  {'PEXPIRE', key, '1000'}, {'PTTL', key}, {'SET', key, 'probe', 'PX', '1000'}, {'DEL', key},
}
local failed = {}
for i = 1, #commands do
  local reply = redis.pcall(unpack(commands[i]))
  if type(reply) == 'table' and reply.err then
    failed[#failed + 1] = commands[i][1]
    failed[#failed + 1] = reply.err
  end
end
return failed

std = "lua51"
max_line_length = 100
-- What Redis gives to a script; and `include`: see scripts/main.lua.
read_globals = { "redis", "struct", "KEYS", "ARGV", "cjson", "include" }

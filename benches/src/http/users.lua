-- 10,000 users, at random: each request carries one of them in a header.

local requests = {}

function init()
  math.randomseed(os.time())
  for user = 1, 10000 do
    requests[user] = wrk.format("GET", "/", { ["x-user"] = "user" .. user })
  end
end

function request()
  return requests[math.random(#requests)]
end

-- The figures as one line of JSON, in microseconds.
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"wall":%d,"p50":%d,"p99":%d,"failed":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout
  ))
end

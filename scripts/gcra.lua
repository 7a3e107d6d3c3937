-- GCRA: the token bucket's promise as a schedule.
-- Twin: src/algorithm/gcra.rs. State, limit and arithmetic: bucket.lua; what counts is how far
-- the theoretical arrival time is ahead, which is what the token bucket misses: the decisions are
-- the same.
return bucket(...)

-- Token bucket: a burst at once, then the rate.
-- Twin: src/algorithm/token_bucket.rs. State, limit and arithmetic: bucket.lua; what counts is
-- the tokens that are missing. Those that are there can be taken without delay.
return bucket(...)

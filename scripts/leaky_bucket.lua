-- Leaky bucket: requests leave evenly, or the bucket only measures.
-- Twin: src/algorithm/leaky_bucket.rs. State, limit and arithmetic: bucket.lua; what counts is
-- the water. As a queue, an admitted check waits until all that came before it has left.
return bucket(...)

//! When requests arrive, in milliseconds.

/// `count` requests, `every` milliseconds, the first of them at `from`.
pub(crate) fn steady(from: u64, every: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |number| from + number * every)
}

/// Several of these at once, in the order of their arrival.
pub(crate) fn together(parts: impl IntoIterator<Item = Vec<u64>>) -> Vec<u64> {
    let mut arrivals: Vec<_> = parts.into_iter().flatten().collect();
    arrivals.sort_unstable();
    arrivals
}

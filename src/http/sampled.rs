//! A sample of requests, for what would cost too much with each of them.

use std::cell::Cell;

/// The sample has one of so many. The number is a prime, so that callers in a fixed order all have
/// their turns.
pub(super) const ONE_OF: u32 = 61;

thread_local! {
    static ASKED: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether the caller is in the sample of this thread.
#[inline]
pub(super) fn is_sampled() -> bool {
    let number = ASKED.with(|asked| asked.replace(asked.get().wrapping_add(1)));
    number.is_multiple_of(ONE_OF)
}

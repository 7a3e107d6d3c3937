//! A sample of requests, for what would cost too much with each of them.

use std::cell::Cell;

/// One of so many is in the sample. A prime, so that whoever asks in a fixed order has its turn.
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

//! Copies of a limit, for the threads that check it.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::nouns::Limit;

/// The number of copies of a limit. A power of two.
const COPIES: usize = 16;

/// A limit for each thread, of up to 16.
///
/// Every check counts a reference to its limit. Threads that count references to one limit wait for
/// each other: with two threads, a request takes 4 % longer, and more threads wait longer.
#[derive(Clone)]
pub(super) struct Copies([Limit; COPIES]);

impl Copies {
    pub(super) fn of(limit: &Limit) -> Self {
        Self(std::array::from_fn(|_| limit.copied()))
    }

    /// The copy for this thread.
    pub(super) fn mine(&self) -> &Limit {
        &self.0[THREAD.with(|number| number % COPIES)]
    }
}

/// The number of threads so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

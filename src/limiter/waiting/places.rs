//! Bounds on the number of waiters.

use super::settings::{WaitSettings, WaiterGuard};

/// How many callers may wait.
pub(super) enum Places {
    /// Any number: the application calls.
    Unbounded,
    /// As many requests as a layer lets wait.
    Bounded(WaitSettings),
}

/// The place of one waiter.
pub(super) enum HeldPlace {
    Uncounted,
    Counted { _guard: WaiterGuard },
}

impl Places {
    /// A place for one more waiter. `None` if all are taken.
    pub(super) fn take(&self) -> Option<HeldPlace> {
        match self {
            Self::Unbounded => Some(HeldPlace::Uncounted),
            Self::Bounded(settings) => Some(HeldPlace::Counted {
                _guard: settings.take_place()?,
            }),
        }
    }

    /// The most waiters of one key.
    pub(super) const fn per_key(&self) -> usize {
        match self {
            Self::Unbounded => usize::MAX,
            Self::Bounded(settings) => settings.max_waiters_per_key,
        }
    }
}

//! How long the requests of a layer wait, and how many of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::{self, GaugeLevel};
use crate::units::ConfigError;

/// How long requests wait, and how many.
#[derive(Clone, Debug)]
pub(crate) struct WaitSettings {
    /// Zero means that requests do not wait.
    pub(super) max_wait: Duration,
    /// `true` if a store that is unavailable is asked again.
    pub(super) waits_for_store: bool,
    pub(crate) max_waiters: usize,
    pub(crate) max_waiters_per_key: usize,
    /// The number of waiters, in all layers that share these settings. `None` means that they are
    /// not counted.
    waiting: Option<Arc<AtomicUsize>>,
}

/// The longest wait, because clients and proxies give up long before.
const LONGEST: Duration = Duration::from_secs(60 * 60);

impl Default for WaitSettings {
    fn default() -> Self {
        Self {
            max_wait: Duration::ZERO,
            waits_for_store: false,
            max_waiters: 1_024,
            max_waiters_per_key: 64,
            waiting: Some(Arc::default()),
        }
    }
}

impl WaitSettings {
    /// Any number of waiters, because the application calls.
    pub(super) const fn unbounded(max_wait: Duration) -> Self {
        Self {
            max_wait,
            waits_for_store: true,
            max_waiters: usize::MAX,
            max_waiters_per_key: usize::MAX,
            waiting: None,
        }
    }

    /// # Errors
    ///
    /// Returns an error if the wait is zero or longer than an hour.
    pub(crate) fn set_max_wait(&mut self, max_wait: Duration) -> Result<(), ConfigError> {
        if max_wait.is_zero() || max_wait > LONGEST {
            return Err(ConfigError::new(format!(
                "`wait_up_to` is {max_wait:?}; use more than 0 and at most {LONGEST:?}"
            )));
        }
        self.max_wait = max_wait;
        Ok(())
    }

    /// How long a request that was sent then still waits.
    pub(crate) fn left_of(&self, sent: Instant) -> Duration {
        self.max_wait.saturating_sub(sent.elapsed())
    }

    /// The settings for a request that was sent then.
    pub(crate) fn since(&self, sent: Instant) -> Self {
        self.clone().with_max_wait(self.left_of(sent))
    }

    pub(super) fn with_max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// The bound of the number of waiters that was set, by the name of its setter.
    pub(crate) fn bound_of_waiters(&self) -> Option<&'static str> {
        let default = Self::default();
        if self.max_waiters != default.max_waiters {
            Some("max_waiters")
        } else if self.max_waiters_per_key != default.max_waiters_per_key {
            Some("max_waiters_per_key")
        } else {
            None
        }
    }

    /// Returns whether requests wait.
    #[inline]
    pub(crate) const fn is_on(&self) -> bool {
        !self.max_wait.is_zero()
    }

    /// Returns whether any number of requests may wait.
    pub(super) const fn is_unbounded(&self) -> bool {
        self.waiting.is_none()
    }

    /// A place for one more waiter. `None` if all are taken.
    pub(crate) fn take_place(&self) -> Option<WaiterGuard> {
        let Some(waiting) = &self.waiting else {
            return Some(WaiterGuard(None));
        };
        let before = waiting.fetch_add(1, Ordering::AcqRel);
        let guard = WaiterGuard(Some((Arc::clone(waiting), telemetry::waiting())));
        (before < self.max_waiters).then_some(guard)
    }
}

/// The place of one waiter, if it is counted, with the number of waiters, and its part of their
/// gauge.
pub(crate) struct WaiterGuard(Option<(Arc<AtomicUsize>, GaugeLevel)>);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        if let Some((waiting, _)) = &self.0 {
            waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

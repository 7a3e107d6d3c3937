//! Waits for changes of the overrides of keys.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::timeout;

use super::in_force::LimiterOverrides;
use crate::limiter::RateLimiter;
use crate::model::Check;

impl LimiterOverrides {
    /// Waits for a change of any override after this call.
    fn changed(&self) -> impl Future<Output = ()> {
        let set = self.handle().map(|handle| handle.table().changed());
        let of_files = self.of_files.changed();
        async move {
            let mut set = pin!(async {
                match set {
                    Some(changed) => changed.await,
                    None => pending().await,
                }
            });
            let mut of_files = pin!(of_files);
            poll_fn(|cx| match set.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => of_files.as_mut().poll(cx),
            })
            .await;
        }
    }
}

impl RateLimiter {
    /// Waits until the override of a key changes. Returns `None` if it changed first.
    pub(in crate::limiter) async fn unless_override_changes<T>(
        &self,
        checks: &[Check],
        waiting: impl Future<Output = T>,
    ) -> Option<T> {
        let mut waiting = pin!(waiting);
        let mut changed = pin!(self.until_override_changes(checks));
        poll_fn(|cx| match changed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => waiting.as_mut().poll(cx).map(Some),
        })
        .await
    }

    async fn until_override_changes(&self, checks: &[Check]) {
        loop {
            // From before the look-up, so that no change is missed.
            let changed = self.shared.overrides.changed();
            match self.next_end_of_overrides(checks) {
                None => return,
                Some(Duration::MAX) => changed.await,
                Some(rest) => drop(timeout(rest, changed).await),
            }
        }
    }

    /// The time until the first of their overrides ends. `None` if an override has changed already.
    fn next_end_of_overrides(&self, checks: &[Check]) -> Option<Duration> {
        let mut first = Duration::MAX;
        for check in checks {
            let limit = check.limit();
            match self.override_in_force(limit.without_override(), check.key()) {
                None if limit.is_overridden() => return None,
                None => {}
                Some(found) if found.asks_under(limit) => {
                    let rest = Duration::from_micros(found.ends_after());
                    first = first.min(rest);
                }
                Some(_) => return None,
            }
        }
        Some(first)
    }
}

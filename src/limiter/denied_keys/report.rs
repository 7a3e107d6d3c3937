//! The event about the most denied keys, once in each minute with a denial.
//!
//! A period begins with its first denial, which starts a task that sleeps for the period. While
//! nothing is denied, the limiter has no task.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep};

use super::{IN_EVENT, SharedCounts};
use crate::telemetry;

const PERIOD: Duration = Duration::from_secs(60);

impl SharedCounts {
    /// Reports the denials of the period when it ends. Outside of a runtime, a later denial inside
    /// one starts that.
    pub(super) fn report(shared: &Arc<Self>) {
        let is_due = &shared.report_is_due;
        if is_due.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Runtime::try_current() else {
            return;
        };
        if !is_due.swap(true, Ordering::AcqRel) {
            shared.period.lock().started = Instant::now();
            let report = PeriodEnd(Arc::downgrade(shared));
            runtime.spawn(async move {
                sleep(PERIOD).await;
                drop(report);
            });
        }
    }
}

/// Ends the period when it is dropped, after its time, or with its runtime.
struct PeriodEnd(Weak<SharedCounts>);

impl Drop for PeriodEnd {
    fn drop(&mut self) {
        let Some(shared) = self.0.upgrade() else {
            return;
        };
        // A denial that is counted from here on begins a period of its own, even if this one still
        // has it.
        shared.report_is_due.store(false, Ordering::Release);
        let ended = shared.next_period();
        let keys: Vec<_> = ended
            .keys()
            .iter()
            .take(IN_EVENT)
            .map(ToString::to_string)
            .collect();
        shared.publish(&ended);
        telemetry::most_denied_keys(ended.period(), ended.denials(), &keys.join(", "));
    }
}

//! The event about the most denied keys, once in each minute with a denial.
//!
//! A period begins with its first denial, which starts a task that sleeps for the period. While
//! nothing is denied, the limiter has no task.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep};

use super::{IN_EVENT, SharedCounts};
use crate::telemetry;
use crate::units::spawn_for;

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
            shared.period.lock().0 = Instant::now();
            // The period ends after its time, or with the runtime.
            spawn_for(shared, &runtime, Self::end_period, sleep(PERIOD));
        }
    }
    /// Ends the period, and reports it.
    fn end_period(&self) {
        // A denial that is counted from here on begins a period of its own, even if this one still
        // has it.
        self.report_is_due.store(false, Ordering::Release);
        let ended = self.next_period();
        let keys: Vec<_> = ended
            .keys()
            .iter()
            .take(IN_EVENT)
            .map(ToString::to_string)
            .collect();
        self.publish(&ended);
        telemetry::most_denied_keys(ended.period(), ended.denials(), &keys.join(", "));
    }
}

//! The breaker and the task that probes the store while it is open.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep_until};

use super::BreakerSettings;
use super::circuit::{Begun, BreakerState, Circuit};
use crate::nouns::Error;
use crate::telemetry::BreakerEvents;

/// Asks the store one harmless question.
pub(crate) trait Probe: Send + Sync + 'static {
    /// Whether the store answers. Bounded in time.
    fn probe(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}

/// A circuit, what probes its store, and its events.
pub(crate) struct Breaker {
    circuit: Circuit,
    probe: Box<dyn Probe>,
    /// Whether a task probes. It ends with its runtime: then a check of another runtime starts one.
    is_probed: AtomicBool,
    events: BreakerEvents,
}

impl Breaker {
    pub(crate) fn new(settings: BreakerSettings, store: Arc<str>, probe: impl Probe) -> Arc<Self> {
        Arc::new(Self {
            circuit: Circuit::new(settings, Instant::now()),
            probe: Box::new(probe),
            is_probed: AtomicBool::new(false),
            events: BreakerEvents::new(store),
        })
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.circuit.state()
    }

    /// Whether a check is sent. While the breaker is closed, this is one load.
    #[inline]
    pub(crate) fn admit(self: &Arc<Self>) -> Result<(), Error> {
        if self.circuit.is_closed() { Ok(()) } else { self.admit_some() }
    }

    #[cold]
    fn admit_some(self: &Arc<Self>) -> Result<(), Error> {
        let admitted = self.circuit.admit(Instant::now());
        if !self.is_probed.load(Ordering::Acquire) {
            self.start();
        }
        admitted.map_err(Error::circuit_open)
    }

    /// A call begins.
    pub(crate) fn begin(&self) -> Begun {
        self.circuit.begin(Instant::now())
    }

    /// A call ended. Returns whether this opened the breaker.
    pub(crate) fn end(self: &Arc<Self>, begun: Begun, failed: bool) -> bool {
        let Some(calls) = self.circuit.end(begun, failed, Instant::now()) else { return false };
        self.events.opened(calls.failed, calls.all);
        self.start();
        true
    }

    /// Starts the task that probes, if there is none. Outside of a runtime the next check inside one does.
    fn start(self: &Arc<Self>) {
        let Ok(runtime) = Runtime::try_current() else { return };
        if !self.is_probed.swap(true, Ordering::AcqRel) {
            runtime.spawn(Prober(Arc::downgrade(self)).run());
        }
    }
}

/// The task that probes. It does not keep the store.
struct Prober(Weak<Breaker>);

impl Prober {
    async fn run(self) {
        while let Some(next) = self.next() {
            sleep_until(next).await;
            let Some(breaker) = self.0.upgrade() else { return };
            if let Some(outage) = breaker.circuit.close(Instant::now()) {
                breaker.events.closed(outage.lasted, outage.rejected);
            } else if breaker.circuit.next_probe().is_some_and(|due| due <= Instant::now()) {
                breaker.circuit.probe();
                let succeeded = breaker.probe.probe().await;
                breaker.circuit.probed(succeeded, Instant::now());
                if succeeded {
                    breaker.events.half_opened();
                }
            }
        }
    }

    /// When to look again: at the next probe, or at the end of the recovery.
    fn next(&self) -> Option<Instant> {
        let circuit = &self.0.upgrade()?.circuit;
        circuit.next_probe().or_else(|| circuit.recovered_at())
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        if let Some(breaker) = self.0.upgrade() {
            breaker.is_probed.store(false, Ordering::Release);
        }
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("state", &self.state()).finish_non_exhaustive()
    }
}

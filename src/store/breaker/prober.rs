//! The breaker and the task that probes the store while it is open.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures_core::future::BoxFuture;
use tokio::runtime::Handle as Runtime;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::BreakerSettings;
use super::circuit::{Begun, BreakerState, Circuit, CircuitChange};
use crate::model::Error;
use crate::telemetry::BreakerEvents;
use crate::units::spawn_for;

/// A circuit, what probes its store, and its events.
pub(crate) struct Breaker {
    circuit: Circuit,
    /// Asks the store one harmless question. `true` if it answers. Bounded in time.
    probe: Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>,
    /// Fails the checks that wait to be sent. Called when the breaker has opened.
    on_opened: Box<dyn Fn() + Send + Sync>,
    /// `true` if a task probes. It ends with its runtime. Then a check of another runtime starts
    /// one.
    is_probed: AtomicBool,
    /// Wakes the task when the breaker opens.
    opened: Arc<Notify>,
    events: BreakerEvents,
}

impl Breaker {
    /// Creates a breaker. Events name the `store`, metrics the `label`.
    pub(crate) fn new(
        settings: BreakerSettings,
        store: Arc<str>,
        label: Arc<str>,
        probe: impl Fn() -> BoxFuture<'static, bool> + Send + Sync + 'static,
        on_opened: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            circuit: Circuit::new(settings, Instant::now()),
            probe: Box::new(probe),
            on_opened: Box::new(on_opened),
            is_probed: AtomicBool::new(false),
            opened: Arc::default(),
            events: BreakerEvents::new(store, label),
        })
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.circuit.state()
    }

    /// Returns an error if a check is not sent. While the breaker is closed, this is one load.
    #[inline]
    pub(crate) fn admit(self: &Arc<Self>) -> Result<(), Error> {
        if self.circuit.is_closed() {
            Ok(())
        } else {
            self.admit_some()
        }
    }

    #[cold]
    fn admit_some(self: &Arc<Self>) -> Result<(), Error> {
        let now = Instant::now();
        let admitted = self.circuit.admit(now);
        self.close(now);
        if !self.is_probed.load(Ordering::Acquire) {
            self.start();
        }
        admitted.map_err(Error::circuit_open)
    }

    /// A call begins.
    pub(crate) fn begin(&self) -> Begun {
        self.circuit.begin(Instant::now())
    }

    /// Returns whether the end of a call would count.
    pub(crate) fn counts(&self, begun: Begun) -> bool {
        self.circuit.counts(begun)
    }

    /// A call ended.
    pub(crate) fn end(self: &Arc<Self>, begun: Begun, failed: bool) {
        match self.circuit.end(begun, failed, Instant::now()) {
            None => {}
            Some(CircuitChange::Opened(calls)) => {
                self.events.opened(calls.failed, calls.all);
                // The task fails the queued checks: this call may hold the lock of their queue.
                self.opened.notify_one();
                self.start();
            }
            Some(CircuitChange::HalfOpened) => self.events.half_opened(),
        }
    }

    /// Closes the breaker, if its recovery is complete.
    fn close(&self, now: Instant) {
        if let Some((lasted, rejected)) = self.circuit.close(now) {
            self.events.closed(lasted, rejected);
        }
    }

    /// Starts the task that probes, if there is none. Outside of a runtime the next check inside
    /// one does.
    fn start(self: &Arc<Self>) {
        let Ok(runtime) = Runtime::try_current() else {
            return;
        };
        if !self.is_probed.swap(true, Ordering::AcqRel) {
            let end = |breaker: &Self| {
                // A probe that panicked, or whose runtime ended, has failed.
                breaker.circuit.probed(false, Instant::now());
                breaker.is_probed.store(false, Ordering::Release);
            };
            spawn_for(self, &runtime, end, probe(Arc::downgrade(self)));
        }
    }
}

/// Probes the store while the breaker is not closed. The task does not keep the store.
async fn probe(breaker: Weak<Breaker>) {
    // When to look again, at the next probe, or at the end of the recovery.
    let next = || {
        let breaker = breaker.upgrade()?;
        Some((breaker.circuit.next()?, Arc::clone(&breaker.opened)))
    };
    while let Some((next, opened)) = next() {
        let has_opened = timeout_at(next, opened.notified()).await.is_ok();
        let Some(breaker) = breaker.upgrade() else {
            return;
        };
        if has_opened {
            (breaker.on_opened)();
            continue;
        }
        breaker.close(Instant::now());
        if breaker.circuit.probe(Instant::now()) {
            let begun = breaker.begin();
            let answers = (breaker.probe)().await;
            let now = Instant::now();
            let succeeded = answers && !breaker.circuit.is_slow(begun, now);
            breaker.circuit.probed(succeeded, now);
            if succeeded {
                breaker.events.half_opened();
            }
        }
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

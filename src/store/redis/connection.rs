//! The connection to a node, which its lanes use.
//!
//! A lane keeps a connection for as long as it works, and multiplexes all checks on it. So does one
//! with your pool, because a pool pings a connection each time it is checked out.
//! After a failure, the next check reconnects. A task of its own connects, one at a time, with a
//! growing pause between attempts. So a connection that takes longer than one check's deadline is
//! there for the next check.

use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout};

use super::backoff::Backoff;
use super::connect::{Endpoint, Link, Subscription};
use super::terms::Terms;
use crate::store::heartbeat::Heartbeat;
use crate::telemetry::RedisEvents;
use crate::units::{Mutex, MutexGuard};

#[cfg(test)]
pub(super) mod tests;

/// The most time that one attempt to connect takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that was silent for longer may be closed, so it is pinged in front of a charge.
const SILENT: Duration = Duration::from_millis(100);

/// After a longer silence, a charge waits for the ping. The connection may have been closed while
/// the process was stopped, its container paused, or its machine suspended, and its task has not
/// read the socket yet. No check waits where each connection has four answers a second or more.
const IDLE: Duration = Duration::from_millis(250);

pub(super) struct KeptConnection {
    endpoint: Arc<Endpoint>,
    pub(super) terms: Arc<Terms>,
    state: Mutex<ConnectionState>,
    pub(super) events: Arc<RedisEvents>,
}

#[derive(Default)]
struct ConnectionState {
    current: Option<Current>,
    /// Held by the task that connects.
    connecting: Arc<tokio::sync::Mutex<()>>,
    /// The start of its attempt.
    attempt: Heartbeat,
    /// Counts connections, so that a late failure does not close a later connection.
    generation: u64,
    backoff: Backoff,
    /// The reason why no connection is open.
    failure: String,
    /// When the outage began, with its first check without a decision, and how many there were.
    outage: Option<(Instant, u64)>,
}

struct Current {
    link: Link,
    since: Instant,
    /// When the server last answered.
    heard: Instant,
    opened: Arc<Opened>,
}

/// State shared by all calls of one connection.
struct Opened {
    connection: MultiplexedConnection,
    generation: u64,
    /// The number of its next call.
    calls: AtomicU16,
    /// `true` if a call found that it is closed.
    is_known_closed: AtomicBool,
}

/// A handle on one connection.
#[derive(Clone)]
pub(super) struct Handle {
    opened: Arc<Opened>,
    /// The time since the server last answered.
    silent_for: Duration,
}

impl Handle {
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.opened.connection.clone()
    }

    /// The number of the connection among those to its server.
    pub(super) fn number(&self) -> u64 {
        self.opened.generation
    }

    /// Returns whether the server was silent for so long that the connection may be closed.
    pub(super) fn needs_ping(&self) -> bool {
        self.silent_for > SILENT
    }

    /// Returns whether the server was silent for so long that a charge waits for a ping.
    pub(super) fn needs_pong(&self) -> bool {
        self.silent_for > IDLE
    }

    /// Notes that the connection is closed. Returns `true` for the first call that finds it.
    pub(super) fn note_closed(&self) -> bool {
        !self.opened.is_known_closed.swap(true, Ordering::Relaxed)
    }

    /// The number of the next call, which its reply has to repeat.
    pub(super) fn number_call(&self) -> u16 {
        self.opened.calls.fetch_add(1, Ordering::Relaxed)
    }
}

impl KeptConnection {
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        terms: Arc<Terms>,
        events: Arc<RedisEvents>,
    ) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            terms,
            state: Mutex::default(),
            events,
        })
    }

    /// A connection to the same server, with a state of its own.
    pub(super) fn another(&self) -> Arc<Self> {
        Self::new(
            Arc::clone(&self.endpoint),
            Arc::clone(&self.terms),
            Arc::clone(&self.events),
        )
    }

    /// Returns whether both lead to the same server.
    pub(super) fn share_server_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.events, &other.events)
    }

    /// The current connection, if there is one.
    pub(super) fn current(&self) -> Option<Handle> {
        self.lock().handle()
    }

    /// The current connection, or a new one, or the reason why there is none.
    pub(super) async fn get(self: &Arc<Self>) -> Result<Handle, String> {
        if let Some(known) = self.known() {
            return known;
        }
        // A caller that waits here can be dropped. Only the attempt itself is a task.
        let turn = self.lock().turn_to_connect();
        let only_one = turn.lock_owned().await;
        if let Some(known) = self.known() {
            return known;
        }
        self.lock().attempt.beat(Instant::now());
        let kept = Arc::clone(self);
        let attempt = Attempt {
            kept,
            _only_one: only_one,
        };
        let connecting = tokio::spawn(async move { attempt.kept.connect().await });
        connecting.await.unwrap_or_else(|error| {
            // A server is not unreachable because a runtime shuts down. The next check, in another
            // runtime, connects at once.
            if error.is_cancelled() {
                let server = self.events.server();
                return Err(format!(
                    "{server}: the attempt to connect ended with its tokio runtime"
                ));
            }
            // The message of a panic, in a provider of credentials, may contain one.
            Err(self.failed("the attempt to connect panicked"))
        })
    }

    /// The same as [`get`](Self::get), with an attempt at once, because its caller paces itself.
    pub(super) async fn get_now(self: &Arc<Self>) -> Result<Handle, String> {
        self.lock().backoff.skip_pause();
        self.get().await
    }

    /// Subscribes to a channel of the server. Channels of this kind start with the prefix.
    pub(super) async fn subscribe(
        &self,
        prefix: &str,
        channel: &str,
    ) -> Result<Subscription, String> {
        let subscribing = timeout(CONNECT_TIMEOUT, self.endpoint.subscribe(prefix, channel));
        subscribing
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {CONNECT_TIMEOUT:?}")))
    }

    /// Closes a connection that failed.
    pub(super) fn discard(&self, handle: &Handle, error: &dyn Display) {
        self.close(handle, error, true);
    }

    /// Drops a connection that the server closed while it was idle, which is not a failure.
    pub(super) fn replace(&self, handle: &Handle, error: &dyn Display) {
        self.close(handle, error, false);
    }

    fn close(&self, handle: &Handle, error: &dyn Display, is_failure: bool) {
        let mut state = self.lock();
        if state.generation != handle.number() {
            return;
        }
        let Some(Current { link, since, .. }) = state.current.take() else {
            return;
        };
        link.close();
        if is_failure {
            state.backoff.lost(since, Instant::now());
        }
        state.failure = format!("{}: {error}", self.events.server());
        drop(state);
        if is_failure {
            self.events.closed(error);
        } else {
            self.events.replaced(error);
        }
    }

    /// Notes that the server decided. An outage is over if it decided `in_time`.
    pub(super) fn heard(&self, handle: &Handle, in_time: bool) {
        self.events.decided();
        let mut state = self.lock();
        if state.generation == handle.number()
            && let Some(current) = &mut state.current
        {
            current.heard = Instant::now();
        }
        if let Some((since, undecided)) = state.outage.take_if(|_| in_time) {
            drop(state);
            self.events.recovered(since.elapsed(), undecided);
        }
    }

    /// Counts checks without a decision.
    pub(super) fn count_undecided(&self, checks: usize) {
        if checks > 0 {
            let mut state = self.lock();
            let (_, undecided) = state.outage.get_or_insert((Instant::now(), 0));
            *undecided = undecided.saturating_add(checks as u64);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock()
    }

    /// The current connection, or the reason why no attempt is due.
    fn known(&self) -> Option<Result<Handle, String>> {
        let state = self.lock();
        if let Some(handle) = state.handle() {
            return Some(Ok(handle));
        }
        state
            .backoff
            .is_waiting(Instant::now())
            .then(|| Err(state.failure.clone()))
    }

    /// Connects.
    async fn connect(&self) -> Result<Handle, String> {
        let attempt = match timeout(CONNECT_TIMEOUT, self.endpoint.connect(&self.terms)).await {
            Ok(attempt) => attempt,
            Err(_) => Err(format!(
                "no answer within {CONNECT_TIMEOUT:?}; check that Redis runs there, and the URL's \
                 host, port and scheme (`rediss://` is TLS)"
            )),
        };
        match attempt {
            Ok(link) => {
                let now = Instant::now();
                let mut state = self.lock();
                state.generation += 1;
                let opened = Arc::new(Opened {
                    connection: link.connection.clone(),
                    generation: state.generation,
                    calls: AtomicU16::new(any_number()),
                    is_known_closed: AtomicBool::new(false),
                });
                let before = state.current.replace(Current {
                    link,
                    since: now,
                    heard: now,
                    opened,
                });
                let handle = state.handle();
                drop(state);
                if let Some(Current { link, .. }) = before {
                    link.superseded()
                        .iter()
                        .for_each(|master| self.events.moved(master));
                    link.close();
                }
                self.events.connected();
                handle.ok_or_else(|| "the connection was lost".to_owned())
            }
            Err(reason) => Err(self.failed(&reason)),
        }
    }

    /// Notes that an attempt failed. Returns the failure with the server's name.
    fn failed(&self, reason: &str) -> String {
        let failure = format!("{}: {reason}", self.events.server());
        let mut state = self.lock();
        state.backoff.failed(Instant::now());
        state.failure.clone_from(&failure);
        drop(state);
        self.events.unreachable(&reason);
        failure
    }
}

/// An attempt to connect. It also ends if its task panics, or ends with its runtime.
struct Attempt {
    kept: Arc<KeptConnection>,
    _only_one: OwnedMutexGuard<()>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.kept.lock().attempt.end();
    }
}

impl ConnectionState {
    /// The lock that the next task which connects has to hold. An attempt that is far beyond its
    /// timeout is on a runtime that stands still, and others must not wait for it.
    fn turn_to_connect(&mut self) -> Arc<tokio::sync::Mutex<()>> {
        let at_most = CONNECT_TIMEOUT.saturating_mul(2);
        if self.attempt.has_stopped(Instant::now(), at_most) {
            self.attempt.end();
            self.connecting = Arc::default();
        }
        Arc::clone(&self.connecting)
    }

    /// A handle on the connection, unless it is to be replaced. Its calls in flight are answered
    /// yet.
    fn handle(&self) -> Option<Handle> {
        let current = self
            .current
            .as_ref()
            .filter(|it| it.link.superseded().is_none())?;
        Some(Handle {
            opened: Arc::clone(&current.opened),
            silent_for: current.heard.elapsed(),
        })
    }
}

/// The number of a connection's first call. It differs between connections, because a proxy that
/// has a fault may give one the reply to a call of another.
fn any_number() -> u16 {
    let bits = RandomState::new().hash_one(());
    // The lowest bits.
    bits as u16
}

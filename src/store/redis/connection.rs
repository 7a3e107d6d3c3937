//! One connection, kept for long.
//!
//! deadpool-redis pings a connection whenever it hands it out. So it is asked once, the connection
//! is kept for as long as it works, and all checks are multiplexed on it. A connection that failed
//! goes, and the next check makes another: one at a time, with a growing pause between attempts,
//! in a task of its own. So a connection that takes longer than one check's deadline is still
//! there for the next.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool_redis::{Connection, Pool, PoolError};
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, timeout};

use super::backoff::Backoff;
use super::greeting::{self, in_words};
use crate::telemetry::{Outage, RedisEvents};

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that was silent for longer may have been closed meanwhile.
const SILENT: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(super) struct Connections {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    /// What every key starts with: a user may have rights to no other.
    prefix: Arc<str>,
    state: Mutex<State>,
    /// Held by the task that connects.
    connecting: Arc<tokio::sync::Mutex<()>>,
    events: Arc<RedisEvents>,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    /// Counts the connections there were, so that a late failure does not end a later one.
    generation: u64,
    backoff: Backoff,
    /// Why there is no connection.
    failure: String,
    /// Since the first check that was not decided.
    outage: Option<Outage>,
}

struct Current {
    /// Checked out of the pool for as long as it works.
    lease: Connection,
    since: Instant,
    /// When the server last answered.
    heard: Instant,
    trusted: Arc<AtomicBool>,
}

/// A handle on the connection, and which of them it is.
pub(super) struct Handle {
    pub(super) connection: MultiplexedConnection,
    generation: u64,
    /// Whether the server was silent for so long that the connection may be closed.
    pub(super) was_silent: bool,
    trusted: Arc<AtomicBool>,
}

impl Handle {
    /// Whether answers on this connection belong to their questions. One malformed answer and
    /// they may be out of step.
    pub(super) fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Acquire)
    }

    pub(super) fn distrust(&self) {
        self.trusted.store(false, Ordering::Release);
    }
}

impl Connections {
    pub(super) fn new(pool: Pool, events: Arc<RedisEvents>, prefix: Arc<str>) -> Self {
        Self {
            shared: Arc::new(Shared {
                pool,
                prefix,
                state: Mutex::default(),
                connecting: Arc::default(),
                events,
            }),
        }
    }

    /// The connection there is.
    pub(super) fn current(&self) -> Option<Handle> {
        self.shared.lock().handle()
    }

    /// The connection there is, or a new one, or why there is none.
    pub(super) async fn get(&self) -> Result<Handle, String> {
        if let Some(known) = self.shared.known() {
            return known;
        }
        // A caller that waits here can go away. Only the attempt itself is a task, one at a time.
        let only_one = Arc::clone(&self.shared.connecting).lock_owned().await;
        if let Some(known) = self.shared.known() {
            return known;
        }
        let shared = Arc::clone(&self.shared);
        let connecting = tokio::spawn(async move {
            let _only_one = only_one;
            shared.connect().await
        });
        connecting.await.map_err(|error| error.to_string())?
    }

    /// Gives up a connection that failed.
    pub(super) fn discard(&self, handle: &Handle, error: &dyn Display) {
        self.close(handle, error, true);
    }

    /// Gives up a connection that was closed in silence, which is no failure of the server.
    pub(super) fn replace(&self, handle: &Handle, error: &dyn Display) {
        self.close(handle, error, false);
    }

    fn close(&self, handle: &Handle, error: &dyn Display, is_failure: bool) {
        let mut state = self.shared.lock();
        if state.generation != handle.generation {
            return;
        }
        let Some(Current { lease, since, .. }) = state.current.take() else { return };
        // Not back into the pool: it would be handed out again, to be found broken.
        drop(Connection::take(lease));
        if is_failure {
            state.backoff.lost(since, Instant::now());
        }
        state.failure = format!("{}: {error}", self.shared.events.server());
        drop(state);
        if is_failure {
            self.shared.events.closed(error);
        } else {
            self.shared.events.replaced(error);
        }
    }

    /// The server decided on this connection. If it did `in_time`, an outage is over.
    pub(super) fn heard(&self, handle: &Handle, in_time: bool) {
        self.shared.events.decided();
        let mut state = self.shared.lock();
        if state.generation == handle.generation
            && let Some(current) = &mut state.current
        {
            current.heard = Instant::now();
        }
        if let Some(outage) = state.outage.take_if(|_| in_time) {
            drop(state);
            self.shared.events.recovered(&outage);
        }
    }

    pub(super) fn events(&self) -> &RedisEvents {
        &self.shared.events
    }

    /// So many checks were not decided.
    pub(super) fn undecided(&self, checks: usize) {
        if checks > 0 {
            self.shared.lock().outage.get_or_insert_with(Outage::begin).add(checks);
        }
    }
}

impl State {
    fn handle(&self) -> Option<Handle> {
        let current = self.current.as_ref()?;
        Some(Handle {
            connection: MultiplexedConnection::clone(&current.lease),
            generation: self.generation,
            was_silent: current.heard.elapsed() > SILENT,
            trusted: Arc::clone(&current.trusted),
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection there is, or why no attempt is due.
    fn known(&self) -> Option<Result<Handle, String>> {
        let state = self.lock();
        if let Some(handle) = state.handle() {
            return Some(Ok(handle));
        }
        state.backoff.is_waiting(Instant::now()).then(|| Err(state.failure.clone()))
    }

    /// Makes a connection.
    async fn connect(&self) -> Result<Handle, String> {
        let attempt = match timeout(CONNECT_TIMEOUT, self.attempt()).await {
            Ok(attempt) => attempt,
            Err(_) => Err(format!(
                "no answer within {CONNECT_TIMEOUT:?}; check that Redis runs there, and the URL's \
                 host, port and scheme (`rediss://` is TLS)"
            )),
        };
        match attempt {
            Ok(lease) => {
                let now = Instant::now();
                let trusted = Arc::new(AtomicBool::new(true));
                let mut state = self.lock();
                state.current = Some(Current { lease, since: now, heard: now, trusted });
                state.generation += 1;
                let handle = state.handle();
                drop(state);
                self.events.connected();
                handle.ok_or_else(|| "the connection was lost".to_owned())
            }
            Err(reason) => {
                let failure = format!("{}: {reason}", self.events.server());
                let mut state = self.lock();
                state.backoff.failed(Instant::now());
                state.failure.clone_from(&failure);
                drop(state);
                self.events.unreachable(&reason);
                Err(failure)
            }
        }
    }

    async fn attempt(&self) -> Result<Connection, String> {
        let mut lease = match self.pool.get().await {
            Ok(lease) => lease,
            Err(PoolError::Backend(error)) => return Err(in_words(&error)),
            Err(error) => return Err(error.to_string()),
        };
        match greeting::greet(&mut lease, &self.prefix).await {
            Ok(()) => Ok(lease),
            Err(reason) => {
                drop(Connection::take(lease));
                Err(reason)
            }
        }
    }
}

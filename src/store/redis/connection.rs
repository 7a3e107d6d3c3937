//! One connection, kept for long.
//!
//! deadpool-redis pings a connection whenever it hands it out. So it is asked once, the connection
//! is kept for as long as it works, and all checks are multiplexed on it. A connection that failed
//! goes, and the next check makes another: one at a time, in a task of its own, so that a
//! connection that takes longer than one check's deadline is still there for the next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::{Connection, Pool, PoolError};
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError};
use tokio::time::timeout;

use super::tls;
use crate::telemetry;

/// How long one attempt to connect may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(super) struct Connections {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    current: Mutex<Current>,
    /// Held by the one who connects.
    connecting: tokio::sync::Mutex<()>,
    /// Counts the attempts to connect that are over.
    attempts: AtomicU64,
}

#[derive(Default)]
struct Current {
    /// Checked out of the pool for as long as it works.
    lease: Option<Connection>,
    /// Counts the connections there were, so that a late failure does not end a later one.
    generation: u64,
    /// Why the last attempt failed.
    failure: String,
}

/// A handle on the connection, and which of them it is.
pub(super) struct Handle {
    pub(super) connection: MultiplexedConnection,
    generation: u64,
}

impl Connections {
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            shared: Arc::new(Shared {
                pool,
                current: Mutex::default(),
                connecting: tokio::sync::Mutex::default(),
                attempts: AtomicU64::new(0),
            }),
        }
    }

    /// The connection there is.
    pub(super) fn current(&self) -> Option<Handle> {
        self.shared.handle()
    }

    /// The connection there is, or a new one, or why there is none.
    pub(super) async fn get(&self) -> Result<Handle, String> {
        if let Some(handle) = self.current() {
            return Ok(handle);
        }
        let seen = self.shared.attempts.load(Ordering::Acquire);
        let shared = Arc::clone(&self.shared);
        let connecting = tokio::spawn(async move { shared.connect(seen).await });
        connecting.await.map_err(|error| error.to_string())?
    }

    /// Gives a connection up that failed.
    pub(super) fn discard(&self, handle: &Handle, error: &dyn std::fmt::Display) {
        let mut current = self.shared.lock();
        if current.generation == handle.generation
            && let Some(lease) = current.lease.take()
        {
            // Not back into the pool: it would be handed out again, to be found broken.
            drop(Connection::take(lease));
            telemetry::disconnected(error);
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> Option<Handle> {
        let current = self.lock();
        let connection = MultiplexedConnection::clone(current.lease.as_ref()?);
        Some(Handle { connection, generation: current.generation })
    }

    /// Makes a connection, unless somebody did, or failed to, since `seen`.
    async fn connect(&self, seen: u64) -> Result<Handle, String> {
        let _only_one = self.connecting.lock().await;
        if let Some(handle) = self.handle() {
            return Ok(handle);
        }
        if self.attempts.load(Ordering::Acquire) != seen {
            return Err(self.lock().failure.clone());
        }
        let attempt = timeout(CONNECT_TIMEOUT, self.pool.get()).await;
        self.attempts.fetch_add(1, Ordering::Release);
        let failure = match attempt {
            Ok(Ok(lease)) => {
                let mut current = self.lock();
                current.lease = Some(lease);
                current.generation += 1;
                telemetry::connected();
                drop(current);
                return self.handle().ok_or_else(|| "the connection was lost".to_owned());
            }
            Ok(Err(PoolError::Backend(error))) => in_words(&error),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no connection within {CONNECT_TIMEOUT:?}"),
        };
        self.lock().failure.clone_from(&failure);
        Err(failure)
    }
}

/// Why there is no connection to work with, on one line.
pub(super) fn in_words(error: &RedisError) -> String {
    if let Some(failure) = tls::failure(error) {
        return failure;
    }
    if error.kind() == ErrorKind::Parse {
        return "what answers there does not speak Redis's protocol".to_owned();
    }
    error.to_string().replace('\n', " ")
}

//! The store that all replicas of a service share.

mod builder;
mod connection;
mod script;
mod wire;

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::time::{Instant, timeout_at};

pub use self::builder::RedisStoreBuilder;
use self::connection::{Connections, Handle};
use self::wire::Request;
use super::{Answer, Store};
use crate::clock::ManualClock;
use crate::{Charge, ConfigError, Decision, Error, Op, check_batch, telemetry};

/// The store that all replicas of a service share: Redis, or a server that speaks its protocol
/// and runs its scripts, such as Valkey.
///
/// - One check is one script call, atomic on the server, at the server's time: neither racing
///   replicas nor their clocks can admit too much.
/// - Every call has a [deadline](RedisStoreBuilder::deadline). A check that finds Redis gone
///   fails, never hangs, and a charge whose answer was lost is not sent again: it may have
///   happened.
/// - A restart, a failover and `SCRIPT FLUSH` heal by themselves.
/// - Budgets are kept under `prefix:{key}:limit`, each with a time to live that ends when it is
///   whole again. The braces keep all limits of one key in one slot of a Redis Cluster.
/// - The connection is checked out of the pool once, and kept for as long as it works.
///
/// A Redis user for it needs no more than `~tollgate:*` (or another prefix) and `+evalsha
/// +eval +script|load +time +get +set +getrange +setrange +strlen +pexpire +del +ping +unwatch`.
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate::{RateLimiter, RedisStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::builder()
///     .url("redis://127.0.0.1/")
///     .prefix("shop")
///     .deadline(Duration::from_millis(50))
///     .connect()
///     .await?;
/// let limiter = RateLimiter::new(store);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    connections: Connections,
    prefix: String,
    deadline: Duration,
    clock: Option<ManualClock>,
}

impl RedisStore {
    /// Connects to `redis://[user:password@]host[:port][/database]`, with the defaults of the
    /// [builder](Self::builder).
    ///
    /// # Errors
    ///
    /// If the URL is not one, or the Redis behind it cannot be reached.
    pub async fn connect(url: &str) -> Result<Self, ConfigError> {
        Self::builder().url(url).connect().await
    }

    /// A store from a URL or a pool, with settings.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::new()
    }
}

/// A call that came to nothing.
enum Failure {
    /// It never left this process.
    Unsent(RedisError),
    /// It was answered with an error, or its answer was lost.
    Sent(RedisError),
    /// No answer came in time.
    Late,
}

impl Shared {
    async fn decide(&self, request: &Request) -> Result<Decision, Error> {
        let deadline = Instant::now() + self.deadline;
        let mut handle = self.connection(deadline).await?;
        let mut answer = self.call(&mut handle, request, deadline).await;
        if let Err(Failure::Unsent(error)) = &answer {
            // The server closed the connection while nobody used it: a restart, or its timeout.
            self.connections.discard(&handle, error);
            handle = self.connection(deadline).await?;
            answer = self.call(&mut handle, request, deadline).await;
        }
        match answer {
            Ok(reply) => request.decision(&reply, telemetry::unreadable),
            Err(Failure::Unsent(error)) => {
                self.connections.discard(&handle, &error);
                Err(Error::unreachable(error))
            }
            Err(Failure::Sent(error)) => {
                if ends_connection(&error) {
                    self.connections.discard(&handle, &error);
                }
                Err(Error::store(error))
            }
            Err(Failure::Late) => {
                let error = Error::timeout();
                self.connections.discard(&handle, &error);
                Err(error)
            }
        }
    }

    async fn connection(&self, deadline: Instant) -> Result<Handle, Error> {
        timeout_at(deadline, self.connections.get())
            .await
            .map_err(|_| Error::unreachable("no connection within the deadline"))?
    }

    /// Runs the script, on a connection that may turn out to be closed.
    async fn call(
        &self,
        handle: &mut Handle,
        request: &Request,
        deadline: Instant,
    ) -> Result<Vec<i64>, Failure> {
        let mut call = pin!(self.run_script(&mut handle.connection, request));
        // A call is handed to the connection's task when it is first polled. If that task is gone,
        // as after the server closed the connection, it is known at once. An error that comes later
        // may be a lost answer.
        let first = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        match first {
            Poll::Ready(Err(error)) if error.is_unrecoverable_error() => {
                Err(Failure::Unsent(error))
            }
            Poll::Ready(answer) => answer.map_err(Failure::Sent),
            Poll::Pending => match timeout_at(deadline, call).await {
                Ok(answer) => answer.map_err(Failure::Sent),
                Err(_) => Err(Failure::Late),
            },
        }
    }

    async fn run_script(
        &self,
        connection: &mut MultiplexedConnection,
        request: &Request,
    ) -> RedisResult<Vec<i64>> {
        let with = |script: &str, by: &str| {
            let mut call = redis::cmd(by);
            call.arg(script).arg(request.keys.len()).arg(&request.keys);
            call.arg(wire::time(self.clock.as_ref().map(ManualClock::now))).arg(&request.body);
            call
        };
        let by_hash = with(script::hash(), "EVALSHA");
        match by_hash.query_async(connection).await {
            // The script was not there, so nothing was charged. It is loaded rather than sent
            // with EVAL: newer servers forget scripts that came with EVAL.
            Err(error) if is_no_script(&error) => {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(script::code()).query_async::<()>(connection).await?;
            }
            answer => return answer,
        }
        match by_hash.query_async(connection).await {
            // It was flushed in between.
            Err(error) if is_no_script(&error) => {
                with(script::code(), "EVAL").query_async(connection).await
            }
            answer => answer,
        }
    }
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether another connection may do better: this one is broken, or leads to a server that is no
/// longer the one to ask.
fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::BusyLoading
            )
        )
}

impl Store for RedisStore {
    fn apply(&self, op: Op, batch: &[Charge<'_>]) -> Answer {
        let request =
            check_batch(batch).and_then(|()| Request::new(&self.shared.prefix, op, batch));
        match request {
            Ok(request) => {
                let shared = Arc::clone(&self.shared);
                Answer::later(async move { shared.decide(&request).await })
            }
            Err(error) => Answer::ready(Err(error)),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the address: a URL has a password.
        f.debug_struct("RedisStore")
            .field("prefix", &self.shared.prefix)
            .field("deadline", &self.shared.deadline)
            .finish_non_exhaustive()
    }
}

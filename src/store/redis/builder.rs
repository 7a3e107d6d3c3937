//! The settings of a Redis store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{Manager, Pool};
use redis::AsyncConnectionConfig;

use super::connection::Connections;
use super::{RedisStore, Shared};
use crate::{ConfigError, ManualClock};

/// Where a URL is not given.
const DEFAULT_URL: &str = "redis://127.0.0.1/";

const DEFAULT_PREFIX: &str = "tollgate";

/// Long against a round trip in a data centre, short against a user's patience.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(250);

const MAX_DEADLINE: Duration = Duration::from_secs(60);

const MAX_PREFIX: usize = 64;

/// The settings of a [`RedisStore`].
///
/// | setting | default |
/// |---|---|
/// | [`url`](Self::url) or [`pool`](Self::pool) | `redis://127.0.0.1/` |
/// | [`prefix`](Self::prefix) | `tollgate` |
/// | [`deadline`](Self::deadline) | 250 ms |
/// | [`clock`](Self::clock) | the server's own |
#[must_use = "a builder does nothing until the store is built"]
pub struct RedisStoreBuilder {
    source: Source,
    prefix: String,
    deadline: Duration,
    clock: Option<ManualClock>,
}

enum Source {
    Url(String),
    Pool(Pool),
}

impl RedisStoreBuilder {
    pub(super) fn new() -> Self {
        Self {
            source: Source::Url(DEFAULT_URL.to_owned()),
            prefix: DEFAULT_PREFIX.to_owned(),
            deadline: DEFAULT_DEADLINE,
            clock: None,
        }
    }

    /// The Redis to use: `redis://[user:password@]host[:port][/database]`. For `rediss://` (TLS),
    /// depend on the crate `redis`, version 1, with its feature `tokio-rustls-comp`.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.source = Source::Url(url.into());
        self
    }

    /// A pool that the application already has, instead of a URL. One connection of it is kept
    /// checked out, so it has to hold at least two.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.source = Source::Pool(pool);
        self
    }

    /// What every key starts with: 1 to 64 printable ASCII characters without spaces and braces.
    /// Two stores share their budgets if they use the same prefix.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a check may take, connecting included, before it fails: more than nothing, and at
    /// most a minute.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Decides by a clock set by hand instead of the server's, for tests and dry runs.
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The store, without connecting: the first check does. A service that is built this way
    /// starts without Redis.
    ///
    /// # Errors
    ///
    /// If the URL, the prefix or the deadline is not one.
    pub fn build(self) -> Result<RedisStore, ConfigError> {
        if self.deadline.is_zero() {
            return Err(ConfigError::new("the deadline is 0: no check could be answered in time"));
        }
        if self.deadline > MAX_DEADLINE {
            return Err(ConfigError::new(format!(
                "the deadline {:?} is longer than {MAX_DEADLINE:?}: a request would hang",
                self.deadline
            )));
        }
        let printable = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if self.prefix.is_empty()
            || self.prefix.len() > MAX_PREFIX
            || !self.prefix.bytes().all(printable)
        {
            return Err(ConfigError::new(format!(
                "the key prefix `{}` is not 1 to {MAX_PREFIX} printable ASCII characters without \
                 spaces and braces",
                self.prefix.escape_debug()
            )));
        }
        let pool = match self.source {
            Source::Pool(pool) if pool.status().max_size < 2 => {
                return Err(ConfigError::new(
                    "the pool holds one connection, and the store would keep it for itself: give \
                     the pool a max_size of at least 2, or the store a URL",
                ));
            }
            Source::Pool(pool) => pool,
            Source::Url(url) => pool(&url)?,
        };
        Ok(RedisStore {
            shared: Arc::new(Shared {
                connections: Connections::new(pool),
                prefix: self.prefix,
                deadline: self.deadline,
                clock: self.clock,
            }),
        })
    }

    /// The store, connected: a wrong address or password is known at once.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), and if Redis cannot be reached.
    pub async fn connect(self) -> Result<RedisStore, ConfigError> {
        let store = self.build()?;
        match store.shared.connections.get().await {
            Ok(_) => Ok(store),
            Err(error) => Err(ConfigError::new(format!(
                "{error}; check that Redis runs, and the URL: host, port, user, password and database"
            ))),
        }
    }
}

/// A pool of the one connection that a store keeps.
fn pool(url: &str) -> Result<Pool, ConfigError> {
    // The store has a deadline of its own; the connection's would only cut it short.
    let connection = AsyncConnectionConfig::new().set_response_timeout(None);
    // Not with the URL in the message: it has a password.
    let wrong = |error: &dyn fmt::Display| {
        ConfigError::new(format!(
            "the Redis URL cannot be used: {error}; it reads \
             redis://[user:password@]host[:port][/database], or rediss:// for TLS, which needs the \
             feature `tokio-rustls-comp` of the crate `redis`"
        ))
    };
    let manager = Manager::new_with_config(url, connection).map_err(|error| wrong(&error))?;
    Pool::builder(manager).max_size(1).build().map_err(|error| wrong(&error))
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

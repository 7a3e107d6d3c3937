//! The settings of a Redis store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{Manager, Pool};
use hashbrown::DefaultHashBuilder;
use redis::{AsyncConnectionConfig, Client};

use super::connection::Connections;
use super::lane::{Lane, Settings};
use super::tls::{self, Tls};
use super::{Lanes, RedisStore};
use crate::nouns::{ConfigError, ManualClock};
use crate::store::denials::Denials;
use crate::store::deny_cache::DEFAULT_CAPACITY;
use crate::telemetry::RedisEvents;

/// Where a URL is not given.
const DEFAULT_URL: &str = "redis://127.0.0.1/";

const DEFAULT_PREFIX: &str = "tollgate";

/// Long against a round trip in a data centre, short against a user's patience.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(250);

const MAX_DEADLINE: Duration = Duration::from_secs(60);

const MAX_PREFIX: usize = 64;

const DEFAULT_LANES: usize = 1;

const MAX_LANES: usize = 16;

/// How long another replica's refund may go unseen.
const DEFAULT_DENY_FOR: Duration = Duration::from_secs(1);

/// More requests than a replica serves at a time, and a few megabytes.
const DEFAULT_MAX_WAITING: usize = 16_384;

/// The settings of a [`RedisStore`].
///
/// | setting | default |
/// |---|---|
/// | [`url`](Self::url) or [`pool`](Self::pool) | `redis://127.0.0.1/` |
/// | `tls`, with the feature `tls`: a CA, a client certificate | the operating system's CAs, none |
/// | [`prefix`](Self::prefix) | `tollgate` |
/// | [`deadline`](Self::deadline) | 250 ms |
/// | [`lanes`](Self::lanes) | 1 |
/// | [`max_waiting`](Self::max_waiting) | 16,384 checks |
/// | [`deny_for`](Self::deny_for) | 1 second |
/// | [`clock`](Self::clock) | the server's own |
#[must_use = "a builder does nothing until the store is built"]
pub struct RedisStoreBuilder {
    source: Source,
    tls: Option<Tls>,
    prefix: String,
    deadline: Duration,
    lanes: usize,
    max_waiting: usize,
    deny_for: Duration,
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
            tls: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            deadline: DEFAULT_DEADLINE,
            lanes: DEFAULT_LANES,
            max_waiting: DEFAULT_MAX_WAITING,
            deny_for: DEFAULT_DENY_FOR,
            clock: None,
        }
    }

    /// The Redis to use: `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS,
    /// which needs the feature `tls`.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.source = Source::Url(url.into());
        self
    }

    /// The CA and the client certificate of a `rediss://` URL, in place of the operating system's
    /// CAs and no certificate.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// A pool that the application already has, instead of a URL. One connection of it is kept
    /// checked out for each [lane](Self::lanes), so it has to hold at least one more.
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

    /// On how many connections checks leave, 1 to 16. A key always leaves on the same.
    ///
    /// One, the default, keeps a Redis nearby busy, since checks leave together: on the same
    /// machine, more were not measurably faster. They make batches smaller.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Sets how many checks may wait for an answer, queued or in flight. Default: 16,384. Beyond
    /// that a check fails at once: the store [is overloaded](crate::Error::is_overloaded). A check
    /// whose caller gave it up counts until its batch is over. The bound is divided among the lanes,
    /// and the second half of that is not for a key that more than 256 of the checks in the newest
    /// batch are of, so that a single hot key does not crowd out the others.
    pub fn max_waiting(mut self, checks: usize) -> Self {
        self.max_waiting = checks;
        self
    }

    /// How long a check that was refused is refused without asking Redis, where its `retry_after`
    /// is not over before. A refund or a reset by this store counts at once, one by another replica
    /// only after this time. Zero asks Redis each time. For more settings, set this to zero and put
    /// a [`DenyCache`](crate::store::DenyCache) around the store.
    pub fn deny_for(mut self, at_most: Duration) -> Self {
        self.deny_for = at_most;
        self
    }

    /// Decides by a clock set by hand instead of the server's, for tests and dry runs. Every check
    /// is asked then: the time of [`deny_for`](Self::deny_for) is the real one.
    pub fn clock(mut self, clock: ManualClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The store, without connecting: the first check does. A service that is built this way
    /// starts without Redis.
    ///
    /// # Errors
    ///
    /// If the URL, the prefix, the deadline, the number of lanes or the room for those who wait is
    /// not one, or the pool is too small for the lanes.
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
        if !(1..=MAX_LANES).contains(&self.lanes) {
            return Err(ConfigError::new(format!(
                "{} lanes: 1 to {MAX_LANES} are possible, and more than a few gain nothing",
                self.lanes
            )));
        }
        if self.max_waiting == 0 {
            return Err(ConfigError::new("no check may wait: not even one could be sent"));
        }
        let (pool, server) = match self.source {
            Source::Pool(pool) if pool.status().max_size <= self.lanes => {
                return Err(ConfigError::new(format!(
                    "the pool holds {} connections, and the store would keep {} for itself: give \
                     the pool a max_size of at least {}, or the store a URL",
                    pool.status().max_size,
                    self.lanes,
                    self.lanes + 1
                )));
            }
            Source::Pool(_) if self.tls.is_some() => {
                return Err(ConfigError::new(
                    "`tls` is for a URL: a pool has certificates of its own; remove one of the two",
                ));
            }
            Source::Pool(pool) => (pool, "the pool's server".to_owned()),
            Source::Url(url) => pool(client(&url, self.tls)?, self.lanes)?,
        };
        let (server, prefix): (Arc<str>, Arc<str>) = (server.into(), self.prefix.into());
        // What is denied until a time set by hand may pass before that time on the wall.
        let deny_for = if self.clock.is_some() { Duration::ZERO } else { self.deny_for };
        let settings = Settings {
            prefix: Arc::clone(&prefix),
            deadline: self.deadline,
            max_waiting: self.max_waiting.div_ceil(self.lanes),
            clock: self.clock,
            denials: (!deny_for.is_zero())
                .then(|| Arc::new(Denials::new(deny_for, DEFAULT_CAPACITY))),
        };
        let events = Arc::new(RedisEvents::new(server));
        let connections =
            || Connections::new(pool.clone(), Arc::clone(&events), Arc::clone(&prefix));
        let lane = |_| Lane::new(connections(), settings.clone());
        let lanes = Lanes {
            lanes: (0..self.lanes).map(lane).collect(),
            hasher: DefaultHashBuilder::default(),
        };
        Ok(RedisStore { lanes })
    }

    /// The store, connected: a wrong address or password is known at once.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), and if Redis cannot be reached.
    pub async fn connect(self) -> Result<RedisStore, ConfigError> {
        let store = self.build()?;
        for lane in &*store.lanes.lanes {
            lane.connections
                .get()
                .await
                .map_err(|reason| ConfigError::new(format!("cannot use the Redis at {reason}")))?;
        }
        Ok(store)
    }
}

/// A pool of the connections that a store keeps, and the server's address.
fn pool(client: Client, lanes: usize) -> Result<(Pool, String), ConfigError> {
    // The store has a deadline of its own; the connection's would only cut it short.
    let connection = AsyncConnectionConfig::new().set_response_timeout(None);
    let info = client.get_connection_info().clone();
    let server = info.addr().to_string();
    let manager =
        Manager::new_with_config(info, connection).map_err(|error| unusable_url(&error))?;
    let pool =
        Pool::builder(manager).max_size(lanes).build().map_err(|error| unusable_url(&error))?;
    Ok((pool, server))
}

fn client(url: &str, tls: Option<Tls>) -> Result<Client, ConfigError> {
    match redis::parse_redis_url(url) {
        Some(parsed) if ["rediss", "valkeys"].contains(&parsed.scheme()) => tls::client(url, tls),
        Some(_) if tls.is_some() => Err(ConfigError::new(
            "`tls` is given, and the Redis URL is not one of TLS: write `rediss://`, or remove `tls`",
        )),
        _ => Client::open(url).map_err(|error| unusable_url(&error)),
    }
}

/// An error without the URL in its message: it has a password.
pub(super) fn unusable_url(error: &dyn fmt::Display) -> ConfigError {
    ConfigError::new(format!(
        "the Redis URL cannot be used: {error}; it reads \
         redis://[user:password@]host[:port][/database], or rediss:// for TLS"
    ))
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

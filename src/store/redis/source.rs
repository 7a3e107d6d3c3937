//! Limits in a key of Redis, and a channel that announces changes of it.

use std::fmt;
use std::time::Duration;

use redis::{Cmd, FromRedisValue};
use tokio::time::{Instant, sleep};

use super::RedisStore;
use super::channel::{CHECK_EVERY, Feed, check_name, config_prefix};
use super::command::{self, CommandError};
use super::overrides;
use crate::configuration::{Config, ConfigSource, Format, MAX_TEXT};
use crate::model::Error;
use crate::telemetry;
use crate::units::ConfigError;

/// How often the key is read although no change was announced.
const POLL: Duration = Duration::from_secs(10);

/// The pause between an announcement and reading. A flood of announcements costs Redis 20 reads a
/// second.
const QUIET_FOR: Duration = Duration::from_millis(50);

/// Limits in a key of Redis, which all replicas follow.
///
/// The key is `prefix-config:name`, and a channel of the same name announces changes. So an
/// operator changes the limits of all replicas with (for a store with the prefix `shop`, and the
/// name `limits`):
///
/// ```sh
/// redis-cli -x SET shop-config:limits < limits.toml
/// redis-cli PUBLISH shop-config:limits changed
/// ```
///
/// On a cluster, the key also has the hash tag of a partition: [`key`](Self::key) returns it.
///
/// - All replicas read the new version within a second. The text of a message is ignored.
/// - A message that was missed costs at most 10 seconds, because the key is read that often.
///   Without a subscription, it is read each second. A store with a pool has none.
/// - If Redis is unavailable, the limits stay as they are. An event reports it once.
/// - A key that is missing, is not a string, is not a configuration, or has more than 1 MiB is
///   reported once. The limits stay as they are.
///
/// The store's Redis user needs `~prefix-config:*` (from Redis 7 on, `%R~prefix-config:*` is
/// enough) and `&prefix-config:* +subscribe`. The user of [`publish`](Self::publish) needs `+set
/// +publish`. Write access to the key allows removing all limits, so give it to operators alone.
///
/// ```no_run
/// use tollgate::config::{Format, LimitSet, Names, RedisSource};
/// use tollgate::{RateLimitLayer, RateLimiter, RedisStore};
///
/// # async fn limits() -> Result<(), tollgate::Error> {
/// let store = RedisStore::connect("redis://127.0.0.1/", "shop").await?;
/// let mut source = RedisSource::new(&store, "limits", Format::Toml)?;
/// let limits = LimitSet::new(source.read().await?, Names::new())?;
/// limits.follow(source);
/// let layer = RateLimitLayer::from_config(RateLimiter::new(store), &limits)?;
/// # let _ = layer;
/// # Ok(())
/// # }
/// ```
pub struct RedisSource {
    /// The channel has the name of the key.
    feed: Feed,
    format: Format,
    /// `true` if it was reported that Redis is unavailable, since the key was last read.
    is_unavailable: bool,
    /// The text that was read last, or why it could not be read.
    last: Option<Result<String, String>>,
}

impl RedisSource {
    /// Creates a source for a key of the store's Redis, `prefix-config:name`, which need not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is not 1 to 64 letters, digits, `.`, `_` and `-` (ASCII), or is
    /// `overrides`.
    pub fn new(store: &RedisStore, name: &str, format: Format) -> Result<Self, ConfigError> {
        check_name("configuration", name)?;
        if name == overrides::NAME {
            return Err(ConfigError::new(format!(
                "the name of the configuration is `{name}`, which is the key of the overrides; use \
                 another name"
            )));
        }
        let lanes = store.lanes().clone();
        let (prefix, partition) = config_prefix(&lanes);
        let key = format!("{prefix}:{partition}{name}");
        Ok(Self {
            feed: Feed::new(lanes, prefix, key),
            format,
            is_unavailable: false,
            last: None,
        })
    }

    /// The key, which is also the name of the channel. On a cluster, it is
    /// `prefix-config:{tag}name`, in the slot of the first partition.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.feed.channel
    }

    /// Reads the limits now.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis [is unavailable](Error::is_unavailable). It [is
    /// misuse](Error::is_misuse) if the key is missing or has no text, or if [`Config::parse`]
    /// returns an error.
    pub async fn read(&mut self) -> Result<Config, Error> {
        let text = self
            .get()
            .await
            .map_err(|error| self.error("not read", error))?;
        self.last = Some(Ok(text.clone()));
        Ok(self.parse(&text)?)
    }

    /// Writes the limits and announces them, so that all replicas change. Returns what was written.
    ///
    /// # Errors
    ///
    /// Returns an error that [is misuse](Error::is_misuse) if [`Config::parse`] returns an error,
    /// or if a limit is out of range, without writing anything. Also returns an error if Redis does
    /// not write. Routes and the names of your application are not checked, so check the limits
    /// with [`LimitSet::new`](crate::config::LimitSet::new) before. A replica that cannot use them
    /// keeps those that it has.
    pub async fn publish(&self, text: &str) -> Result<Config, Error> {
        let config = self.parse(text)?;
        config.check()?;
        let mut set = redis::cmd("SET");
        set.arg(self.key()).arg(text);
        let mut announce = redis::cmd("PUBLISH");
        announce.arg(self.key()).arg("changed");
        self.run::<()>(&set)
            .await
            .map_err(|error| self.error("not written", error))?;
        self.run::<()>(&announce).await.map_err(|error| {
            self.error(
                "written, and not announced: replicas read it within 10 seconds",
                error,
            )
        })?;
        Ok(config)
    }

    fn parse(&self, text: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!("Redis key `{}`", self.key()), text, self.format)
    }

    fn error(&self, what: &str, error: CommandError) -> Error {
        error.into_error(&format!("Redis key `{}`: {what}", self.key()))
    }

    /// The text of the key.
    async fn get(&self) -> Result<String, CommandError> {
        // One byte more than a configuration may have, because a larger value would hold up the
        // checks on this connection.
        let mut get = redis::cmd("GETRANGE");
        get.arg(self.key()).arg(0).arg(MAX_TEXT);
        let text = self.run::<Vec<u8>>(&get).await?;
        if text.is_empty() {
            let missing = "it does not exist, or is empty; write the limits there with SET";
            return Err(CommandError::Invalid(missing.to_owned()));
        }
        if text.len() > MAX_TEXT {
            return Err(CommandError::Invalid(
                "the value is larger than 1 MiB".to_owned(),
            ));
        }
        String::from_utf8(text)
            .map_err(|_| CommandError::Invalid("the value is not UTF-8".to_owned()))
    }

    async fn run<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CommandError> {
        command::run(&self.feed.lanes, command, &self.feed.prefix).await
    }

    /// Subscribes to the channel, unless it is subscribed to. Returns whether it is so anew.
    async fn subscribe(&mut self) -> bool {
        self.feed.subscribe().await.unwrap_or_else(|error| {
            telemetry::unsubscribed(&self.feed.channel, &error);
            false
        })
    }

    /// Waits until it is time to read.
    async fn wait(&mut self) {
        if !self.feed.is_subscribed() {
            sleep(CHECK_EVERY).await;
            return;
        }
        let since = Instant::now();
        while self.feed.is_subscribed() && since.elapsed() < POLL {
            if self.feed.next().await.is_some() {
                sleep(QUIET_FOR).await;
                self.feed.skip_waiting();
                return;
            }
        }
    }
}

impl ConfigSource for RedisSource {
    async fn next(&mut self) -> Option<Result<Config, ConfigError>> {
        loop {
            // A change before the subscription is read after it.
            if !self.subscribe().await && self.last.is_some() {
                self.wait().await;
            }
            let text = match self.get().await {
                Ok(text) => Ok(text),
                Err(CommandError::Invalid(reason)) => Err(reason),
                Err(CommandError::Unavailable(reason)) => {
                    if !self.is_unavailable {
                        telemetry::limits_not_read(self.key(), &reason);
                    }
                    self.is_unavailable = true;
                    sleep(CHECK_EVERY).await;
                    continue;
                }
            };
            self.is_unavailable = false;
            if self.last.as_ref() == Some(&text) {
                continue;
            }
            self.last = Some(text.clone());
            return Some(match text {
                Ok(text) => self.parse(&text),
                Err(reason) => Err(ConfigError::new(format!(
                    "Redis key `{}`: not read: {reason}",
                    self.key()
                ))),
            });
        }
    }
}

impl fmt::Debug for RedisSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSource")
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}

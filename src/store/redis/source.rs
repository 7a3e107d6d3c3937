//! Limits in a key of Redis, and a channel that announces changes of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, RedisError};
use tokio::time::{Instant, sleep, timeout};

use super::connect::Subscription;
use super::connection::Handle;
use super::flight::{MOST_REDIRECTIONS, pointed_at};
use super::greeting::in_words;
use super::node::Node;
use super::{Lanes, RedisStore, call};
use crate::configuration::{Config, ConfigSource, Format, MAX_TEXT};
use crate::nouns::ConfigError;
use crate::telemetry;

/// How often the key is read although no change was announced.
const POLL: Duration = Duration::from_secs(10);

/// How often the key is read while changes cannot be announced.
const POLL_WITHOUT_CHANNEL: Duration = Duration::from_secs(1);

/// The pause before a command is sent again while a slot of a cluster moves.
const PAUSE: Duration = Duration::from_millis(5);

/// The pause between an announcement and reading. A flood of announcements costs Redis 20 reads a second.
const SETTLE: Duration = Duration::from_millis(50);

/// Limits in a key of Redis, which all replicas follow.
///
/// The key is `prefix-config:name`, and a channel of the same name announces changes. So an operator changes the limits
/// of all replicas with (for a store with the prefix `shop`, and the name `limits`):
///
/// ```sh
/// redis-cli -x SET shop-config:limits < limits.toml
/// redis-cli PUBLISH shop-config:limits changed
/// ```
///
/// On a cluster, the key has the hash tag of a partition, too: [`key`](Self::key) returns it.
///
/// - All replicas read the new version within a second. The text of a message is ignored.
/// - A message that was missed costs at most 10 seconds: the key is read that often. While there is no subscription, it
///   is read each second. A store with a pool has none.
/// - If Redis is unavailable, the limits stay as they are. An event reports it once.
/// - A key that is missing, or is no string, or no configuration, is reported once. The limits stay as they are. So is
///   a value of more than 1 MiB.
///
/// The store's Redis user needs `~prefix-config:*` (from Redis 7 on, `%R~prefix-config:*` is enough) and `&prefix-config:*
/// +subscribe`. The user of [`publish`](Self::publish) needs `+set +publish`. Write access to the key allows removing all
/// limits: give it to operators alone.
///
/// ```no_run
/// use tollgate::config::{Format, LimitSet, Names, RedisSource};
/// use tollgate::{RateLimitLayer, RateLimiter, RedisStore};
///
/// # async fn limits() -> Result<(), tollgate::ConfigError> {
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
    lanes: Lanes,
    /// The start of the key, up to the colon.
    prefix: String,
    key: String,
    format: Format,
    /// Whether it was reported that Redis is unavailable, since the key was last read.
    is_unavailable: bool,
    /// What was read last, or why it could not be read.
    last: Option<Result<String, String>>,
    channel: Channel,
    /// The last attempt to subscribe.
    attempted: Option<Instant>,
}

enum Channel {
    Subscribed(Subscription, SubscribedAt),
    /// The last attempt failed, or there was none.
    Unsubscribed {
        is_reported: bool,
    },
}

/// The connection beside which a subscription was made. When the key has another node, or the store another connection,
/// announcements may be made elsewhere.
struct SubscribedAt {
    node: Arc<Node>,
    connection: u64,
}

impl SubscribedAt {
    fn is(&self, node: &Arc<Node>, handle: &Handle) -> bool {
        Arc::ptr_eq(&self.node, node) && self.connection == handle.number()
    }
}

/// Why the key was not read.
enum Unread {
    /// Redis is unavailable. This is known elsewhere.
    Unavailable(String),
    /// The key has no text.
    Invalid(String),
}

impl RedisSource {
    /// Creates a source for a key of the store's Redis, `prefix-config:name`, which need not exist.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is not 1 to 64 letters, digits, `.`, `_` and `-` (ASCII).
    pub fn new(store: &RedisStore, name: &str, format: Format) -> Result<Self, ConfigError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
            return Err(ConfigError::new(format!(
                "the name of the configuration is `{}`; use 1 to 64 letters, digits, `.`, `_` and `-`",
                name.escape_debug()
            )));
        }
        let lanes = store.lanes.clone();
        // Not under the prefix of the budgets, which every replica may write.
        let start = lanes.lanes[0].prefix();
        let (prefix, partition) = start.split_at(start.find('{').unwrap_or(start.len()));
        let prefix = format!("{}-config", prefix.strip_suffix(':').unwrap_or(prefix));
        let key = format!("{prefix}:{partition}{name}");
        let channel = Channel::Unsubscribed { is_reported: false };
        Ok(Self {
            lanes,
            prefix,
            key,
            format,
            is_unavailable: false,
            last: None,
            channel,
            attempted: None,
        })
    }

    /// The key, which is the name of the channel, too. On a cluster, it is `prefix-config:{tag}name`, in the slot of the
    /// first partition.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Reads the limits now.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis is unavailable, the key is missing or has no text, or like
    /// [`Config::parse`].
    pub async fn read(&mut self) -> Result<Config, ConfigError> {
        let text = self.get().await.map_err(|unread| self.error("not read", unread))?;
        self.last = Some(Ok(text.clone()));
        self.parse(&text)
    }

    /// Writes the limits and announces them, so that all replicas change. Returns what was written.
    ///
    /// # Errors
    ///
    /// Returns an error like [`Config::parse`], or if a limit is out of range, without writing anything. Also returns an
    /// error if Redis does not write. Routes and the names of the application are not checked: check the limits with
    /// [`LimitSet::new`](crate::config::LimitSet::new) before. A replica that cannot use them keeps those that it has.
    pub async fn publish(&self, text: &str) -> Result<Config, ConfigError> {
        let config = self.parse(text)?;
        config.check()?;
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(text);
        let mut announce = redis::cmd("PUBLISH");
        announce.arg(&self.key).arg("changed");
        self.run::<()>(&set).await.map_err(|unread| self.error("not written", unread))?;
        self.run::<()>(&announce).await.map_err(|unread| {
            self.error("written, and not announced: replicas read it within 10 seconds", unread)
        })?;
        Ok(config)
    }

    fn parse(&self, text: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!("Redis key `{}`", self.key), text, self.format)
    }

    fn error(&self, what: &str, unread: Unread) -> ConfigError {
        let (Unread::Unavailable(reason) | Unread::Invalid(reason)) = unread;
        ConfigError::new(format!("Redis key `{}`: {what}: {reason}", self.key))
    }

    /// The text of the key.
    async fn get(&self) -> Result<String, Unread> {
        // One byte more than a configuration may have: a larger value would hold up the checks on this connection.
        let mut get = redis::cmd("GETRANGE");
        get.arg(&self.key).arg(0).arg(MAX_TEXT);
        let text = self.run::<Vec<u8>>(&get).await?;
        if text.is_empty() {
            let missing = "it does not exist, or is empty; write the limits there with SET";
            return Err(Unread::Invalid(missing.to_owned()));
        }
        if text.len() > MAX_TEXT {
            return Err(Unread::Invalid("the value is larger than 1 MiB".to_owned()));
        }
        String::from_utf8(text).map_err(|_| Unread::Invalid("the value is not UTF-8".to_owned()))
    }

    async fn run<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Unread> {
        match timeout(self.lanes.deadline(), self.run_where_the_key_is(command)).await {
            Ok(answer) => answer,
            Err(_) => Err(Unread::Unavailable("no answer within the deadline".to_owned())),
        }
    }

    /// Runs a command. Runs it again where a node of a cluster points to, or if the connection is closed: it may have been
    /// so for long.
    async fn run_where_the_key_is<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Unread> {
        let route = &self.lanes.lanes[0].route;
        let (mut node, mut handle) = route.connect().await.map_err(Unread::Unavailable)?;
        let mut is_asking = false;
        let mut left = MOST_REDIRECTIONS;
        loop {
            let answer = call::send(command, &mut handle.connection, is_asking).await;
            let error: RedisError = match answer {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let may_pass = call::is_of_cluster(&error) || error.is_unrecoverable_error();
            if !may_pass || left == 0 {
                return Err(unread(&error, &self.prefix));
            }
            left = left.saturating_sub(1);
            if let Some((next, asks)) = pointed_at(route, &node, &error) {
                handle = next.connections.get().await.map_err(Unread::Unavailable)?;
                (node, is_asking) = (next, asks);
                continue;
            }
            if error.is_unrecoverable_error() {
                node.connections.replace(&handle, &call::brief(&error));
            } else {
                route.has_moved();
                sleep(PAUSE).await;
            }
            (node, handle) = route.connect().await.map_err(Unread::Unavailable)?;
            is_asking = false;
        }
    }

    /// Whether announcements arrive.
    fn is_subscribed(&self) -> bool {
        let Channel::Subscribed(subscription, place) = &self.channel else { return false };
        let node = self.lanes.lanes[0].route.node();
        let current = node.and_then(|node| node.connections.current().map(|handle| (node, handle)));
        // Without a connection, nothing is known of another place.
        subscription.is_open() && current.is_none_or(|(node, handle)| place.is(&node, &handle))
    }

    /// Subscribes to the channel, unless it is subscribed to. Returns whether it is so anew.
    async fn subscribe(&mut self) -> bool {
        if self.is_subscribed() {
            return false;
        }
        let is_reported = match &self.channel {
            Channel::Subscribed(..) => false,
            Channel::Unsubscribed { is_reported } => *is_reported,
        };
        // A server may accept a subscription and end it at once.
        if let Some(attempted) = self.attempted {
            sleep(POLL_WITHOUT_CHANNEL.saturating_sub(attempted.elapsed())).await;
        }
        self.attempted = Some(Instant::now());
        let subscribed = match self.lanes.lanes[0].route.connect().await {
            Ok((node, handle)) => {
                let place = SubscribedAt { connection: handle.number(), node: Arc::clone(&node) };
                let subscription = node.connections.subscribe(&self.prefix, &self.key).await;
                subscription.map(|it| it.map(|it| (it, place)))
            }
            // It is known elsewhere that Redis is unavailable.
            Err(_) => Ok(None),
        };
        self.channel = match subscribed {
            Ok(Some((subscription, place))) => Channel::Subscribed(subscription, place),
            Ok(None) => Channel::Unsubscribed { is_reported },
            Err(error) => {
                if !is_reported {
                    telemetry::unsubscribed(&self.key, &error);
                }
                Channel::Unsubscribed { is_reported: true }
            }
        };
        matches!(self.channel, Channel::Subscribed(..))
    }

    /// Waits until it is time to read.
    async fn wait(&self) {
        let Channel::Subscribed(subscription, _) = &self.channel else {
            sleep(POLL_WITHOUT_CHANNEL).await;
            return;
        };
        let since = Instant::now();
        while self.is_subscribed() && since.elapsed() < POLL {
            if timeout(POLL_WITHOUT_CHANNEL, subscription.received()).await.is_ok() {
                sleep(SETTLE).await;
                return;
            }
        }
    }
}

impl ConfigSource for RedisSource {
    async fn next(&mut self) -> Option<Result<Config, ConfigError>> {
        loop {
            // What changed before a subscription is read after it.
            if !self.subscribe().await && self.last.is_some() {
                self.wait().await;
            }
            let text = match self.get().await {
                Ok(text) => Ok(text),
                Err(Unread::Invalid(reason)) => Err(reason),
                Err(Unread::Unavailable(reason)) => {
                    if !self.is_unavailable {
                        telemetry::limits_not_read(&self.key, &reason);
                    }
                    self.is_unavailable = true;
                    sleep(POLL_WITHOUT_CHANNEL).await;
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
                Err(reason) => Err(self.error("not read", Unread::Invalid(reason))),
            });
        }
    }
}

/// Whether the key, or the right to it, is at fault, and not the server.
fn unread(error: &RedisError, prefix: &str) -> Unread {
    let reason = in_words(error, prefix);
    match error.code() {
        Some("WRONGTYPE" | "NOPERM") => Unread::Invalid(reason),
        _ => Unread::Unavailable(reason),
    }
}

impl fmt::Debug for RedisSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSource").field("key", &self.key).finish_non_exhaustive()
    }
}

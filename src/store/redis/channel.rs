//! A channel of Redis, whose subscription follows the store to another server.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::connect::{LONGEST, Subscription};
use super::connection::Handle;
use super::node::Node;
use super::{Lanes, RedisStore, command};
use crate::model::Error;
use crate::store::{Announcement, Announcements};
use crate::telemetry;
use crate::units::ConfigError;

/// How often an open subscription is compared with the store's connection, and a missing one
/// attempted.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A channel of a store, and the subscription to it.
pub(super) struct Feed {
    pub(super) lanes: Lanes,
    pub(super) prefix: String,
    pub(super) channel: String,
    /// The subscription, with the node and the number of the connection beside which it was made.
    /// When the key has another node, or the store another connection, announcements may be made
    /// elsewhere.
    subscription: Option<(Subscription, Arc<Node>, u64)>,
    /// `true` if the current failure to subscribe was reported.
    is_reported: bool,
    attempted: Option<Instant>,
}

impl Feed {
    pub(super) const fn new(lanes: Lanes, prefix: String, channel: String) -> Self {
        Self {
            lanes,
            prefix,
            channel,
            subscription: None,
            is_reported: false,
            attempted: None,
        }
    }

    /// Returns whether announcements arrive.
    pub(super) fn is_subscribed(&self) -> bool {
        let Some((subscription, made_at, number)) = &self.subscription else {
            return false;
        };
        let node = self.lanes.all[0].route.node();
        let current = node.and_then(|node| node.connection.current().map(|handle| (node, handle)));
        // Without a current connection, there is nothing to compare with.
        let is_here = |(node, handle): (Arc<Node>, Handle)| {
            Arc::ptr_eq(made_at, &node) && *number == handle.number()
        };
        subscription.is_open() && current.is_none_or(is_here)
    }

    /// Subscribes to the channel, unless it is subscribed to. Returns `true` after a new
    /// subscription. Of errors that follow one another, it returns the first.
    pub(super) async fn subscribe(&mut self) -> Result<bool, String> {
        if !self.lanes.has_channels || self.is_subscribed() {
            return Ok(false);
        }
        // A server may accept a subscription and end it at once.
        if let Some(attempted) = self.attempted {
            sleep(CHECK_EVERY.saturating_sub(attempted.elapsed())).await;
        }
        self.attempted = Some(Instant::now());
        self.subscription = None;
        // The connection reports this failure itself.
        let Ok((node, handle)) = self.lanes.all[0].route.connect().await else {
            return Ok(false);
        };
        let connection = handle.number();
        match node.connection.subscribe(&self.prefix, &self.channel).await {
            Ok(subscription) => {
                self.is_reported = false;
                self.subscription = Some((subscription, node, connection));
                Ok(true)
            }
            Err(_) if self.is_reported => Ok(false),
            Err(error) => {
                self.is_reported = true;
                Err(error)
            }
        }
    }

    /// Waits for a message, for [`CHECK_EVERY`] at most. `None` if none came, or nothing is
    /// subscribed.
    pub(super) async fn next(&mut self) -> Option<Announcement> {
        let Some((subscription, ..)) = &mut self.subscription else {
            sleep(CHECK_EVERY).await;
            return None;
        };
        timeout(CHECK_EVERY, subscription.next()).await.ok()?
    }

    /// The messages that wait.
    #[cfg(feature = "config")]
    pub(super) fn take_waiting(&mut self) -> Vec<Announcement> {
        match &mut self.subscription {
            Some((subscription, ..)) => subscription.take_waiting(),
            None => Vec::new(),
        }
    }

    /// Forgets the messages that wait.
    pub(super) fn skip_waiting(&mut self) {
        if let Some((subscription, ..)) = &mut self.subscription {
            subscription.skip_waiting();
        }
    }
}

/// The prefix of a store's keys and channels for operators, up to the colon, and the hash tag of
/// the first partition of a cluster. Not the prefix of the budgets, which every replica may write.
pub(super) fn config_prefix(lanes: &Lanes) -> (String, &str) {
    let start = &lanes.all[0].prefix;
    let (prefix, partition) = start.split_at(start.find('{').unwrap_or(start.len()));
    (
        format!("{}-config", prefix.strip_suffix(':').unwrap_or(prefix)),
        partition,
    )
}

/// Checks the part of a name that the application chooses.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), ConfigError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
        return Err(ConfigError::new(format!(
            "the name of the {what} is `{}`; use 1 to 64 letters, digits, `.`, `_` and `-`",
            name.escape_debug()
        )));
    }
    Ok(())
}

/// A channel of the store's Redis, by which processes tell each other what changed, such as the
/// plan of a user.
///
/// Replicas [follow](crate::layer::Lookup::follow) it, and any process [announces](Self::announce)
/// changes. So may an operator (for a store with the prefix `shop`, and the name `plans`):
///
/// ```sh
/// redis-cli PUBLISH shop-config:plans 42
/// ```
///
/// - A message is the id of what changed, in at most 256 bytes.
/// - A [`RedisSource`](crate::config::RedisSource) has a channel of the same kind, so use a
///   different name.
/// - Redis does not keep messages. After a pause of the subscription, any value may have changed,
///   and each id is looked up again.
/// - The store's Redis user needs `&prefix-config:* +subscribe`, and the user of
///   [`announce`](Self::announce) `+publish`.
///
/// ```no_run
/// use tollgate::RedisStore;
/// use tollgate::store::RedisChannel;
///
/// # async fn upgrade(user: u64) -> Result<(), tollgate::Error> {
/// let store = RedisStore::connect("redis://127.0.0.1/", "shop").await?;
/// let plans = RedisChannel::new(&store, "plans")?;
/// // After a plan was changed in the database:
/// plans.announce(user).await?;
/// # Ok(())
/// # }
/// ```
pub struct RedisChannel {
    feed: Feed,
}

impl RedisChannel {
    /// Creates a channel with the name `prefix-config:name`, in the store's Redis.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is not 1 to 64 letters, digits, `.`, `_` and `-` (ASCII), or if
    /// the store has a pool, because a pool has no connections for messages.
    pub fn new(store: &RedisStore, name: &str) -> Result<Self, ConfigError> {
        check_name("channel", name)?;
        let lanes = store.lanes().clone();
        if !lanes.has_channels {
            return Err(ConfigError::new(
                "a pool has no connections for the messages of a channel; give the store a URL",
            ));
        }
        // Messages reach all nodes of a cluster, so the channel needs no slot.
        let (prefix, _) = config_prefix(&lanes);
        let channel = format!("{prefix}:{name}");
        Ok(Self {
            feed: Feed::new(lanes, prefix, channel),
        })
    }

    /// The name of the channel.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.feed.channel
    }

    /// Announces that the value of an id changed. Returns when Redis has accepted the message.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis [is unavailable](Error::is_unavailable). It [is
    /// misuse](Error::is_misuse) if the id has more than 256 bytes, or if the store's user may not
    /// publish. Then replicas use the old value until its `ttl` ends.
    pub async fn announce(&self, id: impl Display) -> Result<(), Error> {
        let lanes = &self.feed.lanes;
        let channel = &self.feed.channel;
        let id = id.to_string();
        if id.len() > LONGEST {
            return Err(Error::misuse(format!(
                "Redis channel `{channel}`: not announced: the id has {} bytes; use at most \
                 {LONGEST}",
                id.len()
            )));
        }
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel).arg(id);
        let published = command::run::<()>(lanes, &publish, &self.feed.prefix).await;
        let what = format!("Redis channel `{channel}`: not announced");
        published.map_err(|error| error.into_error(&what))
    }
}

impl Announcements for RedisChannel {
    async fn next(&mut self) -> Option<Announcement> {
        loop {
            match self.feed.subscribe().await {
                // Earlier announcements are unknown.
                Ok(true) => return Some(Announcement::Any),
                Ok(false) => {}
                Err(error) => telemetry::changes_not_followed(&self.feed.channel, &error),
            }
            if let Some(announcement) = self.feed.next().await {
                return Some(announcement);
            }
        }
    }
}

impl Clone for RedisChannel {
    /// The same channel, with a subscription of its own.
    fn clone(&self) -> Self {
        let Feed {
            lanes,
            prefix,
            channel,
            ..
        } = &self.feed;
        let feed = Feed::new(lanes.clone(), prefix.clone(), channel.clone());
        Self { feed }
    }
}

impl fmt::Debug for RedisChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisChannel")
            .field("name", &self.feed.channel)
            .finish_non_exhaustive()
    }
}

//! From a URL to a validated connection.

mod credentials;
mod hosts;
mod pool;
mod sentinel;
mod server;
mod subscription;
mod turned_away;
mod url;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub use self::credentials::Credentials;
pub(super) use self::credentials::{Provider, provider};
use self::sentinel::Sentinels;
pub(super) use self::server::{HostAndPort, Server};
pub(super) use self::subscription::{LONGEST, Subscription};
pub(super) use self::url::{Topology, parse};
use super::terms::Terms;

/// The way to the server that decides.
pub(super) enum Endpoint {
    Server(Server),
    Sentinels(Sentinels),
    Pool(deadpool_redis::Pool),
}

impl Endpoint {
    /// Makes and validates a connection, or says why it cannot. Its caller bounds the time.
    pub(super) async fn connect(&self, terms: &Terms) -> Result<Link, String> {
        match self {
            Self::Server(server) => Ok(Link::new(server.connect_to(terms).await?)),
            Self::Sentinels(sentinels) => sentinels.connect_to_master(terms).await,
            Self::Pool(pool) => pool::connect(pool, terms).await,
        }
    }

    /// Subscribes to a channel, on a connection of its own. Its caller bounds the time.
    pub(super) async fn subscribe(
        &self,
        prefix: &str,
        channel: &str,
    ) -> Result<Subscription, String> {
        match self {
            Self::Server(server) => server.subscribe(prefix, channel).await,
            Self::Sentinels(sentinels) => sentinels.subscribe(prefix, channel).await,
            Self::Pool(_) => Err("a pool has no connections for messages".to_owned()),
        }
    }

    /// Returns whether there are connections for the messages of channels.
    pub(super) const fn has_channels(&self) -> bool {
        !matches!(self, Self::Pool(_))
    }
}

/// A validated connection.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    /// Its place in your pool, if it is from there.
    pooled: Option<deadpool_redis::Connection>,
    /// The master that sentinels have elected in place of this server.
    successor: Arc<OnceLock<HostAndPort>>,
    /// Watches their election.
    election: JoinSet<()>,
}

impl Link {
    fn new(connection: MultiplexedConnection) -> Self {
        Self {
            connection,
            pooled: None,
            successor: Arc::default(),
            election: JoinSet::new(),
        }
    }

    /// The server that is the master in place of this one. The connection works, and is to be
    /// replaced.
    pub(super) fn superseded(&self) -> Option<String> {
        let (host, port) = self.successor.get()?;
        Some(format!("{host}:{port}"))
    }

    /// Closes a broken connection, which a pool would hand out again.
    pub(super) fn close(self) {
        if let Some(pooled) = self.pooled {
            drop(deadpool_redis::Connection::take(pooled));
        }
    }
}

/// Asks several servers at once, each by its name, which stands before its failure. Each has a time
/// for its answer.
pub(super) fn ask_all<T: Send + 'static>(
    asked: impl Iterator<
        Item = (
            String,
            impl Future<Output = Result<T, String>> + Send + 'static,
        ),
    >,
    time: Duration,
) -> JoinSet<Result<T, String>> {
    let answer = |(name, answer)| async move {
        let answer = timeout(time, answer).await;
        let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        answer.map_err(|error| format!("{name}: {error}"))
    };
    asked.map(answer).collect()
}

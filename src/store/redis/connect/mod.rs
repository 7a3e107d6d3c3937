//! From a URL to a validated connection.

mod credentials;
mod hosts;
mod pool;
mod sentinel;
mod server;
mod subscription;
mod turned_away;
mod url;

use futures_core::future::BoxFuture;
use redis::aio::MultiplexedConnection;

pub use self::credentials::Credentials;
pub(super) use self::credentials::Provider;
use self::sentinel::ElectionWatch;
pub(super) use self::server::{HostAndPort, Server};
pub(super) use self::subscription::{LONGEST, Received, Subscription};
pub(super) use self::url::{Target, Topology};
use super::terms::Terms;

/// Makes connections to the server that decides.
pub(super) trait Connect: Send + Sync + 'static {
    /// Makes and validates a connection, or says why it cannot. Its caller bounds the time.
    fn connect<'a>(&'a self, terms: &'a Terms) -> BoxFuture<'a, Result<Link, String>>;

    /// Subscribes to a channel, on a connection of its own. Its caller bounds the time. `None` if
    /// there are no connections for that, because a pool has none.
    fn subscribe<'a>(
        &'a self,
        prefix: &'a str,
        channel: &'a str,
    ) -> BoxFuture<'a, Result<Option<Subscription>, String>>;

    /// Returns whether there are connections for the messages of channels.
    fn has_channels(&self) -> bool {
        true
    }
}

/// A connection of the store's own, or one of your pool.
pub(super) enum Link {
    Own(MultiplexedConnection),
    /// A connection to the master that sentinels have elected.
    Elected(MultiplexedConnection, ElectionWatch),
    Pooled(deadpool_redis::Connection),
}

impl Link {
    pub(super) fn connection(&self) -> MultiplexedConnection {
        match self {
            Self::Own(connection) => connection.clone(),
            Self::Elected(connection, _) => connection.clone(),
            Self::Pooled(connection) => MultiplexedConnection::clone(connection),
        }
    }

    /// The server that is the master in place of this one. The connection works, and is to be
    /// replaced.
    pub(super) fn superseded(&self) -> Option<String> {
        match self {
            Self::Elected(_, watched) => watched
                .successor()
                .map(|(host, port)| format!("{host}:{port}")),
            Self::Own(_) | Self::Pooled(_) => None,
        }
    }

    /// Closes a broken connection, which a pool would hand out again.
    pub(super) fn close(self) {
        match self {
            Self::Own(connection) => drop(connection),
            Self::Elected(connection, watched) => drop((connection, watched)),
            Self::Pooled(connection) => drop(deadpool_redis::Connection::take(connection)),
        }
    }
}

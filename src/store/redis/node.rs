//! A server that decides, with the connection to it, and its circuit breaker.

use std::sync::Arc;
use std::time::Duration;

use super::connect::Endpoint;
use super::connection::KeptConnection;
use super::probe::{OnOpened, probe};
use super::terms::Terms;
use crate::store::breaker::{Breaker, BreakerSettings};
use crate::telemetry::RedisEvents;

pub(super) struct Node {
    /// The host of a cluster's node. Empty for any other server.
    pub(super) host: String,
    pub(super) connection: Arc<KeptConnection>,
    /// All lanes of a node share it.
    pub(super) breaker: Option<Arc<Breaker>>,
}

/// The settings that all nodes of a store share.
pub(super) struct Nodes {
    pub(super) terms: Arc<Terms>,
    pub(super) deadline: Duration,
    pub(super) breaker: Option<BreakerSettings>,
    pub(super) on_opened: OnOpened,
    pub(super) label: Arc<str>,
}

impl Nodes {
    /// Creates a node. The name appears in its events.
    pub(super) fn node(&self, endpoint: Arc<Endpoint>, name: &str, host: &str) -> Node {
        let events = Arc::new(RedisEvents::new(name.into(), Arc::clone(&self.label)));
        let connection = KeptConnection::new(endpoint, Arc::clone(&self.terms), events);
        let breaker = self.breaker.map(|settings| {
            let store = format!("Redis at {name}").into();
            let label = Arc::clone(&self.label);
            let deadline = self.deadline;
            let probed = Arc::clone(&connection);
            let probe = move || probe(Arc::clone(&probed), deadline);
            let opened = Arc::clone(&connection);
            let on_opened = Arc::clone(&self.on_opened);
            let on_opened = move || {
                if let Some(on_opened) = on_opened.get() {
                    on_opened(&opened);
                }
            };
            Breaker::new(
                settings.for_deadline(deadline),
                store,
                label,
                probe,
                on_opened,
            )
        });
        Node {
            host: host.to_owned(),
            connection,
            breaker,
        }
    }
}

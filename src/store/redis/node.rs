//! A server that decides, with the connection to it, and its circuit breaker.

use std::sync::Arc;
use std::time::Duration;

use super::connect::Connect;
use super::connection::Connections;
use super::probe::{OnOpened, RedisProbe};
use super::terms::Terms;
use crate::store::breaker::{Breaker, BreakerSettings};
use crate::telemetry::RedisEvents;

pub(super) struct Node {
    /// The host of a cluster's node. Empty for any other server.
    pub(super) host: String,
    pub(super) connections: Connections,
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
    pub(super) fn node(&self, connect: Arc<dyn Connect>, name: &str, host: &str) -> Node {
        let events = Arc::new(RedisEvents::new(name.into(), Arc::clone(&self.label)));
        let connections = Connections::new(connect, Arc::clone(&self.terms), events);
        let breaker = self.breaker.map(|settings| {
            let probe = RedisProbe {
                connections: connections.clone(),
                deadline: self.deadline,
                on_opened: Arc::clone(&self.on_opened),
            };
            let store = format!("Redis at {name}").into();
            let label = Arc::clone(&self.label);
            Breaker::new(settings.for_deadline(self.deadline), store, label, probe)
        });
        Node {
            host: host.to_owned(),
            connections,
            breaker,
        }
    }
}

impl Node {
    /// Creates a node of the same server, with a connection of its own.
    pub(super) fn with_own_connection(&self) -> Self {
        let host = self.host.clone();
        let connections = self.connections.another();
        Self {
            host,
            connections,
            breaker: self.breaker.clone(),
        }
    }
}

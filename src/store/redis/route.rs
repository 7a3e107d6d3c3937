//! Where the calls of a lane go, to one server, or to the node of a cluster that has the slot.

use std::sync::Arc;

use super::connection::Handle;
use super::node::Node;
use crate::model::Error;
use crate::store::breaker::BreakerState;
use crate::telemetry::RedisEvents;

use super::cluster::Cluster;

pub(super) enum LaneRoute {
    /// One server.
    Fixed(Arc<Node>),
    /// The node of a cluster that has the slot of this partition.
    Partition(Arc<Cluster>, usize),
}

impl LaneRoute {
    /// The node, as far as it is known.
    pub(super) fn node(&self) -> Option<Arc<Node>> {
        match self {
            Self::Fixed(node) => Some(Arc::clone(node)),
            Self::Partition(cluster, partition) => cluster.node_of(*partition),
        }
    }

    /// A connection, or why there is none.
    pub(super) async fn connect(&self) -> Result<(Arc<Node>, Handle), String> {
        let node = match self {
            Self::Fixed(node) => Arc::clone(node),
            Self::Partition(cluster, partition) => cluster.find(*partition).await?,
        };
        let handle = node.connection.get().await;
        if handle.is_err() {
            self.refresh();
        }
        Ok((node, handle?))
    }

    /// Returns an error if the circuit breaker does not let a check through.
    #[inline]
    pub(super) fn admit(&self) -> Result<(), Error> {
        match self {
            Self::Fixed(node) => node
                .breaker
                .as_ref()
                .map_or(Ok(()), |breaker| breaker.admit()),
            Self::Partition(cluster, partition) => {
                let node = cluster.node_of(*partition);
                let breaker = node.as_ref().and_then(|node| node.breaker.as_ref());
                // While the breaker is open, no call is redirected. Reading the table shows that a
                // slot has moved.
                breaker
                    .map_or(Ok(()), |breaker| breaker.admit())
                    .inspect_err(|_| cluster.refresh())
            }
        }
    }

    pub(super) fn breaker_state(&self) -> Option<BreakerState> {
        self.node()?.breaker.as_ref().map(|breaker| breaker.state())
    }

    pub(super) fn events(&self) -> &RedisEvents {
        match self {
            Self::Fixed(node) => &node.connection.events,
            Self::Partition(cluster, _) => cluster.events(),
        }
    }

    /// Counts checks without a decision.
    pub(super) fn count_undecided(&self, checks: usize) {
        if checks > 0
            && let Some(node) = self.node()
        {
            node.connection.count_undecided(checks);
        }
    }

    pub(super) const fn is_of_cluster(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// The node failed. In a cluster, another may have its slots soon.
    pub(super) fn refresh(&self) {
        match self {
            Self::Fixed(_) => {}
            Self::Partition(cluster, _) => cluster.refresh(),
        }
    }
}

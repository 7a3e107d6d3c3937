//! The probe of the circuit breaker.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::time::timeout;

use super::call;
use super::connection::Connections;
use super::lane::Lane;
use super::node::Node;
use crate::store::breaker::Probe;

/// The lanes of a store, which exist after its probe.
pub(super) type LanesOf = Arc<OnceLock<Weak<[Arc<Lane>]>>>;

/// One lone call of the script, without a check, on the node's connection. A new connection is validated
/// first. If that takes longer than the deadline, it is there for the next probe.
pub(super) struct RedisProbe {
    pub(super) connections: Connections,
    pub(super) deadline: Duration,
    pub(super) lanes: LanesOf,
}

impl Probe for RedisProbe {
    fn probe(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async {
            let connecting = timeout(self.deadline, self.connections.get_now());
            let Ok(Ok(mut handle)) = connecting.await else {
                return false;
            };
            let call = call::dry_run(&mut handle.connection, self.connections.terms());
            let answer = timeout(self.deadline, call).await;
            let error = match answer {
                Ok(Ok(())) => return true,
                Ok(Err(error)) => call::brief(&error),
                Err(_) => "a probe was not answered within the deadline".to_owned(),
            };
            self.connections.discard(&handle, &error);
            false
        })
    }

    fn opened(&self) {
        let Some(lanes) = self.lanes.get().and_then(Weak::upgrade) else {
            return;
        };
        for lane in &*lanes {
            let is_here = |node: &Node| node.connections.share_server_with(&self.connections);
            if lane.route.node().is_some_and(|node| is_here(&node)) {
                lane.fail_queued();
            }
        }
    }
}

//! The outcome of a call, for the circuit breaker.

use std::sync::Arc;

use super::super::node::Node;
use crate::store::breaker::{Begun, Breaker};

/// Tells the circuit breaker how a call ended, once.
pub(super) struct BreakerReport(Option<(Arc<Breaker>, Begun)>);

impl BreakerReport {
    pub(super) fn begin(node: Option<&Node>) -> Self {
        let breaker = node.and_then(|node| node.breaker.as_ref());
        Self(breaker.map(|breaker| (Arc::clone(breaker), breaker.begin())))
    }

    /// The call says nothing of the server.
    pub(super) fn cancel(&mut self) {
        self.0 = None;
    }

    pub(super) fn end(&mut self, failed: bool) {
        if let Some((breaker, begun)) = self.0.take() {
            breaker.end(begun, failed);
        }
    }
}

//! The outcome of a call, for the circuit breaker.

use std::sync::Arc;

use super::super::connection::Handle;
use super::super::node::Node;
use crate::store::breaker::{Begun, Breaker};

/// Tells the circuit breaker how a call ended, once.
pub(super) struct BreakerReport(Option<(Arc<Breaker>, Begun)>);

impl BreakerReport {
    pub(super) fn begin(node: Option<&Node>) -> Self {
        let breaker = node.and_then(|node| node.breaker.as_ref());
        Self(breaker.map(|breaker| (Arc::clone(breaker), breaker.begin())))
    }

    /// The call failed because its connection is closed. All calls of a connection that fail so are
    /// one failure of the server. The first of them that counts reports it.
    pub(super) fn end_with_connection(&mut self, handle: &Handle) {
        let counts = |(breaker, begun): &(Arc<Breaker>, Begun)| breaker.counts(*begun);
        if self.0.as_ref().is_some_and(counts) && handle.note_closed() {
            self.end(true);
        }
        self.0 = None;
    }

    pub(super) fn end(&mut self, failed: bool) {
        if let Some((breaker, begun)) = self.0.take() {
            breaker.end(begun, failed);
        }
    }
}

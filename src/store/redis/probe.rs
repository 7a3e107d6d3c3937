//! The probe of the circuit breaker.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::time::timeout;

use super::call;
use super::connection::Connections;
use crate::store::breaker::Probe;

/// The reaction of a store when the circuit breaker of a server opens. It is set when the store is
/// complete.
pub(super) type OnOpened = Arc<OnceLock<Box<dyn Fn(&Connections) + Send + Sync>>>;

/// One lone call of the script, without a check, on the node's connection. A new connection is
/// validated first. If that takes longer than the deadline, it is there for the next probe.
pub(super) struct RedisProbe {
    pub(super) connections: Connections,
    pub(super) deadline: Duration,
    pub(super) on_opened: OnOpened,
}

impl Probe for RedisProbe {
    fn probe(&self) -> BoxFuture<'_, bool> {
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
        if let Some(on_opened) = self.on_opened.get() {
            on_opened(&self.connections);
        }
    }
}

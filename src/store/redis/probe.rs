//! The probe of the circuit breaker.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;

use super::call;
use super::connection::Connections;
use crate::store::breaker::Probe;

/// One lone call of the script, without a check, on the first lane's connection. A new connection is validated
/// first.
pub(super) struct RedisProbe {
    connections: Connections,
    deadline: Duration,
}

impl RedisProbe {
    pub(super) const fn new(connections: Connections, deadline: Duration) -> Self {
        Self { connections, deadline }
    }
}

impl Probe for RedisProbe {
    fn probe(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async {
            let Ok(mut handle) = self.connections.get_now().await else { return false };
            let call = call::dry_run(&mut handle.connection, self.connections.prefix());
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
}

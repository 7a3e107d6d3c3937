//! The probe of the circuit breaker.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_core::future::BoxFuture;
use tokio::time::timeout;

use super::call;
use super::connection::KeptConnection;

/// The reaction of a store when the circuit breaker of a server opens. It is set when the store is
/// complete.
pub(super) type OnOpened = Arc<OnceLock<Box<dyn Fn(&KeptConnection) + Send + Sync>>>;

/// One lone call of the script, without a check, on the node's connection. A new connection is
/// validated first. If that takes longer than the deadline, it is there for the next probe.
pub(super) fn probe(
    connection: Arc<KeptConnection>,
    deadline: Duration,
) -> BoxFuture<'static, bool> {
    Box::pin(async move {
        let connecting = timeout(deadline, connection.get_now());
        let Ok(Ok(handle)) = connecting.await else {
            return false;
        };
        let mut opened = handle.connection();
        let call = call::dry_run(&mut opened, &connection.terms);
        let answer = timeout(deadline, call).await;
        let error = match answer {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => call::brief(&error),
            Err(_) => "a probe was not answered within the deadline".to_owned(),
        };
        connection.discard(&handle, &error);
        false
    })
}

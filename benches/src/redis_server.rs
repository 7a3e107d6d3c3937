//! The Redis that everybody is measured on.

use std::sync::Arc;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

#[path = "../../tests/support/redis_server.rs"]
mod support;

/// A handle on the server, which stops when the last one is dropped.
#[derive(Clone)]
pub struct Server(Arc<support::RedisServer>);

impl Server {
    pub fn start() -> Self {
        Self(Arc::new(support::RedisServer::start()))
    }

    pub fn url(&self) -> String {
        self.0.url()
    }

    pub fn client(&self) -> redis::Client {
        self.0.client()
    }

    /// A multiplexed connection that waits for its answers.
    pub async fn connection(&self) -> MultiplexedConnection {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = self.client().get_multiplexed_async_connection_with_config(&config).await;
        connection.expect("the server runs")
    }

    /// Forgets all keys and the statistics; scripts stay.
    pub async fn clear(&self) {
        let mut connection = self.connection().await;
        let flush = redis::cmd("FLUSHALL");
        flush.query_async::<()>(&mut connection).await.expect("the server runs");
        let mut reset = redis::cmd("CONFIG");
        reset.arg("RESETSTAT").query_async::<()>(&mut connection).await.expect("the server runs");
    }
}

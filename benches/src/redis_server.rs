//! The Redis that all contenders are measured on.

use std::sync::Arc;

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

#[path = "../../tests/support/redis_server.rs"]
mod support;

/// A handle on the server. Dropping the last one stops the server.
#[derive(Clone)]
pub struct Server(Arc<support::RedisServer>);

impl Server {
    pub fn start() -> Self {
        Self(Arc::new(support::RedisServer::start()))
    }

    pub fn url(&self) -> String {
        self.0.url()
    }

    pub async fn connection(&self) -> MultiplexedConnection {
        connection(&self.url()).await
    }

    /// Deletes all keys and resets the statistics. Scripts stay.
    pub async fn clear(&self) {
        let mut connection = self.connection().await;
        let flush = redis::cmd("FLUSHALL");
        flush
            .query_async::<()>(&mut connection)
            .await
            .expect("the server runs");
        let mut reset = redis::cmd("CONFIG");
        reset
            .arg("RESETSTAT")
            .query_async::<()>(&mut connection)
            .await
            .expect("the server runs");
    }
}

/// A multiplexed connection that waits for its answers without a timeout.
pub async fn connection(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("the URL is valid");
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await;
    connection.expect("the server runs")
}

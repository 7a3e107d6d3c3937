//! The conformance suite on the embedded store and on Redis.

#![cfg(feature = "test-util")]

#[cfg(feature = "redis")]
mod support;

use tollgate::MemoryStore;
use tollgate::store::conformance;

#[tokio::test]
async fn embedded_store_conforms() {
    conformance::check(MemoryStore::with_clock).await;
}

#[tokio::test]
async fn capped_embedded_store_conforms() {
    conformance::check(|clock| MemoryStore::with_clock(clock).max_keys(8)).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_conforms() {
    let server = support::RedisServer::start();
    let mut stores = 0;
    conformance::check(|clock| {
        stores += 1;
        let builder = server.store().prefix(format!("store-{stores}"));
        builder.clock(clock).build().unwrap()
    })
    .await;
}

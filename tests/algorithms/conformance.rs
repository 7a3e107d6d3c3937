//! The conformance suite on the embedded store and on Redis.

#![cfg(feature = "test-util")]

#[cfg(feature = "redis")]
#[cfg(feature = "redis")]
use std::time::Duration;

use tollgate::MemoryStore;
use tollgate::store::conformance;

#[tokio::test]
async fn embedded_store_conforms() {
    conformance::check(MemoryStore::with_clock).await;
}

#[tokio::test]
async fn capped_embedded_store_conforms() {
    conformance::check(|clock| MemoryStore::builder().clock(clock).max_keys(8).build()).await;
}

/// Runs the suite on a server at this URL.
#[cfg(feature = "redis")]
async fn redis_at(url: &str) {
    let mut stores = 0;
    conformance::check(|clock| {
        stores += 1;
        let store = tollgate::RedisStore::builder(format!("tollgate:store-{stores}")).url(url);
        store
            .deadline(Duration::from_secs(20))
            .clock(clock)
            .build()
            .unwrap()
    })
    .await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_conforms() {
    let server = crate::support::RedisServer::start();
    redis_at(&server.url()).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_conforms_over_resp3() {
    let server = crate::support::RedisServer::start();
    redis_at(&format!("{}?protocol=resp3", server.url())).await;
}

#[cfg(all(unix, feature = "redis"))]
#[tokio::test]
async fn redis_conforms_over_a_unix_socket() {
    let socket =
        std::env::temp_dir().join(format!("tollgate-{}.sock", crate::support::free_port()));
    let socket = socket.to_str().unwrap();
    let _server = crate::support::RedisServer::start_with(&["--unixsocket", socket]);
    redis_at(&format!("redis+unix://{socket}")).await;
}

/// The rights that the documentation of `RedisStore` lists.
#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_conforms_for_a_user_with_the_documented_rights_alone() {
    let source = include_str!("../../src/store/redis/mod.rs");
    let (_, rights) = source
        .split_once("and `+evalsha")
        .expect("the documentation lists them");
    let rights = format!("+evalsha{}", rights.split('`').next().unwrap());
    let server = crate::support::RedisServer::start();
    let mut command = redis::cmd("ACL");
    command.arg(&[
        "SETUSER",
        "limiter",
        "on",
        ">secret",
        "resetkeys",
        "~tollgate:*",
    ]);
    command.arg(&["resetchannels", "-@all"]);
    for right in rights.split_whitespace().filter(|it| *it != "///") {
        command.arg(right);
    }
    let () = command.query(&mut server.connection()).unwrap();
    redis_at(&format!(
        "redis://limiter:secret@127.0.0.1:{}/",
        server.port()
    ))
    .await;
}

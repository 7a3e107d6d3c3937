//! Announcements of changes, which the look-ups of all replicas follow.

#![cfg(feature = "axum")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use http::request::Parts;
use tokio::time::{sleep, timeout};
use tollgate::layer::{ChosenLimits, Lookup};
use tollgate::store::RedisChannel;
use tollgate::{RateLimitLayer, RateLimiter, RedisStore};

use crate::support::RedisServer;
use crate::support::log::Log;
use crate::support::requests::{request, send};

const LONG: Duration = Duration::from_secs(20);

/// A database, of which each replica asks the version of a user.
#[derive(Clone, Default)]
struct Database {
    version: Arc<AtomicU32>,
    asked: Arc<Mutex<Vec<u64>>>,
}

impl Database {
    fn change(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    fn asked(&self) -> Vec<u64> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    /// A replica that tells what it knows of a user.
    fn replica(&self, channel: RedisChannel) -> Router {
        let user = |parts: &Parts| parts.uri.path().trim_start_matches('/').parse::<u64>().ok();
        let database = self.clone();
        let lookup = Lookup::new(user, move |user| {
            database.asked.lock().unwrap().push(user);
            let version = database.version.load(Ordering::SeqCst);
            async move { Ok::<_, Infallible>(Some(version)) }
        });
        lookup.follow(channel);
        let limiter = RateLimiter::in_memory();
        let layer = RateLimitLayer::from_lookup(limiter, lookup, |_, _, found| {
            ChosenLimits::reject(format!("{found:?}"))
        });
        Router::new()
            .route("/{user}", any(|| async { "hello" }))
            .layer(layer.unwrap())
    }
}

async fn known(app: &Router, user: u64) -> String {
    let response = send(
        app,
        request("GET", &format!("/{user}")).body("".into()).unwrap(),
    )
    .await;
    let body = axum::body::to_bytes(response.into_body(), 1_000)
        .await
        .unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

async fn store(server: &RedisServer) -> RedisStore {
    RedisStore::connect(&server.url(), "tollgate")
        .await
        .unwrap()
}

async fn channel(server: &RedisServer) -> RedisChannel {
    RedisChannel::new(&store(server).await, "plans").unwrap()
}

fn subscriptions(server: &RedisServer) -> u64 {
    let mut count = redis::cmd("PUBSUB");
    count.arg("NUMSUB").arg("tollgate-config:plans");
    count
        .query::<(String, u64)>(&mut server.connection())
        .unwrap()
        .1
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_so().await {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, waiting)
        .await
        .unwrap_or_else(|_| panic!("in time: {what}"));
}

#[tokio::test]
async fn announced_id_is_looked_up_again_on_all_replicas_and_no_other() {
    let server = RedisServer::start();
    let database = Database::default();
    let replicas = [
        database.replica(channel(&server).await),
        database.replica(channel(&server).await),
    ];
    until("both have subscribed", async || subscriptions(&server) == 2).await;
    let operator = channel(&server).await;
    assert_eq!(operator.name(), "tollgate-config:plans");
    for app in &replicas {
        // What was announced before the subscription is unknown, so a first value may be asked for
        // twice.
        for user in [1, 2] {
            until("a value", async || {
                known(app, user).await.contains("Known(0)")
            })
            .await;
        }
    }
    for app in &replicas {
        until("nothing is doubtful", async || {
            database.asked();
            known(app, 1).await;
            known(app, 2).await;
            database.asked().is_empty()
        })
        .await;
    }
    database.change();
    operator.announce(1).await.unwrap();
    for app in &replicas {
        until("the new value", async || {
            known(app, 1).await.contains("Known(1)")
        })
        .await;
        assert!(known(app, 2).await.contains("Known(0)"));
    }
    assert_eq!(database.asked(), [1, 1]);
}

#[tokio::test]
async fn values_are_looked_up_again_after_a_subscription_was_lost() {
    let server = RedisServer::start();
    let database = Database::default();
    let app = database.replica(channel(&server).await);
    until("it has subscribed", async || subscriptions(&server) == 1).await;
    until("a value", async || {
        known(&app, 7).await.contains("Known(0)")
    })
    .await;
    database.change();
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("pubsub");
    let killed: u64 = kill.query(&mut server.connection()).unwrap();
    assert_eq!(killed, 1);
    // This reaches nobody.
    channel(&server).await.announce(7).await.unwrap();
    until("the new value", async || {
        known(&app, 7).await.contains("Known(1)")
    })
    .await;
}

#[tokio::test]
async fn messages_that_are_no_ids_are_reported_and_change_nothing() {
    let server = RedisServer::start();
    let database = Database::default();
    let (log, _guard) = Log::start();
    let app = database.replica(channel(&server).await);
    until("it has subscribed", async || subscriptions(&server) == 1).await;
    let operator = channel(&server).await;
    operator.announce("alice\u{1b}").await.unwrap();
    let mut lines = Vec::new();
    until("the event", async || {
        lines.extend(log.lines());
        lines
            .iter()
            .any(|line| line.contains("announced change has no id"))
    })
    .await;
    assert!(
        lines
            .iter()
            .any(|line| line.contains(r#"id="alice\u{1b}""#)),
        "{lines:?}"
    );
    assert!(known(&app, 7).await.contains("Known(0)"));
}

#[tokio::test]
async fn message_that_was_not_kept_may_have_been_of_any_id() {
    let server = RedisServer::start();
    let database = Database::default();
    let app = database.replica(channel(&server).await);
    until("it has subscribed", async || subscriptions(&server) == 1).await;
    // It is subscribed before it has expired what may have been announced earlier.
    until("a fresh value", async || {
        known(&app, 7).await;
        database.asked();
        known(&app, 7).await;
        database.asked().is_empty()
    })
    .await;
    let operator = channel(&server).await;
    let long = "x".repeat(300);
    let error = operator.announce(&long).await.unwrap_err().to_string();
    assert!(
        error.ends_with("the id has 300 bytes; use at most 256"),
        "{error}"
    );
    // It is too long to be kept, so it may have been any.
    database.change();
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(operator.name()).arg(&long);
    let () = publish.query(&mut server.connection()).unwrap();
    until("the new value", async || {
        known(&app, 7).await.contains("Known(1)")
    })
    .await;
    database.change();
    operator.announce(7).await.unwrap();
    until("the next value", async || {
        known(&app, 7).await.contains("Known(2)")
    })
    .await;
}

#[tokio::test]
async fn subscription_ends_with_the_look_up() {
    let server = RedisServer::start();
    let app = Database::default().replica(channel(&server).await);
    until("it has subscribed", async || subscriptions(&server) == 1).await;
    drop(app);
    until("it has ended", async || subscriptions(&server) == 0).await;
}

#[tokio::test]
async fn channel_without_a_name_or_with_a_pool_is_an_error() {
    let server = RedisServer::start();
    let with_url = store(&server).await;
    for name in ["", "a b", "plans:1", &"a".repeat(65)] {
        let error = RedisChannel::new(&with_url, name).unwrap_err().to_string();
        assert!(error.starts_with("the name of the channel is "), "{error}");
    }
    let pool = deadpool_redis::Config::from_url(server.url())
        .create_pool(None)
        .unwrap();
    let pooled = RedisStore::builder("tollgate")
        .pool(pool)
        .connect()
        .await
        .unwrap();
    let error = RedisChannel::new(&pooled, "plans").unwrap_err().to_string();
    assert!(error.contains("give the store a URL"), "{error}");
}

#[tokio::test]
async fn announcement_without_the_right_or_without_redis_is_an_error() {
    let mut server = RedisServer::start();
    let mut set_user = redis::cmd("ACL");
    set_user.arg(&[
        "SETUSER",
        "limited",
        "on",
        ">secret",
        "~tollgate:*",
        "+@all",
        "-publish",
    ]);
    let () = set_user.query(&mut server.connection()).unwrap();
    let url = format!("redis://limited:secret@127.0.0.1:{}/", server.port());
    let limited = RedisStore::connect(&url, "tollgate").await.unwrap();
    let limited = RedisChannel::new(&limited, "plans").unwrap();
    let error = limited.announce(1).await.unwrap_err();
    assert!(error.is_misuse(), "the right is missing, and not Redis");
    let error = error.to_string();
    assert!(
        error.contains("not announced: ") && error.contains("+publish"),
        "{error}"
    );

    let operator = channel(&server).await;
    server.kill();
    let error = operator.announce(1).await.unwrap_err();
    assert!(error.is_unavailable());
    let error = error.to_string();
    assert!(
        error.contains("tollgate-config:plans`: not announced: "),
        "{error}"
    );
}

//! Passwords that change while the service runs.

#![cfg(feature = "redis")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::store::Credentials;
use tollgate::{Key, Limit, Quota, RateLimiter, RedisStore};

use crate::support::RedisServer;

fn acl(server: &RedisServer, arguments: &[&str]) {
    let () = redis::cmd("ACL")
        .arg(arguments)
        .query(&mut server.connection())
        .unwrap();
}

#[tokio::test]
async fn each_connection_asks_for_its_credentials() {
    let server = RedisServer::start();
    let passwords = ["first", "second", "third"];
    acl(
        &server,
        &["SETUSER", "limiter", "on", "~*", "+@all", ">first"],
    );
    let (current, asked) = (Arc::new(Mutex::new("first")), Arc::new(AtomicU32::new(0)));
    let (password, count) = (Arc::clone(&current), Arc::clone(&asked));
    let store = server
        .store()
        .without_circuit_breaker()
        .credentials(move || {
            count.fetch_add(1, Ordering::SeqCst);
            let password = *password.lock().unwrap();
            async move { Ok::<_, String>(Credentials::user("limiter", password)) }
        });
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let limit = Limit::gcra("api", Quota::per_second(1_000)).unwrap();
    let key = Key::new("alice");
    for password in passwords {
        let asked_before = asked.load(Ordering::SeqCst);
        acl(
            &server,
            &["SETUSER", "limiter", "resetpass", &format!(">{password}")],
        );
        *current.lock().unwrap() = password;
        // A connection that is logged in stays so, and a new one needs the new password.
        drop(limiter.check(&limit, &key).await.unwrap());
        assert_eq!(asked.load(Ordering::SeqCst), asked_before);
        acl(&server, &["DELUSER", "limiter"]);
        acl(
            &server,
            &[
                "SETUSER",
                "limiter",
                "on",
                "~*",
                "+@all",
                &format!(">{password}"),
            ],
        );
        // The server closed the connection. The check that notices it may fail; another is made.
        let decides = async {
            while limiter.check(&limit, &key).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), decides)
            .await
            .expect("it decides again");
        assert!(asked.load(Ordering::SeqCst) > asked_before);
        let users: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut server.connection())
            .unwrap();
        assert!(users.contains("user=limiter"), "{users}");
    }
}

#[tokio::test]
async fn failure_of_the_provider_and_a_wrong_password_are_errors_that_say_so() {
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    let store = || RedisStore::builder("tollgate").url(server.url());
    let broken = store().credentials(|| async { Err::<Credentials, _>("the vault is\nsealed") });
    let error = broken.connect().await.unwrap_err().to_string();
    assert!(
        error.contains("the provider of `credentials` failed: the vault is sealed"),
        "{error}"
    );

    let panics = store().credentials(|| async {
        assert_eq!(std::process::id(), 0, "with the secret in its message");
        Ok::<_, String>(Credentials::password("never"))
    });
    let error = panics.connect().await.unwrap_err().to_string();
    assert!(
        !error.contains("secret") && error.contains("panicked"),
        "{error}"
    );

    // A password alone is that of the default user, whatever the user in the URL.
    let url = server.url().replace("//", "//other:password@");
    let right = RedisStore::builder("tollgate").url(url);
    let right = right.credentials(|| async { Ok::<_, String>(Credentials::password("right")) });
    right.connect().await.unwrap();

    let wrong = store().credentials(|| async { Ok::<_, String>(Credentials::password("guess")) });
    let error = wrong.connect().await.unwrap_err().to_string();
    assert!(!error.contains("guess"), "{error}");
    assert!(error.contains("check the"), "{error}");
}

#[test]
fn credentials_and_a_pool_are_an_error_and_debug_omits_the_password() {
    let pool = deadpool_redis::Config::from_url("redis://127.0.0.1/")
        .create_pool(None)
        .unwrap();
    let store = RedisStore::builder("tollgate").pool(pool);
    let store = store.credentials(|| async { Ok::<_, String>(Credentials::password("secret")) });
    assert!(
        store
            .build()
            .unwrap_err()
            .to_string()
            .contains("a pool has credentials of its own")
    );
    assert!(!format!("{:?}", Credentials::user("limiter", "secret")).contains("secret"));
}

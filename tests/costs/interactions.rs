//! Costs, plans and shadow mode where they meet stacked layers, batches, outages and other threads.

#![cfg(all(feature = "axum", feature = "redis"))]

use std::time::Duration;

use axum::routing::any;
use axum::{Extension, Router};
use http::request::Parts;
use tokio::time::sleep;
use tollgate::key::Global;
use tollgate::layer::{ChosenLimits, OnStoreFailure, Settlement};
use tollgate::store::{Answer, Change, Group, Operation, Store};
use tollgate::{Check, Error, Key, Limit, Quota, RateLimitLayer, RateLimiter};

use crate::support::RedisServer;
use crate::support::budget::{Budget, SECOND, START, quota};
use crate::support::requests::{plain, status};
use crate::support::scripted::Scripted;

const MS: Duration = Duration::from_millis(1);

fn ten() -> Limit {
    Limit::token_bucket("limit", Quota::per_second(10).burst(1)).unwrap()
}

/// Bucket: partial refund by `after`, then another charge as large as the first refund.
#[test]
fn rest_of_a_refunded_charge_takes_nothing_of_a_later_charge() {
    let mut b = Budget::new(Limit::token_bucket("api", quota(1, SECOND).burst(100)).unwrap());
    let receipt = b.charge(START, 10).receipt().unwrap();
    drop(b.refund(START, 5, receipt));
    drop(b.charge(START + 4 * SECOND, 5));
    // Without the first charge, 5 units are used.
    let left = b.refund(START + 4 * SECOND, 5, receipt.after(5));
    assert!(left.remaining() <= 95, "{}", left.remaining());
}

#[tokio::test]
async fn refund_when_gives_back_the_costs_of_its_layer_only() {
    let limiter = RateLimiter::in_memory();
    let outer = Limit::fixed_window("outer", Quota::per_hour(10)).unwrap();
    let inner = Limit::fixed_window("inner", Quota::per_hour(10)).unwrap();
    let app = Router::new()
        .route(
            "/",
            any(|_: Extension<Settlement>| async { http::StatusCode::INTERNAL_SERVER_ERROR }),
        )
        .layer(
            RateLimitLayer::new(&limiter, inner.clone(), Global)
                .unwrap()
                .refund_when(|r| r.status.is_server_error()),
        )
        .layer(
            RateLimitLayer::new(&limiter, outer.clone(), Global)
                .unwrap()
                .insert_settlement(),
        );
    assert_eq!(status(&app, plain("/")).await, 500);
    let left = async |l: &Limit| {
        limiter
            .peek(l, &Key::global(), 0)
            .await
            .unwrap()
            .remaining()
    };
    assert_eq!((left(&outer).await, left(&inner).await), (9, 10));
}

#[tokio::test]
async fn shadow_limit_without_a_share_does_not_close_a_group() {
    let store = Scripted::default();
    store.switch_off(true);
    let year = Limit::token_bucket("year", Quota::new(1, Duration::from_secs(365 * 86_400)))
        .unwrap()
        .with_shadow_mode();
    let api = Limit::fixed_window("api", Quota::per_hour(10)).unwrap();
    let layer = RateLimitLayer::from_fn(RateLimiter::new(store), move |_: &Parts| {
        ChosenLimits::from([Check::new(&year, "a"), Check::new(&api, "a")])
    })
    .unwrap()
    .on_store_failure(OnStoreFailure::local(2))
    .unwrap();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[tokio::test]
async fn layer_in_shadow_mode_does_not_enforce_chosen_limits() {
    let api = Limit::fixed_window("api", Quota::per_hour(1)).unwrap();
    let layer = RateLimitLayer::from_fn(RateLimiter::in_memory(), move |_: &Parts| {
        Check::new(&api, "a").into()
    })
    .unwrap()
    .shadow_mode();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    for _ in 0..2 {
        assert_eq!(status(&app, plain("/")).await, 200);
    }
}

#[tokio::test]
async fn shadow_limit_that_fails_open_is_in_shadow_mode() {
    let store = Scripted::default();
    store.switch_off(true);
    let limiter = RateLimiter::new(store);
    let limit = Limit::fixed_window("a", Quota::per_hour(1))
        .unwrap()
        .with_on_store_failure(OnStoreFailure::FailOpen)
        .unwrap()
        .with_shadow_mode();
    let d = limiter.check(&limit, &Key::new("k")).await.unwrap();
    assert!(d.deciding().is_shadow());
}

#[tokio::test]
async fn settled_costs_of_equal_names_are_the_layers_own() {
    let limiter = RateLimiter::in_memory();
    let other = RateLimiter::in_memory();
    let limit = Limit::fixed_window("points", Quota::per_hour(100)).unwrap();
    let app = Router::new()
        .route("/", any(|| async { "x" }))
        .layer(
            RateLimitLayer::new(&limiter, limit.clone(), Global)
                .unwrap()
                .cost(|_| 10)
                .settle_on_response("points", |_| Some(1))
                .unwrap(),
        )
        .layer(
            RateLimitLayer::new(&other, limit.clone(), Global)
                .unwrap()
                .cost(|_| 50)
                .insert_settlement(),
        );
    assert_eq!(status(&app, plain("/")).await, 200);
    let left = async |l: &RateLimiter| l.peek(&limit, &Key::global(), 0).await.unwrap().remaining();
    assert_eq!((left(&limiter).await, left(&other).await), (99, 50));
}

#[tokio::test(start_paused = true)]
async fn panicking_look_up_is_paced() {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };
    use tollgate::layer::Lookup;
    let asked = Arc::new(AtomicU32::new(0));
    let a = Arc::clone(&asked);
    let lookup = Lookup::new(
        |_: &Parts| Some(1u32),
        move |_| {
            let a = Arc::clone(&a);
            async move {
                a.fetch_add(1, Ordering::SeqCst);
                sleep(MS).await;
                if true {
                    panic!("x")
                }
                Ok::<_, std::io::Error>(Some(()))
            }
        },
    );
    let layer = RateLimitLayer::from_lookup(RateLimiter::in_memory(), lookup, |_, _, _| {
        ChosenLimits::reject("first")
    })
    .unwrap();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    for _ in 0..10 {
        status(&app, plain("/")).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn undone_partial_settlement_minted() {
    // The same by two settlements of one charge.
    let mut b = Budget::new(Limit::gcra("api", quota(1, SECOND).burst(100)).unwrap());
    let receipt = b.charge(START, 10).receipt().unwrap();
    drop(b.settle(START, 5, Some(receipt)));
    drop(b.charge(START + 4 * SECOND, 5));
    let left = b.settle(START + 4 * SECOND, 0, Some(receipt.after(5)));
    assert!(left.remaining() <= 95, "{}", left.remaining());
}

#[tokio::test]
async fn shadow_mode_of_a_group_does_not_leak_into_the_next_of_its_batch() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(server.store().build().unwrap());
    let one = |name: &str| Limit::fixed_window(name, Quota::per_hour(1)).unwrap();
    let pair = |a: Limit, b: Limit| Group::new([Check::new(&a, "k"), Check::new(&b, "k")]).unwrap();
    let shadow = pair(one("s1").with_shadow_mode(), one("s2").with_shadow_mode());
    let enforced = pair(
        one("e1"),
        Limit::fixed_window("e2", Quota::per_hour(9)).unwrap(),
    );
    drop(
        limiter
            .apply(Operation::Charge(enforced.clone()))
            .await
            .unwrap(),
    );
    // The first two calls are in flight, so the others share a batch.
    let fill: Vec<_> = (0..4)
        .map(|n: u64| {
            limiter.apply(Operation::Charge(
                Check::new(&one("f"), Key::from(n)).into(),
            ))
        })
        .collect();
    let all: Vec<_> = [shadow.clone(), shadow, enforced]
        .into_iter()
        .map(|g| limiter.apply(Operation::Charge(g)))
        .collect();
    for f in fill {
        drop(f.await.unwrap());
    }
    for a in all {
        drop(a.await.unwrap());
    }
    let e2 = Limit::fixed_window("e2", Quota::per_hour(9)).unwrap();
    assert_eq!(
        limiter
            .peek(&e2, &Key::new("k"), 0)
            .await
            .unwrap()
            .remaining(),
        8
    );
}

#[tokio::test]
async fn shadow_limit_without_a_policy_is_an_error_while_the_store_is_away() {
    let store = Scripted::default();
    store.switch_off(true);
    let checked = RateLimiter::new(store)
        .check(&ten().with_shadow_mode(), &Key::new("k"))
        .await;
    assert!(checked.is_err_and(|e| e.is_unavailable()));
}

#[tokio::test(start_paused = true)]
async fn shadow_denial_of_a_share_is_not_owed() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let local = OnStoreFailure::local(1);
    let new = Limit::fixed_window("new", Quota::per_hour(2))
        .unwrap()
        .with_on_store_failure(local)
        .unwrap()
        .with_shadow_mode();
    let old = Limit::fixed_window("old", Quota::per_hour(9))
        .unwrap()
        .with_on_store_failure(local)
        .unwrap();
    store.switch_off(true);
    let key = Key::new("k");
    for cost in [1, 2] {
        let group = [
            Check::new(&new, &key).with_cost(cost),
            Check::new(&old, &key),
        ];
        assert!(limiter.check_all(group).await.unwrap().allowed());
    }
    store.switch_off(false);
    drop(limiter.check(&old, &Key::new("other")).await.unwrap());
    sleep(1_000 * MS).await;
    assert_eq!(
        (store.used(&new, &key).await, store.used(&old, &key).await),
        (1, 2)
    );
}

#[tokio::test]
async fn shadow_limit_of_a_group_that_fails_closed_stays_in_shadow_mode() {
    let store = Scripted::default();
    store.switch_off(true);
    let closed = ten()
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let new = Limit::fixed_window("new", Quota::per_hour(2))
        .unwrap()
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap()
        .with_shadow_mode();
    let d = RateLimiter::new(store)
        .check_all([Check::new(&new, "k"), Check::new(&closed, "k")])
        .await
        .unwrap();
    assert_eq!((d.allowed(), d.limit().name()), (false, "limit"));
    assert!(d.verdicts()[0].is_shadow() && d.verdicts()[0].allowed());
}

#[tokio::test(start_paused = true)]
async fn old_value_is_not_used_after_stale_for() {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };
    use tollgate::layer::{ChosenLimits, Lookup, LookupResult};
    let fails = Arc::new(AtomicBool::new(false));
    let f = Arc::clone(&fails);
    let lookup = Lookup::builder(
        |_: &http::request::Parts| Some(1u32),
        move |_| {
            let f = f.load(Ordering::SeqCst);
            async move { if f { Err("away") } else { Ok(Some(())) } }
        },
    )
    .ttl(1_000 * MS)
    .stale_for(300 * MS)
    .build()
    .unwrap();
    let layer = RateLimitLayer::from_lookup(RateLimiter::in_memory(), lookup, |_, _, f| match f {
        LookupResult::Known(()) => ChosenLimits::Unlimited,
        _ => ChosenLimits::reject("f"),
    })
    .unwrap();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
    fails.store(true, Ordering::SeqCst);
    sleep(1_100 * MS).await;
    assert_eq!(status(&app, plain("/")).await, 200);
    sleep(300 * MS).await;
    assert_eq!(
        status(&app, plain("/")).await,
        403,
        "1.4 s old, usable for 1.3 s"
    );
}

#[tokio::test]
async fn handler_has_a_settlement_if_the_store_failed() {
    let store = Scripted::default();
    store.switch_off(true);
    let layer = RateLimitLayer::new(RateLimiter::new(store), ten(), Global)
        .unwrap()
        .insert_settlement();
    let app = Router::new()
        .route("/", any(|_: Extension<Settlement>| async { "x" }))
        .layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[tokio::test]
async fn layer_that_fails_open_keeps_the_charges_of_the_layers_outside() {
    let (limiter, off) = (RateLimiter::in_memory(), Scripted::default());
    off.switch_off(true);
    let tokens = Limit::fixed_window("tokens", Quota::per_hour(100)).unwrap();
    let app = Router::new()
        .route(
            "/",
            any(|s: Extension<Settlement>| async move {
                assert!(s.settle("tokens", 3));
            }),
        )
        .layer(
            RateLimitLayer::new(RateLimiter::new(off), ten(), Global)
                .unwrap()
                .insert_settlement(),
        )
        .layer(
            RateLimitLayer::new(&limiter, tokens.clone(), Global)
                .unwrap()
                .cost(|_| 50)
                .insert_settlement(),
        );
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(
        limiter
            .peek(&tokens, &Key::global(), 0)
            .await
            .unwrap()
            .remaining(),
        97
    );
}

#[tokio::test]
async fn handler_has_a_settlement_if_the_store_is_overloaded() {
    let layer = RateLimitLayer::new(
        RateLimiter::new(Scripted::failing(|| Error::overloaded(1))),
        ten(),
        Global,
    )
    .unwrap()
    .fail_open_when_overloaded()
    .insert_settlement();
    let app = Router::new()
        .route("/", any(|_: Extension<Settlement>| async { "x" }))
        .layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[tokio::test]
async fn shadow_denial_leaves_nothing_to_settle() {
    let limit = Limit::fixed_window("tokens", Quota::per_hour(10))
        .unwrap()
        .with_shadow_mode();
    let app = Router::new()
        .route(
            "/",
            any(|s: Extension<Settlement>| async move {
                assert_eq!(s.charged("tokens"), None);
                assert!(!s.settle("tokens", 3));
            }),
        )
        .layer(
            RateLimitLayer::new(RateLimiter::in_memory(), limit, Global)
                .unwrap()
                .cost(|_| 50)
                .insert_settlement(),
        );
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[test]
fn settlement_outside_of_the_runtime_reaches_a_store_that_answers_later() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let limiter = RateLimiter::new(Scripted::new(|memory, operation| {
        let Operation::Change(_, Change::Settle { .. }) = operation else {
            return memory.apply(operation);
        };
        let memory = std::sync::Arc::clone(memory);
        Answer::later(async move {
            tokio::task::yield_now().await;
            memory.apply(operation).await
        })
    }));
    let tokens = Limit::fixed_window("tokens", Quota::per_hour(100)).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let layer = RateLimitLayer::new(&limiter, tokens.clone(), Global)
        .unwrap()
        .cost(|_| 50)
        .insert_settlement();
    let app = Router::new()
        .route(
            "/",
            any(move |s: Extension<Settlement>| {
                sender.send(s.0).unwrap();
                async {}
            }),
        )
        .layer(layer);
    runtime.block_on(status(&app, plain("/")));
    // Outside of `block_on`, no runtime is current.
    assert!(receiver.recv().unwrap().settle("tokens", 3));
    let left = runtime.block_on(async {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        limiter.peek(&tokens, &Key::global(), 0).await
    });
    assert_eq!(left.unwrap().remaining(), 97);
}

#[tokio::test]
async fn share_of_a_shadow_limit_is_in_shadow_mode_in_either_order() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let local = OnStoreFailure::local(1);
    let new = Limit::fixed_window("new", Quota::per_hour(2))
        .unwrap()
        .with_shadow_mode()
        .with_on_store_failure(local)
        .unwrap();
    let old = Limit::fixed_window("old", Quota::per_hour(9))
        .unwrap()
        .with_on_store_failure(local)
        .unwrap();
    store.switch_off(true);
    for _ in 0..4 {
        assert!(
            limiter
                .check_all([Check::new(&new, "k"), Check::new(&old, "k")])
                .await
                .unwrap()
                .allowed()
        );
    }
}

#[tokio::test]
async fn receipts_of_a_run_count_what_was_given_back() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(server.store().build().unwrap());
    let limit = Limit::token_bucket("api", Quota::per_hour(1_000)).unwrap();
    let key = Key::new("k");
    let first = limiter
        .check_n(&limit, &key, 100)
        .await
        .unwrap()
        .receipt()
        .unwrap();
    drop(limiter.check_n(&limit, &key, 100).await.unwrap());
    limiter.refund(&limit, &key, 50, first).await.unwrap();
    let fill: Vec<_> = (0..4)
        .map(|n: u64| limiter.apply(Operation::Charge(Check::new(&limit, Key::from(n)).into())))
        .collect();
    let run: Vec<_> = (0..8)
        .map(|_| limiter.apply(Operation::Charge(Check::new(&limit, &key).into())))
        .collect();
    for f in fill {
        drop(f.await.unwrap());
    }
    for r in run {
        let d = r.await.unwrap();
        let receipt = d.receipt().unwrap();
        let drains = receipt.drains_at() - receipt.charged_at();
        assert!(
            drains > d.reset_after() + Duration::from_secs(170),
            "{drains:?} {:?}",
            d.reset_after()
        );
    }
}

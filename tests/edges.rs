//! Plans, costs, waits and shadow mode where they meet each other, outages and odd orders of events.

#![cfg(all(feature = "axum", feature = "redis"))]

mod support;

use std::time::Duration;

use axum::body::Body;
use axum::routing::any;
use axum::{Extension, Router};
use http::request::Parts;
use tokio::time::{Instant, sleep};
use tollgate::key::Global;
use tollgate::layer::{Limits, OnStoreFailure, Settlement};
use tollgate::store::{Answer, Group, Op, Store};
use tollgate::{Check, Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use self::support::RedisServer;
use self::support::budget::{Budget, SECOND, START, quota};
use self::support::counting::Counting;
use self::support::requests::{plain, request, status};

const MS: Duration = Duration::from_millis(1);

/// Bucket: partial refund by `after`, then another charge as large as the first refund.
#[test]
fn rest_of_a_refunded_charge_takes_nothing_of_a_later_charge() {
    let mut b = Budget::new(Limit::token_bucket("api", quota(1, SECOND).burst(100)).unwrap());
    let receipt = b.charge(START, 10).receipt().unwrap();
    b.refund(START, 5, receipt);
    b.charge(START + 4 * SECOND, 5);
    // Without the first charge, 5 units are used.
    let left = b.refund(START + 4 * SECOND, 5, receipt.after(5));
    assert!(left.remaining() <= 95, "{}", left.remaining());
}

fn ten() -> Limit {
    Limit::token_bucket("limit", Quota::per_second(10).burst(1)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn reset_voids_units_that_a_waiter_left() {
    let (limiter, limit, key) = (RateLimiter::in_memory(), ten(), Key::new("k"));
    limiter.check(&limit, &key).await.unwrap();
    let mut first = Box::pin(limiter.acquire(&limit, &key, 1, 10_000 * MS));
    assert!(tokio::time::timeout(10 * MS, &mut first).await.is_err());
    let second = {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move { l.acquire(&m, &k, 1, 10_000 * MS).await.unwrap() })
    };
    sleep(10 * MS).await;
    drop(first);
    limiter.reset(&limit, &key).await.unwrap();
    assert!(second.await.unwrap().allowed());
    assert_eq!(limiter.peek(&limit, &key, 0).await.unwrap().remaining(), 0, "charged once");
}

#[tokio::test(start_paused = true)]
async fn group_behind_a_reservation_gets_its_units() {
    let (limiter, limit, key) = (RateLimiter::in_memory(), ten(), Key::new("k"));
    limiter.check(&limit, &key).await.unwrap();
    let started = Instant::now();
    let first = {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move { l.acquire(&m, &k, 1, 10_000 * MS).await.unwrap() })
    };
    tokio::task::yield_now().await;
    let other = Limit::fixed_window("day", Quota::per_day(100)).unwrap();
    let group = {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move {
            l.acquire_all([Check::new(&m, &k), Check::new(&other, &k)], 10_000 * MS).await.unwrap()
        })
    };
    tokio::task::yield_now().await;
    sleep(50 * MS).await;
    first.abort();
    assert!(group.await.unwrap().allowed());
    assert_eq!(started.elapsed(), 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn stale_units_are_not_used_beside_a_full_budget() {
    let (limiter, limit, key) = (RateLimiter::in_memory(), ten(), Key::new("k"));
    limiter.check(&limit, &key).await.unwrap();
    let go = || {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move {
            let s = Instant::now();
            l.acquire(&m, &k, 1, 100_000 * MS).await.unwrap();
            s.elapsed()
        })
    };
    let first = go();
    tokio::task::yield_now().await;
    // A group that waits long for another limit.
    let other = Limit::fixed_window("other", Quota::new(1, Duration::from_secs(10))).unwrap();
    limiter.check(&other, &key).await.unwrap();
    let group = {
        let (l, m, k) = (limiter.clone(), limit.clone(), key.clone());
        tokio::spawn(async move {
            l.acquire_all([Check::new(&m, &k), Check::new(&other, &k)], 100_000 * MS).await.unwrap()
        })
    };
    tokio::task::yield_now().await;
    let third = go();
    tokio::task::yield_now().await;
    sleep(50 * MS).await;
    first.abort();
    assert!(group.await.unwrap().allowed());
    assert_eq!(third.await.unwrap(), 100 * MS, "the group waits for its other limit alone");
}

#[tokio::test(start_paused = true)]
async fn group_of_two_kinds_under_one_name_does_not_wait_for_itself() {
    let limiter = RateLimiter::in_memory();
    let (a, b) = (
        Limit::token_bucket("api", Quota::per_second(10)).unwrap(),
        Limit::fixed_window("api", Quota::per_day(100)).unwrap(),
    );
    let started = Instant::now();
    let d =
        limiter.acquire_all([Check::new(&a, "k"), Check::new(&b, "k")], 5_000 * MS).await.unwrap();
    assert!(d.allowed());
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn max_waiters_bounds_a_leaky_bucket_as_a_queue() {
    let limit = Limit::leaky_bucket("q", Quota::per_second(1).burst(1_000)).unwrap();
    let layer = RateLimitLayer::of(RateLimiter::in_memory(), limit)
        .key(Global)
        .unwrap()
        .wait_up_to(3_000_000 * MS)
        .unwrap()
        .max_waiters(3);
    let app = Router::new().route("/", any(|| async { "x" })).layer(layer);
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let app = app.clone();
        all.spawn(async move { status(&app, plain("/")).await });
    }
    let denied = all.join_all().await.into_iter().filter(|s| *s == 429).count();
    assert_eq!(denied, 96);
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
            RateLimitLayer::of(&limiter, inner.clone())
                .key(Global)
                .unwrap()
                .refund_when(|r| r.status.is_server_error()),
        )
        .layer(
            RateLimitLayer::of(&limiter, outer.clone()).key(Global).unwrap().insert_settlement(),
        );
    assert_eq!(status(&app, plain("/")).await, 500);
    let left = async |l: &Limit| limiter.peek(l, &Key::global(), 0).await.unwrap().remaining();
    assert_eq!((left(&outer).await, left(&inner).await), (9, 10));
}

#[tokio::test]
async fn shadow_limit_without_a_share_does_not_close_a_group() {
    let store = Counting::default();
    store.switch_off(true);
    let year = Limit::token_bucket("year", Quota::new(1, Duration::from_secs(365 * 86_400)))
        .unwrap()
        .shadow();
    let api = Limit::fixed_window("api", Quota::per_hour(10)).unwrap();
    let layer = RateLimitLayer::limits(RateLimiter::new(store), move |_: &Parts| {
        Limits::from([Check::new(&year, "a"), Check::new(&api, "a")])
    })
    .unwrap()
    .on_store_failure(OnStoreFailure::Local { replicas: 2 })
    .unwrap();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[tokio::test]
async fn layer_in_shadow_mode_does_not_enforce_chosen_limits() {
    let api = Limit::fixed_window("api", Quota::per_hour(1)).unwrap();
    let layer = RateLimitLayer::limits(RateLimiter::in_memory(), move |_: &Parts| {
        Check::new(&api, "a").into()
    })
    .unwrap()
    .shadow();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    for _ in 0..2 {
        assert_eq!(status(&app, plain("/")).await, 200);
    }
}

#[tokio::test]
async fn shadow_limit_that_fails_open_is_in_shadow_mode() {
    let store = Counting::default();
    store.switch_off(true);
    let limiter = RateLimiter::new(store);
    let limit = Limit::fixed_window("a", Quota::per_hour(1))
        .unwrap()
        .on_store_failure(OnStoreFailure::FailOpen)
        .unwrap()
        .shadow();
    let d = limiter.check(&limit, &Key::new("k")).await.unwrap();
    assert!(d.deciding().is_shadow());
}

#[tokio::test(start_paused = true)]
async fn queued_request_is_not_held_by_an_outage() {
    let store = Counting::default();
    let limiter = RateLimiter::new(store.clone());
    let layer = RateLimitLayer::of(
        &limiter,
        Limit::token_bucket("api", Quota::per_second(1).burst(1)).unwrap(),
    )
    .key(Global)
    .unwrap()
    .on_store_failure(OnStoreFailure::FailClosed)
    .unwrap()
    .wait_up_to(60_000 * MS)
    .unwrap();
    let app = Router::new().route("/", any(|| async { "x" })).layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
    let go = || {
        let app = app.clone();
        let s = Instant::now();
        tokio::spawn(async move { (status(&app, plain("/")).await, s.elapsed()) })
    };
    let (one, two) = (go(), go());
    sleep(10 * MS).await;
    store.switch_off(true);
    assert_eq!(one.await.unwrap().0, 200);
    assert_eq!(two.await.unwrap(), (503, 1_000 * MS), "as for a request that comes now");
}

#[tokio::test]
async fn settled_costs_of_equal_names_are_the_layers_own() {
    let limiter = RateLimiter::in_memory();
    let other = RateLimiter::in_memory();
    let limit = Limit::fixed_window("points", Quota::per_hour(100)).unwrap();
    let app = Router::new()
        .route("/", any(|| async { "x" }))
        .layer(
            RateLimitLayer::of(&limiter, limit.clone())
                .key(Global)
                .unwrap()
                .cost(|_| 10)
                .settle_on_response("points", |_| Some(1)),
        )
        .layer(
            RateLimitLayer::of(&other, limit.clone())
                .key(Global)
                .unwrap()
                .cost(|_| 50)
                .insert_settlement(),
        );
    assert_eq!(status(&app, plain("/")).await, 200);
    let left = async |l: &RateLimiter| l.peek(&limit, &Key::global(), 0).await.unwrap().remaining();
    assert_eq!((left(&limiter).await, left(&other).await), (99, 50));
}

#[tokio::test(start_paused = true)]
async fn look_ups_of_one_request_run_at_the_same_time() {
    use tollgate::layer::Lookup;
    let one = || {
        Lookup::new(
            |_: &Parts| Some(1u32),
            |_| async {
                sleep(100 * MS).await;
                Ok::<_, std::io::Error>(Some(()))
            },
        )
    };
    let layer = RateLimitLayer::builder(RateLimiter::in_memory())
        .limits_by_lookup(one(), |_, _, _| Limits::reject("first"))
        .limits_by_lookup(one(), |_, _, _| Limits::reject("second"))
        .build()
        .unwrap();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    let s = Instant::now();
    let r = support::requests::send(&app, plain("/")).await;
    let t = s.elapsed();
    let body = http_body_util::BodyExt::collect(r.into_body()).await.unwrap().to_bytes();
    assert_eq!((t, &*body), (100 * MS, &b"first\n"[..]));
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
    let layer = RateLimitLayer::builder(RateLimiter::in_memory())
        .limits_by_lookup(lookup, |_, _, _| Limits::reject("first"))
        .build()
        .unwrap();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    for _ in 0..10 {
        status(&app, plain("/")).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn first_answer_is_within_max_wait() {
    use tollgate::store::{Answer, Store};
    #[derive(Debug)]
    struct Slow;
    impl Store for Slow {
        fn apply(&self, op: Op, group: Group) -> Answer {
            Answer::later(async move {
                sleep(1_000 * MS).await;
                tollgate::MemoryStore::new().apply(op, group).await
            })
        }
    }
    let layer = RateLimitLayer::of(RateLimiter::new(Slow), ten())
        .key(Global)
        .unwrap()
        .wait_up_to(50 * MS)
        .unwrap();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    let s = Instant::now();
    status(&app, plain("/")).await;
    assert!(s.elapsed() <= 50 * MS, "{:?}", s.elapsed());
}

#[test]
fn undone_partial_settlement_minted() {
    // The same by two settlements of one charge.
    let mut b = Budget::new(Limit::gcra("api", quota(1, SECOND).burst(100)).unwrap());
    let receipt = b.charge(START, 10).receipt().unwrap();
    b.settle(START, 5, Some(receipt));
    b.charge(START + 4 * SECOND, 5);
    let left = b.settle(START + 4 * SECOND, 0, Some(receipt.after(5)));
    assert!(left.remaining() <= 95, "{}", left.remaining());
}

#[test]
fn two_refunds_before_a_turn_share_its_spare_units() {
    let mut b = Budget::new(Limit::token_bucket("api", quota(1, SECOND).burst(2)).unwrap());
    let first = b.charge(START, 1).receipt().unwrap();
    let second = b.charge(START, 1).receipt().unwrap();
    assert_eq!(b.reserve(START, 1, 10 * SECOND).delay(), Duration::from_secs(1));
    b.reserve(START, 1, 10 * SECOND);
    // At its turn a check of one unit leaves room for one.
    b.refund(START, 1, first);
    b.refund(START, 1, second);
    assert_eq!(b.reserve(START, 1, 10 * SECOND).delay(), Duration::from_secs(2));
}

#[tokio::test]
async fn redis_keeps_the_turns_of_reserved_units() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(server.store().build().unwrap());
    let limit = Limit::token_bucket("api", Quota::per_minute(1).burst(2)).unwrap();
    let key = Key::new("k");
    let first = limiter.check(&limit, &key).await.unwrap().receipt().unwrap();
    let second = limiter.check(&limit, &key).await.unwrap().receipt().unwrap();
    let reserve = async || {
        let check = Check::new(&limit, &key).with_max_wait(Duration::from_secs(3_600));
        limiter.apply(Op::Charge, check).await.unwrap().delay().as_secs_f64() / 60.0
    };
    reserve().await;
    reserve().await;
    limiter.refund(&limit, &key, 1, first).await.unwrap();
    limiter.refund(&limit, &key, 1, second).await.unwrap();
    let delay = reserve().await;
    assert!((1.9..=2.0).contains(&delay), "{delay} minutes");
}

#[tokio::test]
async fn shadow_mode_of_a_group_does_not_leak_into_the_next_of_its_batch() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(server.store().build().unwrap());
    let one = |name: &str| Limit::fixed_window(name, Quota::per_hour(1)).unwrap();
    let pair = |a: Limit, b: Limit| Group::new([Check::new(&a, "k"), Check::new(&b, "k")]).unwrap();
    let shadow = pair(one("s1").shadow(), one("s2").shadow());
    let enforced = pair(one("e1"), Limit::fixed_window("e2", Quota::per_hour(9)).unwrap());
    limiter.apply(Op::Charge, enforced.clone()).await.unwrap();
    // The first two calls are in flight, so the others share a batch.
    let fill: Vec<_> = (0..4)
        .map(|n: u64| limiter.apply(Op::Charge, Check::new(&one("f"), Key::from(n))))
        .collect();
    let all: Vec<_> = [shadow.clone(), shadow, enforced]
        .into_iter()
        .map(|g| limiter.apply(Op::Charge, g))
        .collect();
    for f in fill {
        f.await.unwrap();
    }
    for a in all {
        a.await.unwrap();
    }
    let e2 = Limit::fixed_window("e2", Quota::per_hour(9)).unwrap();
    assert_eq!(limiter.peek(&e2, &Key::new("k"), 0).await.unwrap().remaining(), 8);
}

fn go(l: &RateLimiter, m: &Limit, max: Duration) -> tokio::task::JoinHandle<(bool, Duration)> {
    let (l, m, s) = (l.clone(), m.clone(), Instant::now());
    tokio::spawn(async move {
        (l.acquire(&m, &Key::new("k"), 1, max).await.unwrap().allowed(), s.elapsed())
    })
}

#[tokio::test(start_paused = true)]
async fn next_waiter_does_not_take_a_turn_after_its_deadline() {
    let limiter = RateLimiter::in_memory();
    let slow = Limit::token_bucket("slow", Quota::per_second(1).burst(1)).unwrap();
    limiter.check(&slow, &Key::new("k")).await.unwrap();
    let first = go(&limiter, &slow, 10_000 * MS);
    tokio::task::yield_now().await;
    let second = go(&limiter, &slow, 500 * MS);
    sleep(100 * MS).await;
    first.abort();
    let (allowed, after) = second.await.unwrap();
    assert!(!allowed && after <= 500 * MS, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn next_waiter_under_another_quota_reserves_its_own() {
    let limiter = RateLimiter::in_memory();
    let (slow, fast) = (
        Limit::token_bucket("a", Quota::per_second(1).burst(1)).unwrap(),
        Limit::token_bucket("a", Quota::per_second(10).burst(1)).unwrap(),
    );
    limiter.check(&slow, &Key::new("k")).await.unwrap();
    let first = go(&limiter, &slow, 10_000 * MS);
    tokio::task::yield_now().await;
    let second = go(&limiter, &fast, 10_000 * MS);
    sleep(50 * MS).await;
    first.abort();
    let (allowed, after) = second.await.unwrap();
    assert!(allowed && after < 900 * MS, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn reset_ends_the_wait_of_every_waiter() {
    let limiter = RateLimiter::in_memory();
    let limit = Limit::token_bucket("limit", Quota::per_second(10).burst(2)).unwrap();
    let key = Key::new("k");
    limiter.check_n(&limit, &key, 2).await.unwrap();
    let waiters = [(); 3].map(|()| go(&limiter, &limit, 10_000 * MS));
    sleep(20 * MS).await;
    limiter.reset(&limit, &key).await.unwrap();
    let mut times = Vec::new();
    for w in waiters {
        times.push(w.await.unwrap());
    }
    assert_eq!(times, [(true, 20 * MS), (true, 20 * MS), (true, 120 * MS)]);
}

#[tokio::test(start_paused = true)]
async fn refund_does_not_void_a_reservation() {
    let limiter = RateLimiter::in_memory();
    let limit = Limit::token_bucket("limit", Quota::per_second(10).burst(2)).unwrap();
    let key = Key::new("k");
    let receipt = limiter.check_n(&limit, &key, 2).await.unwrap().receipt().unwrap();
    let waiter = go(&limiter, &limit, 10_000 * MS);
    sleep(20 * MS).await;
    limiter.refund(&limit, &key, 0, receipt).await.unwrap();
    assert_eq!(waiter.await.unwrap(), (true, 100 * MS));
    assert_eq!(limiter.peek(&limit, &key, 2).await.unwrap().retry_after(), Some(200 * MS));
}

#[tokio::test(start_paused = true)]
async fn cheap_request_does_not_pass_an_expensive_one_that_waits() {
    let limit = Limit::sliding_log("api", Quota::new(2, Duration::from_secs(1))).unwrap();
    let layer = RateLimitLayer::of(RateLimiter::in_memory(), limit)
        .key(Global)
        .unwrap()
        .cost(|r| r.headers["cost"].to_str().unwrap().parse().unwrap())
        .wait_up_to(10_000 * MS)
        .unwrap();
    let app = Router::new().route("/", any(|| async { "x" })).layer(layer);
    let of = |cost: u32| request("GET", "/").header("cost", cost).body(Body::empty()).unwrap();
    let s = Instant::now();
    assert_eq!(status(&app, of(1)).await, 200);
    let big = {
        let (app, r) = (app.clone(), of(2));
        tokio::spawn(async move {
            status(&app, r).await;
            s.elapsed()
        })
    };
    sleep(10 * MS).await;
    let small = {
        let (app, r) = (app.clone(), of(1));
        tokio::spawn(async move {
            status(&app, r).await;
            s.elapsed()
        })
    };
    assert_eq!((big.await.unwrap(), small.await.unwrap()), (1_000 * MS, 2_000 * MS));
}

#[derive(Debug)]
struct LateRefunds(std::sync::Arc<MemoryStore>);
impl Store for LateRefunds {
    fn apply(&self, op: Op, group: Group) -> Answer {
        if op != Op::Refund {
            return self.0.apply(op, group);
        }
        let m = std::sync::Arc::clone(&self.0);
        Answer::later(async move {
            sleep(5 * MS).await;
            m.apply(op, group).await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn given_up_units_return_to_a_store_that_answers_later() {
    let limiter = RateLimiter::new(LateRefunds(Default::default()));
    limiter.check(&ten(), &Key::new("k")).await.unwrap();
    let waiter = go(&limiter, &ten(), 10_000 * MS);
    sleep(20 * MS).await;
    waiter.abort();
    sleep(10 * MS).await;
    assert_eq!(limiter.peek(&ten(), &Key::new("k"), 1).await.unwrap().retry_after(), Some(70 * MS));
}

#[tokio::test]
async fn shadow_limit_without_a_policy_is_an_error_while_the_store_is_away() {
    let store = Counting::default();
    store.switch_off(true);
    let checked = RateLimiter::new(store).check(&ten().shadow(), &Key::new("k")).await;
    assert!(checked.is_err_and(|e| e.is_unavailable()));
}

#[tokio::test(start_paused = true)]
async fn shadow_denial_of_a_share_is_not_owed() {
    let store = Counting::default();
    let limiter = RateLimiter::new(store.clone());
    let local = OnStoreFailure::Local { replicas: 1 };
    let new = Limit::fixed_window("new", Quota::per_hour(2))
        .unwrap()
        .on_store_failure(local)
        .unwrap()
        .shadow();
    let old =
        Limit::fixed_window("old", Quota::per_hour(9)).unwrap().on_store_failure(local).unwrap();
    store.switch_off(true);
    let key = Key::new("k");
    for cost in [1, 2] {
        let group = [Check::new(&new, &key).with_cost(cost), Check::new(&old, &key)];
        assert!(limiter.check_all(group).await.unwrap().allowed());
    }
    store.switch_off(false);
    limiter.check(&old, &Key::new("other")).await.unwrap();
    sleep(1_000 * MS).await;
    assert_eq!((store.used(&new, &key).await, store.used(&old, &key).await), (1, 2));
}

#[test]
fn reservation_before_the_last_keeps_its_share_after_a_small_charge() {
    let mut b = Budget::new(Limit::token_bucket("api", quota(1, SECOND).burst(4)).unwrap());
    b.charge(START, 4);
    let big = b.reserve(START, 4, 10 * SECOND).receipt().unwrap();
    b.reserve(START, 1, 10 * SECOND);
    // The turns are at 4 and 5 s. Three of the four units are not behind the later turn.
    b.refund(START, 4, big);
    assert_eq!(b.reserve(START, 1, 20 * SECOND).delay(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn acquire_asks_again_after_a_limit_failed_closed() {
    let store = Counting::default();
    let limiter = RateLimiter::new(store.clone());
    let limit = ten().on_store_failure(OnStoreFailure::FailClosed).unwrap();
    store.switch_off(true);
    let waiter = go(&limiter, &limit, 10_000 * MS);
    sleep(2_500 * MS).await;
    store.switch_off(false);
    assert_eq!(waiter.await.unwrap(), (true, 3_000 * MS));
    store.switch_off(true);
    assert_eq!(go(&limiter, &limit, 500 * MS).await.unwrap(), (false, Duration::ZERO));
}

#[tokio::test]
async fn shadow_limit_of_a_group_that_fails_closed_stays_in_shadow_mode() {
    let store = Counting::default();
    store.switch_off(true);
    let closed = ten().on_store_failure(OnStoreFailure::FailClosed).unwrap();
    let new = Limit::fixed_window("new", Quota::per_hour(2))
        .unwrap()
        .on_store_failure(OnStoreFailure::FailClosed)
        .unwrap()
        .shadow();
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
    use tollgate::layer::{Found, Limits, Lookup};
    let fails = Arc::new(AtomicBool::new(false));
    let f = Arc::clone(&fails);
    let lookup = Lookup::new(
        |_: &http::request::Parts| Some(1u32),
        move |_| {
            let f = f.load(Ordering::SeqCst);
            async move { if f { Err("away") } else { Ok(Some(())) } }
        },
    )
    .ttl(1_000 * MS)
    .stale_for(300 * MS);
    let layer = RateLimitLayer::builder(RateLimiter::in_memory())
        .limits_by_lookup(lookup, |_, _, f| match f {
            Found::Known(()) => Limits::Unlimited,
            _ => Limits::reject("f"),
        })
        .build()
        .unwrap();
    let app: Router = Router::new().route("/", any(|| async { "x" })).layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
    fails.store(true, Ordering::SeqCst);
    sleep(1_100 * MS).await;
    assert_eq!(status(&app, plain("/")).await, 200);
    sleep(300 * MS).await;
    assert_eq!(status(&app, plain("/")).await, 403, "1.4 s old, usable for 1.3 s");
}

#[tokio::test]
async fn handler_has_a_settlement_if_the_store_failed() {
    let store = Counting::default();
    store.switch_off(true);
    let layer =
        RateLimitLayer::of(RateLimiter::new(store), ten()).key(Global).unwrap().insert_settlement();
    let app = Router::new().route("/", any(|_: Extension<Settlement>| async { "x" })).layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[tokio::test]
async fn layer_that_fails_open_keeps_the_charges_of_the_layers_outside() {
    let (limiter, off) = (RateLimiter::in_memory(), Counting::default());
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
            RateLimitLayer::of(RateLimiter::new(off), ten())
                .key(Global)
                .unwrap()
                .insert_settlement(),
        )
        .layer(
            RateLimitLayer::of(&limiter, tokens.clone())
                .key(Global)
                .unwrap()
                .cost(|_| 50)
                .insert_settlement(),
        );
    assert_eq!(status(&app, plain("/")).await, 200);
    assert_eq!(limiter.peek(&tokens, &Key::global(), 0).await.unwrap().remaining(), 97);
}

#[derive(Debug)]
struct Overloaded;
impl Store for Overloaded {
    fn apply(&self, _: Op, _: Group) -> Answer {
        Answer::ready(Err(Error::overloaded(1)))
    }
}

#[tokio::test]
async fn handler_has_a_settlement_if_the_store_is_overloaded() {
    let layer = RateLimitLayer::of(RateLimiter::new(Overloaded), ten())
        .key(Global)
        .unwrap()
        .on_overload(tollgate::layer::OnOverload::FailOpen)
        .insert_settlement();
    let app = Router::new().route("/", any(|_: Extension<Settlement>| async { "x" })).layer(layer);
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[tokio::test]
async fn shadow_denial_leaves_nothing_to_settle() {
    let limit = Limit::fixed_window("tokens", Quota::per_hour(10)).unwrap().shadow();
    let app = Router::new()
        .route(
            "/",
            any(|s: Extension<Settlement>| async move {
                assert_eq!(s.charged("tokens"), None);
                assert!(!s.settle("tokens", 3));
            }),
        )
        .layer(
            RateLimitLayer::of(RateLimiter::in_memory(), limit)
                .key(Global)
                .unwrap()
                .cost(|_| 50)
                .insert_settlement(),
        );
    assert_eq!(status(&app, plain("/")).await, 200);
}

#[tokio::test]
async fn prefetched_charge_is_settled() {
    let store = Counting::default();
    let tokens = Limit::fixed_window("tokens", Quota::per_hour(10_000)).unwrap();
    let limiter = RateLimiter::new(
        tollgate::store::Prefetch::builder(store.clone()).limit(&tokens).build().unwrap(),
    );
    let layer =
        RateLimitLayer::of(&limiter, tokens.clone()).key(Global).unwrap().insert_settlement();
    let app = Router::new()
        .route(
            "/",
            any(|s: Extension<Settlement>| async move {
                assert_eq!(s.refund(), 1);
            }),
        )
        .layer(layer);
    for _ in 0..200 {
        assert_eq!(status(&app, plain("/")).await, 200);
    }
}

#[test]
fn settlement_outside_of_the_runtime_reaches_a_store_that_answers_later() {
    #[derive(Debug)]
    struct Later(std::sync::Arc<MemoryStore>);
    impl Store for Later {
        fn apply(&self, op: Op, group: Group) -> Answer {
            if op != Op::Settle {
                return self.0.apply(op, group);
            }
            let m = std::sync::Arc::clone(&self.0);
            Answer::later(async move {
                tokio::task::yield_now().await;
                m.apply(op, group).await
            })
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limiter = RateLimiter::new(Later(Default::default()));
    let tokens = Limit::fixed_window("tokens", Quota::per_hour(100)).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let layer = RateLimitLayer::of(&limiter, tokens.clone())
        .key(Global)
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
async fn shadow_limit_is_not_prefetched() {
    let store = Counting::default();
    let limit = Limit::fixed_window("tokens", Quota::per_hour(10_000)).unwrap();
    let limiter = RateLimiter::new(
        tollgate::store::Prefetch::builder(store.clone()).limit(&limit).build().unwrap(),
    );
    for _ in 0..50 {
        limiter.check(&limit.clone().shadow(), &Key::new("k")).await.unwrap();
    }
    assert_eq!(store.asked(), 50);
}

#[tokio::test]
async fn share_of_a_shadow_limit_is_in_shadow_mode_in_either_order() {
    let store = Counting::default();
    let limiter = RateLimiter::new(store.clone());
    let local = OnStoreFailure::Local { replicas: 1 };
    let new = Limit::fixed_window("new", Quota::per_hour(2))
        .unwrap()
        .shadow()
        .on_store_failure(local)
        .unwrap();
    let old =
        Limit::fixed_window("old", Quota::per_hour(9)).unwrap().on_store_failure(local).unwrap();
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
    let first = limiter.check_n(&limit, &key, 100).await.unwrap().receipt().unwrap();
    limiter.check_n(&limit, &key, 100).await.unwrap();
    limiter.refund(&limit, &key, 50, first).await.unwrap();
    let fill: Vec<_> =
        (0..4).map(|n: u64| limiter.apply(Op::Charge, Check::new(&limit, Key::from(n)))).collect();
    let run: Vec<_> = (0..8).map(|_| limiter.apply(Op::Charge, Check::new(&limit, &key))).collect();
    for f in fill {
        f.await.unwrap();
    }
    for r in run {
        let d = r.await.unwrap();
        let receipt = d.receipt().unwrap();
        let drains = Duration::from_micros(receipt.drains_at() - receipt.charged_at());
        assert!(
            drains > d.reset_after() + Duration::from_secs(170),
            "{drains:?} {:?}",
            d.reset_after()
        );
    }
}

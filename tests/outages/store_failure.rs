//! What happens to checks and requests while the store is unavailable, and after it.

#![cfg(all(feature = "axum", feature = "redis", feature = "test-util"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::routing::any;
use axum::{Extension, Router};
use http::StatusCode;
use tokio::task::yield_now;
use tokio::time::{advance, sleep, timeout};
use tollgate::decision::Source;
use tollgate::key::Global;
use tollgate::layer::{IetfDraft, Rejection, Settlement};
use tollgate::limit::OnStoreFailure::{self, FailClosed, FailOpen};
use tollgate::store::{Answer, Budget, Change, Operation, Store, WithDenyCache};
use tollgate::{
    Check, Decision, Error, Key, Limit, MemoryStore, Quota, RateLimitLayer, RateLimiter,
};

use crate::support::fields::values;
use crate::support::log::Log;
use crate::support::requests::{number, plain, send, status};
use crate::support::scripted::{Scripted, decide};

const THIRD: OnStoreFailure = OnStoreFailure::local(3);

fn alice() -> Key {
    Key::new("alice")
}

/// A limiter whose store is unavailable.
fn broken() -> RateLimiter {
    RateLimiter::new(Scripted::failing(|| Error::unreachable("no server")))
}

/// A limiter whose store can be switched off, and that store.
fn switched() -> (RateLimiter, Scripted) {
    let store = Scripted::default();
    (RateLimiter::new(store.clone()), store)
}

fn window(limit: u64, policy: OnStoreFailure) -> Limit {
    let limit = Limit::fixed_window("api", Quota::per_hour(limit)).unwrap();
    limit.with_on_store_failure(policy).unwrap()
}

fn layer(limiter: &RateLimiter, policy: OnStoreFailure) -> RateLimitLayer {
    let layer = RateLimitLayer::fixed_window(limiter, "api", Quota::per_hour(9), Global);
    layer.unwrap().on_store_failure(policy).unwrap()
}

/// A service that answers with the source of the decision, or "none".
fn app(layer: RateLimitLayer) -> Router {
    let handler = async |decision: Option<Extension<Decision>>| match decision {
        Some(Extension(decision)) => format!("{:?}", decision.source()),
        None => "none".to_owned(),
    };
    Router::new()
        .fallback(handler)
        .layer(layer.insert_decision())
}

async fn text(response: http::Response<axum::body::Body>) -> String {
    let body = axum::body::to_bytes(response.into_body(), 1_000)
        .await
        .unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// Lets the task that settles run until it has nothing more to do.
async fn settled() {
    for _ in 0..1_000 {
        yield_now().await;
    }
}

/// Charges until the first denial. Returns the number of allowed checks.
async fn allowed(limiter: &RateLimiter, limit: &Limit, key: &Key) -> u64 {
    for allowed in 0..1_000 {
        if !limiter.check(limit, key).await.unwrap().allowed() {
            return allowed;
        }
    }
    panic!("{limit:?} allows everything");
}

#[tokio::test]
async fn request_that_fails_open_has_no_rate_limit_headers_and_its_handler_can_tell() {
    let response = send(&app(layer(&broken(), FailOpen)), plain("/")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!response.headers().contains_key("x-ratelimit-limit"));
    assert_eq!(
        response.extensions().get::<Decision>().unwrap().source(),
        Source::FailOpen
    );
    assert_eq!(text(response).await, "FailOpen");
}

#[tokio::test]
async fn request_that_fails_closed_is_a_503_and_layers_outside_can_tell() {
    let layer = layer(&broken(), FailClosed);
    let layer = layer
        .ietf_headers(IetfDraft::Draft11)
        .respond_with(|rejection, response| {
            assert!(matches!(rejection, Rejection { .. } if rejection.decision().is_none()));
            response
        });
    let response = send(&app(layer), plain("/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(number(response.headers(), "retry-after"), 1);
    assert!(!response.headers().contains_key("ratelimit"));
    let decision = response.extensions().get::<Decision>().unwrap();
    assert_eq!(decision.source(), Source::FailClosed);
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn layer_outside_of_one_that_fails_closed_reports_its_budget() {
    let app = app(layer(&broken(), FailClosed)).layer(
        RateLimitLayer::gcra(
            RateLimiter::in_memory(),
            "outer",
            Quota::per_hour(5),
            Global,
        )
        .unwrap(),
    );
    let response = send(&app, plain("/")).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(number(response.headers(), "x-ratelimit-remaining"), 4);
}

#[tokio::test(start_paused = true)]
async fn local_limit_allows_the_share_and_reports_it() {
    let app = app(layer(&broken(), THIRD).ietf_headers(IetfDraft::Draft11));
    for left in [2, 1, 0] {
        let response = send(&app, plain("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(number(response.headers(), "x-ratelimit-limit"), 3);
        assert_eq!(number(response.headers(), "x-ratelimit-remaining"), left);
        assert_eq!(text(response).await, "Local");
    }
    advance(Duration::from_secs(600)).await;
    let denied = send(&app, plain("/")).await;
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(number(denied.headers(), "retry-after"), 3_000);
    assert_eq!(
        values(denied.headers(), &["ratelimit"]),
        [r#""api";r=0;t=3000"#]
    );
    assert_eq!(
        denied.extensions().get::<Decision>().unwrap().source(),
        Source::Local
    );
}

#[tokio::test]
async fn limit_has_its_own_policy_and_otherwise_that_of_the_layer() {
    for (own, of_layer, expected) in [
        (None, FailClosed, 503),
        (Some(FailOpen), FailClosed, 200),
        (Some(FailClosed), FailOpen, 503),
        (None, FailOpen, 200),
    ] {
        let limit = Limit::gcra("api", Quota::per_hour(9)).unwrap();
        let limit = match own {
            Some(own) => limit.with_on_store_failure(own).unwrap(),
            None => limit,
        };
        let layer = RateLimitLayer::new(broken(), limit, Global).unwrap();
        let layer = layer
            .on_store_failure(FailOpen)
            .unwrap()
            .on_store_failure(of_layer)
            .unwrap();
        assert_eq!(
            status(&app(layer), plain("/")).await,
            expected,
            "{own:?} in {of_layer:?}"
        );
    }
}

#[tokio::test]
async fn strictest_policy_of_a_group_decides() {
    let of = |name: &str, policy: Option<OnStoreFailure>| {
        let limit = Limit::fixed_window(name, Quota::per_hour(6)).unwrap();
        let limit = policy
            .map_or(Ok(limit.clone()), |it| limit.with_on_store_failure(it))
            .unwrap();
        Check::new(&limit, alice())
    };
    let decide = async |policies: [Option<OnStoreFailure>; 2]| {
        let [one, other] = policies;
        broken()
            .check_all([of("one", one), of("other", other)])
            .await
            .map(|it| it.source())
    };
    let closed = Some(FailClosed);
    assert_eq!(
        decide([Some(FailOpen), Some(FailOpen)]).await.unwrap(),
        Source::FailOpen
    );
    assert_eq!(
        decide([Some(FailOpen), Some(THIRD)]).await.unwrap(),
        Source::Local
    );
    assert_eq!(
        decide([Some(THIRD), closed]).await.unwrap(),
        Source::FailClosed
    );
    assert_eq!(
        decide([closed, Some(FailOpen)]).await.unwrap(),
        Source::FailClosed
    );
    assert!(
        decide([closed, None]).await.unwrap_err().is_unreachable(),
        "no policy is an error"
    );
    assert!(
        decide([None, Some(FailOpen)])
            .await
            .unwrap_err()
            .is_unreachable()
    );
}

#[tokio::test]
async fn limit_that_fails_open_is_not_checked_beside_a_local_one() {
    let open = Limit::fixed_window("open", Quota::per_hour(1)).unwrap();
    let open = open.with_on_store_failure(FailOpen).unwrap();
    let limiter = broken();
    let layer = RateLimitLayer::new(&limiter, open, Global).unwrap();
    let layer = layer
        .limit(window(9, THIRD), Global)
        .unwrap()
        .ietf_headers(IetfDraft::Draft11);
    let app = app(layer.partition_key(b"sixteen bytes of secret").unwrap());
    let single = RateLimitLayer::new(&limiter, window(9, THIRD), Global).unwrap();
    let single = single.ietf_headers(IetfDraft::Draft11);
    let single = single.partition_key(b"sixteen bytes of secret").unwrap();
    let partition = |response: &http::Response<_>| {
        let [value] = &*values(response.headers(), &["ratelimit"]) else {
            panic!("one limit")
        };
        value.split("pk=").nth(1).unwrap().to_owned()
    };
    let response = send(&app, plain("/")).await;
    assert_eq!(
        number(response.headers(), "x-ratelimit-remaining"),
        2,
        "the local limit's"
    );
    let verdicts = response
        .extensions()
        .get::<Decision>()
        .unwrap()
        .verdicts()
        .to_vec();
    assert_eq!(verdicts.len(), 2);
    assert!(verdicts[0].is_unlimited() && !verdicts[1].is_unlimited());
    let alone = send(
        &Router::new().fallback(|| async {}).layer(single),
        plain("/"),
    )
    .await;
    assert_eq!(
        partition(&response),
        partition(&alone),
        "it is of that limit"
    );
    for expected in [200, 429] {
        assert_eq!(status(&app, plain("/")).await, expected);
    }
}

#[tokio::test]
async fn cost_above_the_share_is_denied_until_the_store_is_asked_again() {
    let (limiter, limit) = (broken(), window(9, THIRD));
    let denied = limiter.check_n(&limit, &alice(), 4).await.unwrap();
    assert!(!denied.allowed() && !denied.exceeds_capacity());
    assert_eq!(
        denied.retry_after(),
        Some(Duration::from_secs(1)),
        "no breaker says when"
    );
    let never = limiter.check_n(&limit, &alice(), 10).await.unwrap();
    assert!(never.exceeds_capacity() && never.retry_after().is_none());
    assert_eq!(
        allowed(&limiter, &limit, &alice()).await,
        3,
        "neither consumed anything"
    );
}

#[tokio::test]
async fn layers_of_one_limiter_share_local_budgets() {
    let limiter = broken();
    let (one, other) = (app(layer(&limiter, THIRD)), app(layer(&limiter, THIRD)));
    for app in [&one, &other, &one] {
        assert_eq!(status(app, plain("/")).await, 200);
    }
    assert_eq!(status(&other, plain("/")).await, 429);
}

#[tokio::test]
async fn denial_of_the_store_stands_during_an_outage() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(WithDenyCache::new(store.clone()));
    let limit = window(6, THIRD);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 6);
    store.switch_off(true);
    let denied = limiter.check(&limit, &alice()).await.unwrap();
    assert!(!denied.allowed());
    assert_eq!(denied.source(), Source::DenyCache);
    assert_eq!(allowed(&limiter, &limit, &Key::new("bob")).await, 2);
}

#[tokio::test(start_paused = true)]
async fn local_charges_are_charged_to_the_store_once_after_the_outage() {
    let (limiter, store) = switched();
    let limit = window(90, THIRD);
    for _ in 0..2 {
        drop(limiter.check(&limit, &alice()).await.unwrap());
    }
    store.switch_off(true);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
    assert_eq!(store.used(&limit, &alice()).await, 2);
    store.switch_off(false);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 32);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 32, "once");

    // The local window lasts on: the next outage does not bring another share.
    store.switch_off(true);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 0);
}

#[tokio::test(start_paused = true)]
async fn answer_to_a_check_without_a_policy_ends_the_outage_of_the_others() {
    let (limiter, store) = switched();
    let limit = window(90, THIRD);
    store.switch_off(true);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
    let without = Limit::fixed_window("without", Quota::per_hour(5)).unwrap();
    limiter.check(&without, &alice()).await.unwrap_err();
    store.switch_off(false);
    drop(limiter.check(&without, &alice()).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 30);
}

#[tokio::test(start_paused = true)]
async fn local_charge_that_is_settled_counts_once() {
    for (cost, expected) in [(10, 10), (4, 4), (25, 25), (0, 0)] {
        let (limiter, store) = switched();
        let limit = window(90, THIRD);
        store.switch_off(true);
        let charged = limiter.check_n(&limit, &alice(), 10).await.unwrap();
        let other = limiter
            .check_n(&limit, &Key::new("carol"), 10)
            .await
            .unwrap();
        // While the store is away, the local budget is settled.
        let receipt = charged.receipt().unwrap();
        let settle = Change::Settle { receipt, cost };
        let settle = Operation::Change(Budget::new(&limit, alice()), settle);
        let settled_here = limiter.apply(settle).await.unwrap();
        assert_eq!(settled_here.source(), Source::Local);
        assert_eq!(settled_here.remaining(), 30 - u64::from(cost));
        store.switch_off(false);
        drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
        settled().await;
        assert_eq!(
            store.used(&limit, &alice()).await,
            expected,
            "settled at {cost}"
        );
        // The store was charged for this one already: only more is charged.
        assert_eq!(store.used(&limit, &Key::new("carol")).await, 10);
        limiter
            .settle(&limit, &Key::new("carol"), cost, other.receipt())
            .await
            .unwrap();
        let used = expected.max(10);
        assert_eq!(
            store.used(&limit, &Key::new("carol")).await,
            used,
            "settled at {cost} later"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn local_charge_that_is_refunded_is_not_charged_to_the_store() {
    let (limiter, store) = switched();
    let limit = window(90, THIRD);
    store.switch_off(true);
    let charged = limiter.check_n(&limit, &alice(), 10).await.unwrap();
    let receipt = charged.receipt().unwrap();
    limiter.refund(&limit, &alice(), 4, receipt).await.unwrap();
    let left = limiter.peek(&limit, &alice(), 0).await.unwrap();
    assert_eq!(left.remaining(), 24);
    store.switch_off(false);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 6);
    // Too late: what was charged to the store stands.
    limiter
        .refund(&limit, &alice(), 6, receipt.after(4))
        .await
        .unwrap();
    assert_eq!(store.used(&limit, &alice()).await, 6);
}

#[tokio::test(start_paused = true)]
async fn receipt_of_an_earlier_outage_gives_back_nothing_of_a_later_one() {
    let (limiter, store) = switched();
    let limit = window(90, THIRD);
    store.switch_off(true);
    let first = limiter.check_n(&limit, &alice(), 10).await.unwrap();
    store.switch_off(false);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    advance(Duration::from_secs(1)).await;
    store.switch_off(true);
    drop(limiter.check_n(&limit, &alice(), 5).await.unwrap());
    drop(limiter.settle(&limit, &alice(), 0, first.receipt()).await);
    store.switch_off(false);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 15);
}

#[tokio::test(start_paused = true)]
async fn units_that_have_drained_since_are_not_charged() {
    let (limiter, store) = switched();
    let limit = Limit::token_bucket("api", Quota::per_minute(90)).unwrap();
    let limit = limit.with_on_store_failure(THIRD).unwrap();
    store.switch_off(true);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
    // A share drains 30 a minute.
    advance(Duration::from_secs(40)).await;
    store.switch_off(false);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 10);
}

#[tokio::test(start_paused = true)]
async fn budget_with_fewer_units_left_than_are_owed_is_used_up() {
    let (limiter, store) = switched();
    let limit = window(90, THIRD);
    drop(limiter.check_n(&limit, &alice(), 70).await.unwrap());
    store.switch_off(true);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
    store.switch_off(false);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 90);
}

#[tokio::test(start_paused = true)]
async fn settlement_goes_on_after_another_outage() {
    let (limiter, store) = switched();
    let limit = window(90, THIRD);
    let keys: Vec<_> = (0..1_000_u64).map(Key::from).collect();
    store.switch_off(true);
    for key in &keys {
        drop(limiter.check_n(&limit, key, 7).await.unwrap());
    }
    let used = async || {
        let mut used = 0;
        for key in &keys {
            used += store.used(&limit, key).await;
        }
        used
    };
    store.switch_off(false);
    drop(limiter.check(&limit, &alice()).await.unwrap());
    // The task has the first of its turns.
    yield_now().await;
    store.switch_off(true);
    settled().await;
    let before = used().await;
    assert!(before < 7_000, "it was interrupted");
    store.switch_off(false);
    sleep(Duration::from_secs(1)).await;
    drop(limiter.check(&limit, &alice()).await.unwrap());
    settled().await;
    assert_eq!(used().await, 7_000, "after {before}");
}

/// A call that is lost may have charged the store, so nothing is owed to it. The local budget was
/// charged all the same.
#[tokio::test(start_paused = true)]
async fn local_charge_after_a_lost_call_is_settled_in_the_local_budget() {
    let limiter = RateLimiter::new(Scripted::failing(Error::timeout));
    let limit = window(90, THIRD);
    for (cost, left) in [(0, 30), (4, 26), (25, 5), (40, 0)] {
        let key = Key::from(u64::from(cost));
        let charged = limiter.check_n(&limit, &key, 10).await.unwrap();
        assert_eq!(charged.source(), Source::Local);
        let settled = limiter.settle(&limit, &key, cost, charged.receipt());
        assert!(settled.await.is_err(), "the store is asked, and is away");
        let now = limiter.peek(&limit, &key, 0).await.unwrap();
        assert_eq!(now.remaining(), left, "settled at {cost}");
    }
}

/// The limit is chosen by a closure, and the policy is the layer's, so the limit has no share.
#[tokio::test(start_paused = true)]
async fn local_charge_of_a_chosen_limit_is_settled_and_given_back() {
    let limiter = RateLimiter::new(Scripted::failing(|| Error::unreachable("it is away")));
    let bucket = || Limit::token_bucket("api", Quota::per_minute(10)).unwrap();
    let layer = RateLimitLayer::from_fn(&limiter, move |_| {
        Check::new(&bucket(), "alice").with_cost(4).into()
    });
    let layer = layer.unwrap().on_store_failure(OnStoreFailure::local(1));
    let layer = layer.unwrap().insert_settlement();
    let own = bucket()
        .with_on_store_failure(OnStoreFailure::local(1))
        .unwrap();
    let left = async || limiter.peek(&own, "alice", 0).await.unwrap().remaining();

    let settling = Router::new().route(
        "/",
        any(async |settlement: Settlement| assert!(settlement.settle("api", 1))),
    );
    let settling = settling.layer(layer.clone());
    let (log, _guard) = Log::start();
    assert_eq!(status(&settling, plain("/")).await, 200);
    assert_eq!(left().await, 9);
    let lines = log.lines();
    assert!(
        !lines.iter().any(|it| it.contains("not settled")),
        "{lines:?}"
    );

    // A client that waits for its units gives them back when it disconnects.
    let waiting = layer.wait_up_to(Duration::from_secs(60)).unwrap();
    let waiting = Router::new()
        .route("/", any(|| async { "hello" }))
        .layer(waiting);
    for _ in 0..2 {
        assert_eq!(status(&waiting, plain("/")).await, 200);
    }
    let gone = timeout(Duration::from_secs(1), status(&waiting, plain("/")));
    assert!(gone.await.is_err());
    assert_eq!(left().await, 1);
}

/// Charges, and loses the answer.
fn lose_answers(memory: &Arc<MemoryStore>, operation: Operation) -> Answer {
    let answer = memory.apply(operation);
    Answer::later(async {
        drop(answer.await);
        Err(Error::timeout())
    })
}

#[tokio::test(start_paused = true)]
async fn settlement_whose_answer_is_lost_is_not_repeated() {
    let store = Scripted::default();
    let (limiter, limit) = (RateLimiter::new(store.clone()), window(90, THIRD));
    store.switch_off(true);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
    store.switch_off(false);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    store.does(lose_answers);
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 30, "it was charged");
    store.does(decide);
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
        settled().await;
    }
    assert_eq!(store.used(&limit, &alice()).await, 30);
}

#[tokio::test(start_paused = true)]
async fn what_the_store_may_have_charged_is_not_charged_again() {
    let store = Scripted::default();
    let (limiter, limit) = (RateLimiter::new(store.clone()), window(90, THIRD));
    store.does(lose_answers);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
    assert_eq!(
        store.used(&limit, &alice()).await,
        31,
        "with the denied one"
    );
    store.does(decide);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 31);
}

#[tokio::test]
async fn reset_ends_a_local_denial_and_forgets_what_is_owed() {
    let (limiter, store) = switched();
    let limit = window(90, THIRD);
    store.switch_off(true);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
    assert!(
        limiter
            .reset(&limit, &alice())
            .await
            .unwrap_err()
            .is_unavailable()
    );
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
    limiter.reset(&limit, &alice()).await.unwrap_err();
    store.switch_off(false);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 0);
}

#[tokio::test]
async fn reset_is_of_the_budget_whatever_the_policy_of_its_limit() {
    let (limiter, store) = switched();
    let limit = window(90, THIRD);
    store.switch_off(true);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
    store.switch_off(false);
    // As the application has it, which leaves the policy to a layer.
    let plain = Limit::fixed_window("api", Quota::per_hour(90)).unwrap();
    limiter.reset(&plain, &alice()).await.unwrap();
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    assert_eq!(store.used(&limit, &alice()).await, 0);
    store.switch_off(true);
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 30);
}

#[tokio::test(start_paused = true)]
async fn budget_that_stays_unavailable_does_not_keep_others_from_being_settled() {
    let store = Scripted::default();
    let (limiter, limit) = (RateLimiter::new(store.clone()), window(90, THIRD));
    let keys: Vec<_> = (0..300_u64).map(Key::from).collect();
    store.switch_off(true);
    for key in &keys {
        drop(limiter.check_n(&limit, key, 7).await.unwrap());
    }
    // It is on a node that stays away.
    let away = keys[0].clone();
    store.does(move |memory, operation| {
        let is_away = operation.budgets().any(|budget| *budget.key() == away);
        match is_away {
            true => Answer::ready(Err(Error::unreachable("its node is away"))),
            false => memory.apply(operation),
        }
    });
    drop(limiter.check(&limit, &alice()).await.unwrap());
    settled().await;
    for key in &keys[1..] {
        assert_eq!(store.used(&limit, key).await, 7, "{key:?}");
    }
    store.does(decide);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(store.used(&limit, &keys[0]).await, 7);
}

#[tokio::test(start_paused = true)]
async fn rest_of_a_budget_is_settled_after_a_failure() {
    let store = Scripted::default();
    let (limiter, limit) = (RateLimiter::new(store.clone()), window(90, THIRD));
    drop(limiter.check_n(&limit, &alice(), 86).await.unwrap());
    store.switch_off(true);
    drop(limiter.check_n(&limit, &alice(), 10).await.unwrap());
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    store.does(move |memory, operation| {
        let is_charge = matches!(operation, Operation::Charge(_));
        match is_charge && failing.swap(false, Ordering::SeqCst) {
            true => Answer::ready(Err(Error::unreachable("its node is away"))),
            false => memory.apply(operation),
        }
    });
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    for _ in 0..3 {
        // Each charge that follows fails once.
        fails.store(true, Ordering::SeqCst);
        settled().await;
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(10)).await;
    assert_eq!(store.used(&limit, &alice()).await, 90);
}

#[tokio::test]
async fn peek_of_a_local_limit_consumes_nothing() {
    let (limiter, limit) = (broken(), window(9, THIRD));
    for _ in 0..5 {
        let peeked = limiter.peek(&limit, &alice(), 1).await.unwrap();
        assert_eq!((peeked.source(), peeked.remaining()), (Source::Local, 2));
    }
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 3);
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_for_units_of_the_share() {
    let limit = Limit::gcra("mails", Quota::per_minute(60).burst(3)).unwrap();
    let (limiter, limit) = (broken(), limit.with_on_store_failure(THIRD).unwrap());
    let start = tokio::time::Instant::now();
    for _ in 0..3 {
        let decision = limiter
            .acquire(&limit, &alice(), 1, Duration::from_secs(60))
            .await
            .unwrap();
        assert!(decision.allowed() && decision.source() == Source::Local);
    }
    assert_eq!(
        start.elapsed().as_secs(),
        6,
        "one at once, and one each three seconds"
    );
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_for_a_store_that_fails_closed() {
    let (limiter, store) = switched();
    let (limit, alice) = (window(9, FailClosed), alice());
    store.switch_off(true);
    let wait = limiter.acquire(&limit, &alice, 1, Duration::from_secs(10));
    let recovers = async {
        sleep(Duration::from_millis(4_500)).await;
        store.switch_off(false);
    };
    let (decision, ()) = tokio::join!(wait, recovers);
    let decision = decision.unwrap();
    assert!(decision.allowed() && decision.source() == Source::Store);
    assert_eq!(store.asked(), 6, "once a second");
}

#[tokio::test]
async fn store_that_is_full_or_overloaded_is_not_unavailable() {
    let full = RateLimiter::new(Scripted::failing(|| Error::full("no room")));
    assert_eq!(status(&app(layer(&full, FailOpen)), plain("/")).await, 503);
    let overloaded = RateLimiter::new(Scripted::failing(|| Error::overloaded(1)));
    assert_eq!(
        status(&app(layer(&overloaded, FailOpen)), plain("/")).await,
        503
    );
    assert_eq!(
        status(&app(layer(&overloaded, THIRD)), plain("/")).await,
        503
    );
    let open = layer(&overloaded, FailClosed).fail_open_when_overloaded();
    assert_eq!(status(&app(open), plain("/")).await, 200);
}

#[tokio::test]
async fn flood_of_keys_during_an_outage_does_not_evict_a_denied_one() {
    let (limiter, limit) = (broken(), window(3, THIRD));
    assert_eq!(allowed(&limiter, &limit, &alice()).await, 1);
    let mut full = 0;
    for key in 0..150_000_u64 {
        match limiter.check(&limit, &Key::from(key)).await {
            Ok(decision) => assert!(decision.allowed()),
            Err(error) => {
                assert!(error.is_full(), "{error}");
                full += 1;
            }
        }
    }
    assert!(full > 40_000, "{full}");
    assert!(!limiter.check(&limit, &alice()).await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn outage_is_an_event_a_second_with_its_outcome_and_settlement_one() {
    let (log, _guard) = Log::start();
    let (limiter, store) = switched();
    let limit = window(30, THIRD);
    store.switch_off(true);
    for _ in 0..10 {
        drop(limiter.check(&limit, &alice()).await.unwrap());
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in [
        "ERROR",
        "rate limit store unavailable",
        r#"outcome="local""#,
        r#"limits="api""#,
    ] {
        assert!(lines[0].contains(part), "{lines:?}");
    }
    advance(Duration::from_secs(2)).await;
    store.switch_off(false);
    drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
    settled().await;
    let lines = log.lines();
    let [unreported, settled] = &*lines else {
        panic!("{lines:?}")
    };
    assert!(unreported.contains("not reported before") && unreported.contains("unreported=9"));
    assert!(settled.contains("local charges settled"), "{settled}");
    assert!(settled.contains("budgets=1 units=10"), "{settled}");
}

#[test]
fn share_that_cannot_be_decided_is_an_error_of_the_builder() {
    let limit = |quota| Limit::token_bucket("api", quota).unwrap();
    for (limit, replicas, why) in [
        (
            limit(Quota::per_day(1)),
            0,
            "`OnStoreFailure::local` has 0 replicas; use 1 to 10000",
        ),
        (
            limit(Quota::per_day(1)),
            10_001,
            "has 10001 replicas; use 1 to 10000",
        ),
        (limit(Quota::per_day(1)), 500, "longer than 366 days"),
    ] {
        let error = limit
            .clone()
            .with_on_store_failure(OnStoreFailure::local(replicas))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("limit `api`: ") && error.contains(why),
            "{error}"
        );
        let layer = RateLimitLayer::new(broken(), limit, Global).unwrap();
        assert_eq!(
            layer
                .on_store_failure(OnStoreFailure::local(replicas))
                .unwrap_err()
                .to_string(),
            error
        );
    }
    let largest = limit(Quota::per_day(500)).with_on_store_failure(OnStoreFailure::local(500));
    assert!(largest.is_ok());
}

#[cfg(feature = "serde")]
#[test]
fn failure_policy_is_part_of_a_limits_configuration() {
    let with = |policy: &str| {
        let text = format!(
            r#"{{"name":"api","algorithm":"gcra","quota":"9/h","on_store_failure":{policy}}}"#
        );
        serde_json::from_str::<Limit>(&text)
    };
    for (text, policy) in [
        (r#""fail_open""#, FailOpen),
        (r#""fail_closed""#, FailClosed),
        (r#"{"local":{"replicas":3}}"#, THIRD),
    ] {
        let limit = with(text).unwrap();
        assert_eq!(limit.on_store_failure(), Some(policy));
        let written = serde_json::to_string(&limit).unwrap();
        assert_eq!(serde_json::from_str::<Limit>(&written).unwrap(), limit);
    }
    for wrong in [
        r#""open""#,
        r#"{"local":{}}"#,
        r#"{"local":{"replicas":0}}"#,
        r#""local""#,
    ] {
        assert!(with(wrong).is_err(), "{wrong}");
    }
}

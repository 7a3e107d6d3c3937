//! Limits with an overshoot on a real Redis: replicas that share it, what ends their credit, and an
//! outage.
#![cfg(feature = "redis")]

use std::pin::pin;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tollgate::limit::OnStoreFailure;
use tollgate::{Check, Limit, Quota, RateLimiter};

use crate::replicas::{alice, in_time, is_decided_here, limiter_of, spend, used};
use crate::support::RedisServer;

/// A bucket that refills slowly, and an overshoot of a tenth.
fn slow_bucket(units: u64) -> Limit {
    Limit::token_bucket("api", Quota::per_day(units))
        .and_then(|limit| limit.with_overshoot_percent(10))
        .unwrap()
}

/// Checks one unit at a time until this process decides by itself, with a share that grows no more.
/// Returns the allowed checks.
async fn heat(limiter: &RateLimiter, limit: &Limit) -> u64 {
    let mut here_in_a_row = 0;
    for allowed in 1.. {
        let decision = limiter.check(limit, &alice()).await.unwrap();
        assert!(decision.allowed());
        match is_decided_here(&decision) {
            true => here_in_a_row += 1,
            false => here_in_a_row = 0,
        }
        if here_in_a_row == 10 {
            return allowed;
        }
        // The share is claimed in the background.
        sleep(Duration::from_millis(50)).await;
    }
    0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_allow_at_most_the_overshoot_above_the_limit_and_rarely_ask() {
    in_time(async {
        let (server, limit) = (RedisServer::start(), slow_bucket(20_000));
        let mut replicas = Vec::new();
        for _ in 0..4 {
            replicas.push(limiter_of(&server).await);
        }
        let mut allowed = 0;
        for replica in &replicas {
            allowed += heat(replica, &limit).await;
        }
        let mut spending = JoinSet::new();
        for replica in replicas.clone() {
            let limit = limit.clone();
            spending.spawn(async move { spend(&replica, &limit).await });
        }
        let mut here = 0;
        for spent in spending.join_all().await {
            allowed += spent.0;
            here += spent.1;
        }
        assert!((20_000..=22_000).contains(&allowed), "{allowed}");
        assert!(here > 15_000, "{here} of 20,000 were decided here");
        for replica in &replicas {
            replica.flush().await;
        }
        let redis = limiter_of(&server).await;
        let denied = redis.check(&limit, &alice()).await.unwrap();
        // All that passed is charged: 20,000 a day are one in 4.32 seconds.
        let above = denied.retry_after().unwrap().as_secs_f64() / 4.32;
        let above = above - 1.0 + 20_000.0;
        assert!(
            (above - allowed as f64).abs() < 10.0,
            "{above} of {allowed}"
        );
    })
    .await;
}

#[tokio::test]
async fn units_are_charged_in_a_few_seconds_and_by_flush() {
    in_time(async {
        let (server, limit) = (RedisServer::start(), slow_bucket(10_000));
        let limiter = limiter_of(&server).await;
        let mut allowed = heat(&limiter, &limit).await;
        for _ in 0..10 {
            assert!(is_decided_here(
                &limiter.check(&limit, &alice()).await.unwrap()
            ));
            allowed += 1;
        }
        assert!(used(&server, &limit).await < allowed, "they are owed");
        let start = Instant::now();
        while used(&server, &limit).await < allowed {
            assert!(start.elapsed() < Duration::from_secs(30));
            sleep(Duration::from_millis(100)).await;
        }
        assert!(limiter.check(&limit, &alice()).await.unwrap().allowed());
        limiter.flush().await;
        assert_eq!(used(&server, &limit).await, allowed + 1);
    })
    .await;
}

#[tokio::test]
async fn what_is_left_and_a_peek_count_what_is_owed() {
    let (server, limit) = (RedisServer::start(), slow_bucket(10_000));
    let limiter = limiter_of(&server).await;
    let allowed = heat(&limiter, &limit).await;
    let decision = limiter.check(&limit, &alice()).await.unwrap();
    assert_eq!(decision.remaining(), 10_000 - allowed - 1);
    let reset = decision.reset_after().as_secs_f64();
    let expected = (allowed + 1) as f64 * 8.64;
    assert!(
        (reset - expected).abs() < 1.0,
        "{reset} s and not {expected}"
    );
    let peeked = limiter.peek(&limit, &alice(), 1).await.unwrap();
    // A peek says what would be left.
    assert_eq!(peeked.remaining(), 10_000 - allowed - 2);
}

#[tokio::test]
async fn every_algorithm_is_decided_here() {
    let quota = Quota::per_day(10_000);
    let limits = [
        Limit::token_bucket("api", quota),
        Limit::gcra("api", quota),
        Limit::leaky_bucket_meter("api", quota),
        Limit::sliding_window_with("api", quota, 4),
        Limit::sliding_log("api", quota),
    ];
    for limit in limits {
        let limit = limit.unwrap().with_overshoot_percent(10).unwrap();
        let server = RedisServer::start();
        let limiter = limiter_of(&server).await;
        let allowed = in_time(heat(&limiter, &limit)).await;
        let decision = limiter.check(&limit, &alice()).await.unwrap();
        assert!(is_decided_here(&decision), "{limit:?}");
        assert_eq!(decision.remaining(), 10_000 - allowed - 1);
        limiter.flush().await;
        assert_eq!(used(&server, &limit).await, allowed + 1, "{limit:?}");
        let other = limiter_of(&server).await;
        let exact = other.peek(&limit, &alice(), 0).await.unwrap();
        let late = decision.reset_after().abs_diff(exact.reset_after());
        assert!(late < Duration::from_secs(20), "{limit:?}: {late:?}");
    }
}

#[tokio::test]
async fn reset_ends_what_is_owed_and_a_block_ends_the_credit() {
    let (server, limit) = (RedisServer::start(), slow_bucket(10_000));
    let limiter = limiter_of(&server).await;
    in_time(heat(&limiter, &limit)).await;
    limiter.reset(&limit, &alice()).await.unwrap();
    limiter.flush().await;
    assert_eq!(used(&server, &limit).await, 0);

    in_time(heat(&limiter, &limit)).await;
    let block = Duration::from_secs(60);
    limiter.block(&limit, &alice(), block).await.unwrap();
    let denied = limiter.check(&limit, &alice()).await.unwrap();
    assert!(!denied.allowed() && denied.is_blocked());
}

#[tokio::test]
async fn group_owes_nothing_if_another_limit_denies_it() {
    let (server, limit) = (RedisServer::start(), slow_bucket(10_000));
    let strict = Limit::fixed_window("strict", Quota::per_day(1)).unwrap();
    let limiter = limiter_of(&server).await;
    let mut allowed = in_time(heat(&limiter, &limit)).await;
    let group = || [Check::new(&limit, alice()), Check::new(&strict, alice())];
    assert!(limiter.check_all(group()).await.unwrap().allowed());
    allowed += 1;
    for _ in 0..20 {
        assert!(!limiter.check_all(group()).await.unwrap().allowed());
    }
    limiter.flush().await;
    assert_eq!(used(&server, &limit).await, allowed);
}

#[tokio::test]
async fn units_are_allowed_for_a_while_without_redis_and_then_the_failure_policy_decides() {
    let (mut server, limit) = (RedisServer::start(), slow_bucket(10_000));
    let limit = limit
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let store = server
        .store()
        .deadline(Duration::from_millis(200))
        .connect();
    let limiter = RateLimiter::new(store.await.unwrap());
    in_time(heat(&limiter, &limit)).await;
    server.kill();
    assert!(is_decided_here(
        &limiter.check(&limit, &alice()).await.unwrap()
    ));
    let ends = async {
        let mut allowed = 0_u64;
        while limiter
            .check(&limit, &alice())
            .await
            .is_ok_and(|it| it.allowed())
        {
            allowed += 1;
            sleep(Duration::from_millis(20)).await;
        }
        allowed
    };
    let start = Instant::now();
    let allowed = in_time(ends).await;
    assert!(allowed <= 1_000, "the overshoot, and not {allowed}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn refund_of_units_that_are_owed_makes_them_unused() {
    let (server, limit) = (RedisServer::start(), slow_bucket(10_000));
    let limiter = limiter_of(&server).await;
    let allowed = in_time(heat(&limiter, &limit)).await;
    let decision = limiter.check_n(&limit, &alice(), 20).await.unwrap();
    assert!(is_decided_here(&decision));
    assert_eq!(decision.remaining(), 10_000 - allowed - 20);
    let receipt = decision.receipt().unwrap();
    limiter.settle(&limit, &alice(), 5, receipt).await.unwrap();
    let next = limiter.check(&limit, &alice()).await.unwrap();
    assert_eq!(next.remaining(), 10_000 - allowed - 5 - 1);
    limiter.flush().await;
    assert_eq!(used(&server, &limit).await, allowed + 5 + 1);
}

#[tokio::test]
async fn refund_while_its_units_are_being_charged_is_not_lost() {
    let (server, limit) = (RedisServer::start(), slow_bucket(10_000));
    let limiter = limiter_of(&server).await;
    let allowed = in_time(heat(&limiter, &limit)).await;
    server.pause(true);
    // Most of what the process may owe, so that it is charged at once.
    let decision = limiter.check_n(&limit, &alice(), 800).await.unwrap();
    assert!(is_decided_here(&decision));
    let receipt = decision.receipt().unwrap();
    let mut refund = pin!(limiter.refund(&limit, alice(), 800, receipt));
    let early = timeout(Duration::from_millis(20), &mut refund).await;
    assert!(early.is_err(), "its units are not charged yet: {early:?}");
    server.pause(false);
    refund.await.unwrap();
    limiter.flush().await;
    assert_eq!(used(&server, &limit).await, allowed);
}

#[tokio::test]
async fn denied_client_that_comes_back_in_time_is_allowed() {
    in_time(async {
        let server = RedisServer::start();
        let limit = Limit::token_bucket("api", Quota::new(100, Duration::from_secs(20)))
            .and_then(|limit| limit.with_overshoot_percent(10))
            .unwrap();
        let limiter = limiter_of(&server).await;
        heat(&limiter, &limit).await;
        let mut in_time = 0;
        for _ in 0..20 {
            spend(&limiter, &limit).await;
            let denied = limiter.check(&limit, &alice()).await.unwrap();
            let Some(wait) = denied.retry_after() else {
                continue;
            };
            sleep(wait).await;
            in_time += u32::from(limiter.check(&limit, &alice()).await.unwrap().allowed());
        }
        // A denial while a payment is in flight may count its units twice or not at all.
        assert!(in_time >= 18, "{in_time} of 20");
    })
    .await;
}

#[tokio::test]
async fn check_of_cost_0_asks_and_takes_nothing() {
    let (server, limit) = (RedisServer::start(), slow_bucket(10_000));
    let limiter = limiter_of(&server).await;
    let allowed = in_time(heat(&limiter, &limit)).await;
    let decision = limiter.check_n(&limit, &alice(), 0).await.unwrap();
    assert!(decision.allowed() && !is_decided_here(&decision));
    assert_eq!(decision.remaining(), 10_000 - allowed);
}

//! Asynchronous limits on a real Redis: replicas that share a limit, what ends their units, and an
//! outage.
#![cfg(feature = "redis")]

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tollgate::decision::Source;
use tollgate::limit::OnStoreFailure;
use tollgate::{Check, Decision, Key, Limit, Quota, RateLimiter};

use crate::replicas::{alice, in_time, is_decided_here, limiter_of, spend, used};
use crate::support::RedisServer;

fn per_day(units: u64) -> Limit {
    Limit::fixed_window("api", Quota::per_day(units))
        .and_then(Limit::asynchronous)
        .unwrap()
}

/// Checks one unit at a time until this process decides by itself. Returns the allowed checks.
async fn heat(limiter: &RateLimiter, limit: &Limit) -> u64 {
    let checks = async {
        for allowed in 1.. {
            let decision = limiter.check(limit, &alice()).await.unwrap();
            assert!(decision.allowed());
            if is_decided_here(&decision) {
                return allowed;
            }
            yield_now().await;
        }
        0
    };
    in_time(checks).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_allow_exactly_the_limit_together_and_rarely_ask() {
    let (server, limit) = (RedisServer::start(), per_day(20_000));
    let mut replicas = Vec::new();
    for _ in 0..4 {
        replicas.push(limiter_of(&server).await);
    }
    let (mut allowed, mut here) = (0, 0);
    // A replica may be denied while another one has units. They are given back, and spent in a
    // later round.
    let spend_all = async {
        while allowed < limit.quota().capacity() {
            let mut spending = JoinSet::new();
            for replica in replicas.clone() {
                let limit = limit.clone();
                spending.spawn(async move {
                    let spent = spend(&replica, &limit).await;
                    replica.flush().await;
                    spent
                });
            }
            for spent in spending.join_all().await {
                allowed += spent.0;
                here += spent.1;
            }
            assert!(allowed <= used(&server, &limit).await);
        }
    };
    in_time(spend_all).await;
    assert_eq!(allowed, 20_000);
    assert!(here > 15_000, "{here} of 20,000 were decided here");
    for replica in &replicas {
        assert_eq!(spend(replica, &limit).await, (0, 0));
    }
}

#[tokio::test]
async fn units_are_given_back_when_a_process_ends() {
    let (server, limit) = (RedisServer::start(), per_day(10_000));
    let limiter = limiter_of(&server).await;
    let mut allowed = heat(&limiter, &limit).await;
    assert!(used(&server, &limit).await > allowed, "units are here");
    limiter.flush().await;
    assert_eq!(used(&server, &limit).await, allowed);

    allowed += heat(&limiter, &limit).await;
    drop(limiter);
    // A task gives the units back.
    in_time(async { while used(&server, &limit).await != allowed {} }).await;
}

#[tokio::test]
async fn units_from_before_a_reset_are_not_spent() {
    let (server, limit) = (RedisServer::start(), per_day(10_000));
    let limiter = limiter_of(&server).await;
    heat(&limiter, &limit).await;
    limiter.reset(&limit, &alice()).await.unwrap();
    let decision = limiter.check(&limit, &alice()).await.unwrap();
    assert_eq!(decision.source(), Source::Store);
    assert_eq!(decision.remaining(), 9_999);
}

#[tokio::test]
async fn key_that_an_operator_blocks_spends_no_units_of_that_process() {
    let (server, limit) = (RedisServer::start(), per_day(10_000));
    let limiter = limiter_of(&server).await;
    heat(&limiter, &limit).await;
    let hour = Duration::from_secs(60 * 60);
    limiter.block(&limit, &alice(), hour).await.unwrap();
    let decision = limiter.check(&limit, &alice()).await.unwrap();
    assert!(!decision.allowed() && decision.is_blocked());
}

#[tokio::test]
async fn refund_of_a_unit_that_was_decided_here_reaches_redis() {
    let (server, limit) = (RedisServer::start(), per_day(10_000));
    let limiter = limiter_of(&server).await;
    heat(&limiter, &limit).await;
    let decision = limiter.check_n(&limit, alice(), 1).await.unwrap();
    assert_eq!(decision.source(), Source::Asynchronous);
    let before = used(&server, &limit).await;
    let receipt = decision.receipt().unwrap();
    assert_eq!(receipt.cost(), 1);
    limiter.refund(&limit, alice(), 1, receipt).await.unwrap();
    assert_eq!(used(&server, &limit).await, before - 1);
}

#[tokio::test]
async fn check_that_costs_more_than_is_here_asks_for_the_rest() {
    let (server, limit) = (RedisServer::start(), per_day(100));
    let limiter = limiter_of(&server).await;
    let allowed = heat(&limiter, &limit).await;
    // All that is left anywhere.
    let rest = u32::try_from(100 - allowed).unwrap();
    let above = limiter.check_n(&limit, alice(), rest + 1).await.unwrap();
    assert!(!above.allowed());
    assert_eq!(
        above.remaining(),
        u64::from(rest),
        "with the units that are here"
    );
    let all = limiter.check_n(&limit, alice(), rest).await.unwrap();
    assert!(all.allowed());
    assert_eq!(used(&server, &limit).await, 100);
    let peeked = limiter.peek(&limit, alice(), 0).await.unwrap();
    assert_eq!(peeked.remaining(), 0);
}

#[tokio::test]
async fn peek_says_what_such_a_check_would_leave() {
    let (server, limit) = (RedisServer::start(), per_day(1_000));
    let limiter = limiter_of(&server).await;
    let left = 1_000 - heat(&limiter, &limit).await;
    for cost in [0, 1, 3, 20, 500, left] {
        let cost = u32::try_from(cost).unwrap();
        let peeked = limiter.peek(&limit, alice(), cost).await.unwrap();
        assert!(peeked.allowed());
        assert_eq!(peeked.remaining(), left - u64::from(cost), "{cost}");
    }
    let above = u32::try_from(left + 1).unwrap();
    let peeked = limiter.peek(&limit, alice(), above).await.unwrap();
    assert!(!peeked.allowed());
    assert_eq!(peeked.remaining(), left);
}

#[tokio::test]
async fn units_of_a_cancelled_check_are_not_spent_after_a_reset() {
    let server = RedisServer::start();
    let year = Duration::from_secs(366 * 24 * 60 * 60);
    let limit = Limit::fixed_window_aligned("api", Quota::new(1_000, year))
        .and_then(Limit::asynchronous)
        .unwrap();
    let limiter = limiter_of(&server).await;
    heat(&limiter, &limit).await;
    // It takes all units that are here.
    let mut cancelled = Box::pin(limiter.check_n(&limit, alice(), 900));
    let first_poll = poll_fn(|cx| Poll::Ready(cancelled.as_mut().poll(cx).is_pending()));
    assert!(first_poll.await);
    limiter.reset(&limit, &alice()).await.unwrap();
    let after = limiter.check(&limit, &alice()).await.unwrap();
    assert_eq!(after.source(), Source::Store);
    let before = used(&server, &limit).await;
    drop(cancelled);
    let peeked = limiter.peek(&limit, alice(), 0).await.unwrap();
    assert_eq!(peeked.remaining(), 1_000 - before, "no units are here");
}

#[tokio::test]
async fn flush_waits_for_blocks_that_are_being_charged() {
    let (server, limit) = (RedisServer::start(), per_day(1_000_000));
    for round in 1..=20 {
        let limiter = limiter_of(&server).await;
        let key = Key::from(round);
        let mut allowed = 0;
        // The last of these checks has just started a block.
        for _ in 0..round {
            allowed += u64::from(limiter.check(&limit, &key).await.unwrap().allowed());
        }
        limiter.flush().await;
        let peeked = limiter.peek(&limit, key, 0).await.unwrap();
        assert_eq!(1_000_000 - peeked.remaining(), allowed, "round {round}");
    }
}

#[tokio::test]
async fn group_takes_no_units_if_another_limit_denies_it() {
    let (server, limit) = (RedisServer::start(), per_day(10_000));
    let limiter = limiter_of(&server).await;
    let strict = Limit::token_bucket("strict", Quota::per_day(1)).unwrap();
    let group = || [Check::new(&limit, alice()), Check::new(&strict, alice())];
    let mut allowed = heat(&limiter, &limit).await;
    let first = limiter.check_all(group()).await.unwrap();
    assert!(first.allowed());
    allowed += 1;
    assert_eq!(first.source(), Source::Store, "the other limit asks");
    for _ in 0..20 {
        let denied = limiter.check_all(group()).await.unwrap();
        assert!(!denied.allowed());
        assert_eq!(denied.deciding().limit().name(), "strict");
        assert_eq!(denied.verdicts()[0].remaining(), 10_000 - allowed);
    }
    limiter.flush().await;
    assert_eq!(used(&server, &limit).await, allowed);
}

#[tokio::test]
async fn group_of_asynchronous_limits_is_decided_here() {
    let (server, limit) = (RedisServer::start(), per_day(10_000));
    let limiter = limiter_of(&server).await;
    let hourly = Limit::fixed_window("hourly", Quota::per_hour(1_000))
        .and_then(Limit::asynchronous)
        .unwrap();
    let group = || [Check::new(&limit, alice()), Check::new(&hourly, alice())];
    let checks = async {
        loop {
            let decision = limiter.check_all(group()).await.unwrap();
            assert!(decision.allowed());
            if is_decided_here(&decision) {
                return decision;
            }
            yield_now().await;
        }
    };
    let decision: Decision = in_time(checks).await;
    assert_eq!(decision.verdicts().len(), 2);
    assert!(decision.receipts().all(|receipt| receipt.is_some()));
}

#[tokio::test]
async fn limit_in_shadow_mode_passes_what_it_would_deny() {
    let (server, limit) = (RedisServer::start(), per_day(50).with_shadow_mode());
    let limiter = limiter_of(&server).await;
    let mut denials = 0;
    for _ in 0..80 {
        let decision = limiter.check(&limit, &alice()).await.unwrap();
        assert!(decision.allowed());
        denials += u64::from(decision.deciding().would_deny());
        yield_now().await;
    }
    // A block may have been denied that would have held the last units.
    assert!((30..=32).contains(&denials), "{denials}");
}

#[tokio::test]
async fn units_are_spent_while_redis_is_away_and_then_the_failure_policy_decides() {
    let (mut server, limit) = (RedisServer::start(), per_day(10_000));
    let limit = limit
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let limiter = limiter_of(&server).await;
    heat(&limiter, &limit).await;
    server.kill();
    let mut here = 0;
    let last = loop {
        let decision = limiter.check(&limit, &alice()).await.unwrap();
        if decision.source() != Source::Asynchronous {
            break decision;
        }
        here += 1;
    };
    assert!(here > 0);
    assert_eq!(last.source(), Source::FailClosed);
    assert!(!last.allowed());
}

#[tokio::test]
async fn another_quota_under_the_same_name_does_not_spend_the_units() {
    let (server, limit) = (RedisServer::start(), per_day(10_000));
    let limiter = limiter_of(&server).await;
    heat(&limiter, &limit).await;
    let allowed = used(&server, &limit).await;
    let lower = per_day(9_000);
    let decision = limiter.check(&lower, &alice()).await.unwrap();
    assert!(decision.allowed());
    assert_eq!(decision.source(), Source::Store);
    // What was charged under the first quota and not spent is given back.
    let given_back = async { while used(&server, &lower).await >= allowed {} };
    in_time(given_back).await;
}

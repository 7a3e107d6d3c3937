//! The deny cache: repeated denials are answered without the store, and expire in time.
#![cfg(all(feature = "redis", feature = "test-util"))]

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::advance;
use tollgate::decision::Source;
use tollgate::store::{Answer, Operation, Store};
use tollgate::store::{Budget, Change, WithDenyCache};
use tollgate::{Check, Key, Limit, Quota, RateLimiter};

use crate::support::scripted::{Scripted, ask_after, late};

/// A store, and two replicas of a service on it, each with a deny cache of its own.
fn replicas() -> (Scripted, RateLimiter, RateLimiter) {
    let store = Scripted::default();
    let replica = || RateLimiter::new(WithDenyCache::new(store.clone()));
    (store.clone(), replica(), replica())
}

fn one_in_ten_seconds() -> Limit {
    Limit::token_bucket("api", Quota::new(1, Duration::from_secs(10)).burst(3)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn repeated_denied_check_is_answered_from_the_cache() {
    let (store, limiter, _) = replicas();
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    for _ in 0..3 {
        let decision = limiter.check(&limit, &key).await.unwrap();
        assert_eq!(
            (decision.allowed(), decision.source()),
            (true, Source::Store)
        );
    }
    let first = limiter.check(&limit, &key).await.unwrap();
    assert_eq!((first.allowed(), first.source()), (false, Source::Store));
    assert_eq!(store.asked(), 4);

    advance(Duration::from_millis(300)).await;
    let again = limiter.check(&limit, &key).await.unwrap();
    assert_eq!(store.asked(), 0);
    assert_eq!(
        (again.allowed(), again.source()),
        (false, Source::DenyCache)
    );
    let elapsed = Duration::from_millis(300);
    assert_eq!(
        again.retry_after(),
        Some(first.retry_after().unwrap() - elapsed)
    );
    assert_eq!(again.reset_after(), first.reset_after() - elapsed);
    assert_eq!((again.remaining(), again.capacity()), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn cached_denial_ends_in_the_microsecond_of_its_retry_after() {
    let (_, limiter, _) = replicas();
    let limit = Limit::gcra("api", Quota::new(1, Duration::from_millis(700))).unwrap();
    let key = Key::new("alice");
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());
    let denied = limiter.check(&limit, &key).await.unwrap();
    advance(denied.retry_after().unwrap() - Duration::from_micros(1)).await;
    let last = limiter.check(&limit, &key).await.unwrap();
    assert_eq!((last.allowed(), last.source()), (false, Source::DenyCache));
    advance(Duration::from_micros(1)).await;
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn reset_by_another_replica_takes_effect_within_a_second() {
    let (_, here, there) = replicas();
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    drop(here.check_n(&limit, &key, 3).await.unwrap());
    assert!(!here.check(&limit, &key).await.unwrap().allowed());
    there.reset(&limit, &key).await.unwrap();
    advance(Duration::from_micros(999_999)).await;
    assert!(!here.check(&limit, &key).await.unwrap().allowed());
    advance(Duration::from_micros(1)).await;
    assert!(here.check(&limit, &key).await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn denial_of_an_asynchronous_limit_stands_for_longer_each_time() {
    let window = || Limit::fixed_window("api", Quota::per_minute(1)).unwrap();
    let asynchronous = window().asynchronous().unwrap();
    for (limit, expected) in [
        (asynchronous, [1, 2, 4, 8, 8, 8].as_slice()),
        (window(), [1; 6].as_slice()),
    ] {
        let (store, here, there) = replicas();
        assert!(here.check(&limit, "alice").await.unwrap().allowed());
        let denied = async || assert!(!here.check(&limit, "alice").await.unwrap().allowed());
        denied().await;
        for seconds in expected {
            store.asked();
            advance(Duration::from_secs(*seconds) - Duration::from_micros(1)).await;
            denied().await;
            assert_eq!(store.asked(), 0, "{limit}: {seconds}");
            advance(Duration::from_micros(1)).await;
            denied().await;
            denied().await;
            assert_eq!(store.asked(), 1, "{limit}: {seconds}");
        }
        // A change by this replica is seen at once, and the next denial stands for a second.
        here.reset(&limit, "alice").await.unwrap();
        assert!(there.check(&limit, "alice").await.unwrap().allowed());
        denied().await;
        store.asked();
        advance(Duration::from_secs(1)).await;
        denied().await;
        assert_eq!(store.asked(), 1, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn denials_that_were_asked_together_double_the_time_once() {
    let store =
        Scripted::new(|memory, operation| ask_after(Duration::from_millis(5), memory, operation));
    let limiter = RateLimiter::new(WithDenyCache::new(store.clone()));
    let limit = Limit::fixed_window("api", Quota::per_minute(1)).unwrap();
    let limit = limit.asynchronous().unwrap();
    assert!(limiter.check(&limit, "alice").await.unwrap().allowed());
    let together = async || {
        store.asked();
        let checks: JoinSet<_> = (0..4)
            .map(|_| {
                let (limiter, limit) = (limiter.clone(), limit.clone());
                async move { limiter.check(&limit, "alice").await.unwrap() }
            })
            .collect();
        let decisions = checks.join_all().await;
        assert!(decisions.iter().all(|it| !it.allowed()));
        store.asked()
    };
    assert_eq!(together().await, 4);
    for seconds in [1, 2, 4, 8] {
        advance(Duration::from_secs(seconds) - Duration::from_millis(6)).await;
        assert_eq!(together().await, 0, "{seconds}");
        advance(Duration::from_millis(6)).await;
        assert_eq!(together().await, 4, "{seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_deciding_asynchronous_limit_doubles_the_time_and_another_quota_ends_that() {
    let (store, limiter, _) = replicas();
    let quota = |limit| Quota::per_minute(limit);
    let asynchronous = |limit| {
        Limit::fixed_window("api", quota(limit))
            .unwrap()
            .asynchronous()
    };
    let strict = Limit::fixed_window("strict", Quota::per_hour(1)).unwrap();
    let denied = async |checks: &[Check]| {
        let decision = limiter.check_all(checks.to_vec()).await.unwrap();
        assert!(!decision.allowed());
        store.asked()
    };
    let both = [
        Check::new(&strict, "alice"),
        Check::new(&asynchronous(1).unwrap(), "alice"),
    ];
    assert!(limiter.check_all(both.to_vec()).await.unwrap().allowed());
    store.asked();
    assert_eq!(denied(&both).await, 1);
    for _ in 0..3 {
        advance(Duration::from_secs(1)).await;
        assert_eq!(denied(&both).await, 1, "the strict limit decides");
    }
    let alone = |limit| [Check::new(&asynchronous(limit).unwrap(), "alice")];
    assert_eq!(denied(&alone(1)).await, 1);
    advance(Duration::from_secs(1)).await;
    assert_eq!(denied(&alone(1)).await, 1);
    advance(Duration::from_secs(1)).await;
    assert_eq!(denied(&alone(1)).await, 0, "it stands for two seconds");
    // Under another quota, and again under the first one.
    drop(
        limiter
            .check(&asynchronous(2).unwrap(), "alice")
            .await
            .unwrap(),
    );
    store.asked();
    assert_eq!(denied(&alone(1)).await, 1);
    advance(Duration::from_secs(1)).await;
    assert_eq!(denied(&alone(1)).await, 1, "it stands for a second");
}

#[tokio::test(start_paused = true)]
async fn refund_or_reset_by_the_same_store_takes_effect_at_once() {
    let (_, limiter, _) = replicas();
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    let receipt = limiter
        .check_n(&limit, &key, 3)
        .await
        .unwrap()
        .receipt()
        .unwrap();
    assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
    limiter.refund(&limit, &key, 1, receipt).await.unwrap();
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());
    assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
    limiter.reset(&limit, &key).await.unwrap();
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn denial_is_cached_for_its_own_cost_limit_and_key_only() {
    let (store, limiter, _) = replicas();
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    drop(limiter.check_n(&limit, &key, 2).await.unwrap());
    assert!(!limiter.check_n(&limit, &key, 2).await.unwrap().allowed());
    store.asked();
    assert!(
        limiter.check(&limit, &key).await.unwrap().allowed(),
        "one unit was left"
    );
    assert!(
        limiter
            .check(&limit, &Key::new("bob"))
            .await
            .unwrap()
            .allowed()
    );
    let more = Limit::token_bucket("api", Quota::per_second(100)).unwrap();
    assert!(
        limiter.check(&more, &key).await.unwrap().allowed(),
        "the quota was raised"
    );
    assert!(!limiter.peek(&limit, &key, 4).await.unwrap().allowed());
    assert_eq!(store.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn cached_denial_does_not_outlive_its_quota() {
    let (_, limiter, _) = replicas();
    let key = Key::new("alice");
    let slow = Limit::gcra("api", Quota::new(1, Duration::from_secs(10))).unwrap();
    let fast = Limit::gcra("api", Quota::new(1, Duration::from_millis(100))).unwrap();
    assert!(limiter.check(&slow, &key).await.unwrap().allowed());
    assert!(!limiter.check(&slow, &key).await.unwrap().allowed());
    // From now on the budget drains a hundred times as fast.
    assert!(!limiter.check(&fast, &key).await.unwrap().allowed());
    advance(Duration::from_millis(100)).await;
    assert!(
        limiter.check(&slow, &key).await.unwrap().allowed(),
        "within the second"
    );
}

#[tokio::test(start_paused = true)]
async fn denial_is_not_cached_while_a_dropped_reset_may_still_run() {
    // Resets take effect later, as in a store with several connections.
    let slow = Scripted::new(|memory, operation| {
        let Operation::Change(_, Change::Reset) = operation else {
            return memory.apply(operation);
        };
        let reset = tokio::spawn(ask_after(Duration::from_millis(100), memory, operation));
        Answer::later(async move { reset.await.unwrap() })
    });
    let limiter = RateLimiter::new(WithDenyCache::new(slow));
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    drop(limiter.check_n(&limit, &key, 3).await.unwrap());
    let reset = Operation::Change(Budget::new(&limit, &key), Change::Reset);
    drop(limiter.apply(reset));
    // Denied before the reset runs: the cache must not keep it beyond the reset.
    assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn denial_that_arrives_after_a_reset_is_not_cached() {
    let distant = Scripted::new(|memory, operation| {
        let is_charge = matches!(operation, Operation::Charge(_));
        let answer = memory.apply(operation);
        match is_charge {
            true => late(Duration::from_millis(100), answer),
            false => answer,
        }
    });
    let limiter = RateLimiter::new(WithDenyCache::new(distant));
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    drop(limiter.check_n(&limit, &key, 3).await.unwrap());
    let denied = limiter.apply(Operation::Charge(Check::new(&limit, &key).into()));
    limiter.reset(&limit, &key).await.unwrap();
    assert!(
        !denied.await.unwrap().allowed(),
        "it was decided before the reset"
    );
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn cache_is_bounded_by_weight() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(WithDenyCache::new(store.clone()).capacity(1_000));
    let limits: Vec<_> = (0..48)
        .map(|number| Limit::gcra(&format!("limit {number}"), Quota::per_day(1)).unwrap())
        .collect();
    let keys: Vec<_> = (0..1_000_u64).map(Key::from).collect();
    let group = |key| {
        limits
            .iter()
            .map(|limit| Check::new(limit, key).with_cost(1))
            .collect::<Vec<_>>()
    };
    for key in &keys {
        assert!(limiter.check_all(group(key)).await.unwrap().allowed());
        assert!(!limiter.check_all(group(key)).await.unwrap().allowed());
    }
    store.switch_off(true);
    let mut cached = 0;
    for key in &keys {
        cached += usize::from(limiter.check_all(group(key)).await.is_ok());
    }
    assert!(
        (10..150).contains(&cached),
        "{cached} groups of 48, each with the weight of 13"
    );
}

#[tokio::test(start_paused = true)]
async fn longest_settings_do_not_overflow() {
    let store = WithDenyCache::new(Scripted::default()).max_age(Duration::MAX);
    let limiter = RateLimiter::new(store);
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    for _ in 0..3 {
        assert!(
            limiter
                .check_n(&limit, &key, u32::MAX)
                .await
                .unwrap()
                .exceeds_capacity()
        );
    }
    drop(limiter.check_n(&limit, &key, 3).await.unwrap());
    for _ in 0..3 {
        assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn cached_denial_answers_for_a_failing_store_until_its_retry_after() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(WithDenyCache::new(store.clone()));
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    drop(limiter.check_n(&limit, &key, 3).await.unwrap());
    assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
    store.switch_off(true);
    advance(Duration::from_millis(9_999)).await;
    let cached = limiter.check(&limit, &key).await.unwrap();
    assert_eq!(
        (cached.allowed(), cached.source()),
        (false, Source::DenyCache)
    );
    assert_eq!(cached.retry_after(), Some(Duration::from_millis(1)));
    assert!(
        limiter.check(&limit, &Key::new("bob")).await.is_err(),
        "other keys have no cached denial"
    );
    advance(Duration::from_millis(1)).await;
    assert!(
        limiter
            .check(&limit, &key)
            .await
            .unwrap_err()
            .is_unreachable()
    );

    // An allowed check removes the denial.
    store.switch_off(false);
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());
    store.switch_off(true);
    assert!(limiter.check(&limit, &key).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn failed_reset_keeps_the_cached_denial() {
    let (store, limiter, _) = replicas();
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    drop(limiter.check_n(&limit, &key, 3).await.unwrap());
    assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
    store.switch_off(true);
    assert!(limiter.reset(&limit, &key).await.is_err());
    assert!(
        !limiter.check(&limit, &key).await.unwrap().allowed(),
        "it is still cached"
    );
    store.switch_off(false);
    limiter.reset(&limit, &key).await.unwrap();
    store.switch_off(true);
    assert!(limiter.check(&limit, &key).await.is_err(), "it was removed");
}

#[tokio::test(start_paused = true)]
async fn denial_of_a_group_is_cached_as_a_whole() {
    let (store, limiter, _) = replicas();
    let (tight, wide) = (
        one_in_ten_seconds(),
        Limit::gcra("wide", Quota::per_second(1_000)).unwrap(),
    );
    let (alice, acme) = (Key::new("alice"), Key::new("acme"));
    let group = [
        Check::new(&tight, &alice).with_cost(3),
        Check::new(&wide, &acme),
    ];
    assert!(limiter.check_all(&group).await.unwrap().allowed());
    let first = limiter.check_all(&group).await.unwrap();
    store.asked();
    let again = limiter.check_all(&group).await.unwrap();
    assert_eq!(
        (again.allowed(), again.source()),
        (false, Source::DenyCache)
    );
    assert_eq!(again.verdicts(), first.verdicts());
    assert_eq!(store.asked(), 0);
    // A reset of one of its budgets is enough to ask the store again.
    limiter.reset(&tight, &alice).await.unwrap();
    assert!(limiter.check_all(&group).await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn cost_that_exceeds_the_capacity_is_cached() {
    let (store, limiter, _) = replicas();
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    for _ in 0..5 {
        let decision = limiter.check_n(&limit, &key, 4).await.unwrap();
        assert!(decision.exceeds_capacity());
        assert_eq!(decision.retry_after(), None);
    }
    assert_eq!(store.asked(), 1);
    advance(Duration::from_secs(1)).await;
    assert!(
        limiter
            .check_n(&limit, &key, 4)
            .await
            .unwrap()
            .exceeds_capacity()
    );
    assert_eq!(store.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn zero_max_age_disables_the_cache_and_its_size_is_bounded() {
    let store = Scripted::default();
    let limit = one_in_ten_seconds();
    let off = RateLimiter::new(WithDenyCache::new(store.clone()).max_age(Duration::ZERO));
    drop(off.check_n(&limit, &Key::new("alice"), 3).await.unwrap());
    for _ in 0..5 {
        assert_eq!(
            off.check(&limit, &Key::new("alice"))
                .await
                .unwrap()
                .source(),
            Source::Store
        );
    }

    let small = RateLimiter::new(WithDenyCache::new(store).capacity(100));
    let keys: Vec<_> = (0..10_000_u64).map(Key::from).collect();
    for key in &keys {
        drop(small.check_n(&limit, key, 3).await.unwrap());
        assert!(!small.check(&limit, key).await.unwrap().allowed());
    }
    let mut cached = 0;
    for key in &keys {
        let decision = small.check(&limit, key).await.unwrap();
        assert!(!decision.allowed());
        cached += usize::from(decision.source() == Source::DenyCache);
    }
    assert!(
        (1..=1_000).contains(&cached),
        "{cached} of 10,000 are cached"
    );
}

#[tokio::test(start_paused = true)]
async fn denial_of_an_enforced_limit_denies_no_check_in_shadow_mode() {
    let (_, limiter, _) = replicas();
    let (limit, key) = (one_in_ten_seconds(), Key::new("alice"));
    for _ in 0..4 {
        drop(limiter.check(&limit, &key).await.unwrap());
    }
    assert_eq!(
        limiter.check(&limit, &key).await.unwrap().source(),
        Source::DenyCache
    );
    let shadow = limiter
        .check(&limit.clone().with_shadow_mode(), &key)
        .await
        .unwrap();
    assert!(shadow.allowed() && shadow.deciding().would_deny());
    // That is the same for the share of keys for which it is not enforced.
    let partly = limit.clone().with_shadow_percent(99).unwrap();
    assert!(
        !partly.enforces(&key),
        "this key is not of the first percent"
    );
    assert!(limiter.check(&partly, &key).await.unwrap().allowed());
    assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
}

//! Blocked keys where other parts meet them: waiting callers, local limits, caches, full stores,
//! servers that cannot write.

#![cfg(all(feature = "redis", feature = "test-util"))]

use std::time::Duration;

use tokio::time::{Instant, advance, sleep, timeout};
use tollgate::clock::ManualClock;
use tollgate::decision::Source;
use tollgate::limit::{BlockPolicy, OnStoreFailure};
use tollgate::store::WithDenyCache;
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimiter};

use crate::support::RedisServer;
use crate::support::budget::every_algorithm;
use crate::support::log::Log;
use crate::support::scripted::Scripted;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const TICK: Duration = Duration::from_micros(1);

fn window(units: u64, policy: BlockPolicy) -> Limit {
    Limit::fixed_window("api", Quota::per_hour(units))
        .unwrap()
        .with_block_policy(policy)
        .unwrap()
}

fn after(denials: u32) -> BlockPolicy {
    BlockPolicy::after(denials, HOUR).lasting(MINUTE)
}

fn mallory() -> Key {
    Key::new("mallory")
}

#[tokio::test]
async fn caller_whose_units_come_too_late_is_an_offender_under_every_algorithm() {
    let server = RedisServer::start();
    // A window that is aligned to the clock may end at any time.
    let limits = every_algorithm(1, 60_000_000).into_iter();
    for limit in limits.filter(|limit| !limit.to_string().contains("aligned")) {
        let limit = limit.with_block_policy(after(4)).unwrap();
        for limiter in [RateLimiter::in_memory(), server.limiter().await] {
            let key = Key::from_parts([limit.to_string()]);
            // Waits that are longer than a part of the wait for the units, and one without.
            for wait in [40, 29, 0] {
                let wait = wait * SECOND;
                let first = limiter.peek(&limit, &key, 1).await.unwrap();
                if first.allowed() {
                    drop(limiter.check(&limit, &key).await.unwrap());
                }
                let denied = limiter.acquire(&limit, &key, 1, wait).await.unwrap();
                assert!(
                    !denied.allowed() && !denied.is_blocked(),
                    "{limit}, {wait:?}: {denied:?}"
                );
            }
            let denied = limiter.acquire(&limit, &key, 1, 20 * SECOND).await.unwrap();
            assert!(denied.is_blocked(), "{limit}: the fourth: {denied:?}");
            limiter.reset(&limit, &key).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn caller_that_waits_in_vain_is_an_offender() {
    let limits = [
        Limit::gcra("gcra", Quota::per_second(1)).unwrap(),
        Limit::fixed_window("window", Quota::per_second(1)).unwrap(),
    ];
    for limit in limits {
        let limit = limit.with_block_policy(after(20)).unwrap();
        let limiter = RateLimiter::in_memory();
        let waiting = (0..100).map(|_| {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            tokio::spawn(async move {
                limiter
                    .acquire(&limit, &mallory(), 1, 3 * SECOND)
                    .await
                    .unwrap()
            })
        });
        let mut allowed = 0;
        for decision in waiting.collect::<Vec<_>>() {
            allowed += u32::from(decision.await.unwrap().allowed());
        }
        // The first denials block the key, also for those that still wait.
        assert!((1..=4).contains(&allowed), "{limit}: {allowed}");
        let next = limiter
            .acquire(&limit, &mallory(), 1, 3 * SECOND)
            .await
            .unwrap();
        assert!(next.is_blocked(), "{limit}: 96 were denied");
    }
}

#[tokio::test(start_paused = true)]
async fn caller_waits_for_the_end_of_a_block_under_every_algorithm() {
    for limit in every_algorithm(100, 1_000_000) {
        let limit = limit
            .with_block_policy(BlockPolicy::by_operators())
            .unwrap();
        let limiter = RateLimiter::in_memory();
        limiter
            .block(&limit, &mallory(), 30 * SECOND)
            .await
            .unwrap();
        let denied = limiter
            .acquire(&limit, &mallory(), 1, 10 * SECOND)
            .await
            .unwrap();
        assert_eq!(denied.retry_after(), Some(30 * SECOND), "{limit}");
        let started = Instant::now();
        let allowed = limiter
            .acquire(&limit, &mallory(), 1, MINUTE)
            .await
            .unwrap();
        assert!(allowed.allowed(), "{limit}: {allowed:?}");
        assert_eq!(started.elapsed().as_secs(), 30, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn settlement_after_an_outage_is_no_offence_and_is_not_kept_from_a_blocked_key() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let limit = window(5, after(1))
        .with_on_store_failure(OnStoreFailure::local(1))
        .unwrap();
    let (alice, bob) = (Key::new("alice"), Key::new("bob"));
    for _ in 0..5 {
        assert!(limiter.check(&limit, &alice).await.unwrap().allowed());
    }
    limiter.block(&limit, &mallory(), HOUR).await.unwrap();
    store.switch_off(true);
    assert_eq!(
        limiter.check(&limit, &alice).await.unwrap().source(),
        Source::Local
    );
    for _ in 0..3 {
        assert!(limiter.check(&limit, &mallory()).await.unwrap().allowed());
    }
    store.switch_off(false);
    drop(limiter.check(&limit, &bob).await.unwrap());
    sleep(10 * SECOND).await;
    assert!(
        !limiter.peek(&limit, &alice, 1).await.unwrap().is_blocked(),
        "she was never denied"
    );
    limiter.unblock(&limit, &mallory()).await.unwrap();
    assert_eq!(
        store.used(&limit, &mallory()).await,
        3,
        "what was allowed locally"
    );
}

#[tokio::test(start_paused = true)]
async fn limit_without_its_policy_blocks_nothing_from_the_next_check_on() {
    let limiter = RateLimiter::new(WithDenyCache::new(MemoryStore::new()));
    let plain = Limit::gcra("api", Quota::per_second(1)).unwrap();
    let limit = plain.clone().with_block_policy(after(1)).unwrap();
    while !limiter
        .check(&limit, &mallory())
        .await
        .unwrap()
        .is_blocked()
    {}
    advance(2 * SECOND).await;
    assert!(!limiter.check(&limit, &mallory()).await.unwrap().allowed());
    assert!(limiter.check(&plain, &mallory()).await.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn remembered_block_ends_when_the_block_ends() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(WithDenyCache::new(store.clone()));
    let limit = window(10, BlockPolicy::after(1, HOUR).lasting(SECOND));
    let limit = limit
        .with_on_store_failure(OnStoreFailure::FailOpen)
        .unwrap();
    drop(limiter.check_n(&limit, &mallory(), 6).await.unwrap());
    let blocked = limiter.check_n(&limit, &mallory(), 5).await.unwrap();
    assert_eq!(blocked.deciding().blocked_for(), Some(SECOND));
    assert_eq!(
        blocked.retry_after(),
        Some(HOUR),
        "the budget has no five units before"
    );
    let other = limiter.check(&limit, &mallory()).await.unwrap();
    assert_eq!(
        (other.source(), other.retry_after()),
        (Source::DenyCache, Some(SECOND))
    );
    advance(SECOND).await;
    assert!(limiter.check(&limit, &mallory()).await.unwrap().allowed());
    assert!(
        limiter
            .check_n(&limit, &mallory(), 5)
            .await
            .unwrap()
            .is_blocked(),
        "an offence again"
    );
    store.switch_off(true);
    advance(SECOND).await;
    let open = limiter.check(&limit, &mallory()).await.unwrap();
    assert_eq!(open.source(), Source::FailOpen, "the block is over");
}

/// Returns whether a scenario succeeds in one of three stores. In one of 4,096 stores, two budgets
/// share a place in the table of changes, and a change of one voids the denials of the other.
async fn succeeds_in_some_store(scenario: impl AsyncFn() -> bool) -> bool {
    for _ in 0..3 {
        if scenario().await {
            return true;
        }
    }
    false
}

#[tokio::test(start_paused = true)]
async fn longest_of_several_known_blocks_decides_a_group() {
    let decides = async || {
        let limiter = RateLimiter::new(WithDenyCache::new(MemoryStore::new()));
        let of = |name: &str| {
            let limit = Limit::gcra(name, Quota::per_second(100)).unwrap();
            limit
                .with_block_policy(BlockPolicy::by_operators())
                .unwrap()
        };
        let (user, ip) = (of("user"), of("ip"));
        limiter.block(&user, &mallory(), MINUTE).await.unwrap();
        limiter.block(&ip, &mallory(), HOUR).await.unwrap();
        for cost in [1, 2] {
            let group = [&user, &ip].map(|limit| Check::new(limit, mallory()).with_cost(cost));
            let denied = limiter.check_all(group).await.unwrap();
            assert_eq!(denied.limit().name(), "ip");
            assert_eq!(denied.retry_after(), Some(HOUR));
            let left = denied.verdicts().iter().map(|it| it.blocked_for());
            let is_of_both = left.eq([Some(MINUTE), Some(HOUR)]);
            if denied.source() != Source::DenyCache || !is_of_both {
                return false;
            }
        }
        true
    };
    assert!(succeeds_in_some_store(decides).await);
}

#[tokio::test(start_paused = true)]
async fn blocked_client_does_not_reach_the_store_by_refunds_of_others() {
    let never_asks = async || {
        let store = Scripted::default();
        let limiter = RateLimiter::new(WithDenyCache::new(store.clone()));
        let user = window(1, after(1));
        let tenant = Limit::fixed_window("tenant", Quota::per_hour(1_000)).unwrap();
        let acme = Key::new("acme");
        let group = || [Check::new(&user, mallory()), Check::new(&tenant, &acme)];
        while !limiter.check_all(group()).await.unwrap().is_blocked() {}
        let mut asked = 0;
        for _ in 0..100 {
            let charged = limiter.check_n(&tenant, &acme, 2).await.unwrap();
            limiter
                .refund(&tenant, &acme, 1, charged.receipt().unwrap())
                .await
                .unwrap();
            store.asked();
            assert!(limiter.check_all(group()).await.unwrap().is_blocked());
            asked += store.asked();
        }
        asked == 0
    };
    assert!(succeeds_in_some_store(never_asks).await);
}

#[tokio::test(start_paused = true)]
async fn operators_block_stands_on_his_replica_while_the_store_is_away() {
    let store = Scripted::default();
    let limiter = RateLimiter::new(WithDenyCache::new(store.clone()));
    let limit = window(5, BlockPolicy::by_operators());
    let limit = limit
        .with_on_store_failure(OnStoreFailure::FailOpen)
        .unwrap();
    limiter.block(&limit, &mallory(), HOUR).await.unwrap();
    store.switch_off(true);
    advance(MINUTE).await;
    assert!(
        limiter
            .check(&limit, &mallory())
            .await
            .unwrap()
            .is_blocked()
    );
    assert!(
        limiter
            .check(&limit, &Key::new("alice"))
            .await
            .unwrap()
            .allowed()
    );
    store.switch_off(false);
    limiter.unblock(&limit, &mallory()).await.unwrap();
    assert!(limiter.check(&limit, &mallory()).await.unwrap().allowed());
}

#[tokio::test]
async fn event_comes_once_though_the_cache_repeats_the_denial_and_has_the_length_of_the_block() {
    let (log, _guard) = Log::start();
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = window(1, after(3));
    for _ in 0..200 {
        drop(limiter.check(&limit, &mallory()).await.unwrap());
    }
    let lines = log.lines();
    let events: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("key blocked"))
        .collect();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].contains("blocked_for_ms=60000") && events[0].contains("unreported=0"));
}

#[tokio::test]
async fn block_is_reported_though_the_client_did_not_wait_for_its_denial() {
    let (log, _guard) = Log::start();
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = window(1, after(1));
    drop(limiter.check(&limit, &mallory()).await.unwrap());
    server.pause(true);
    let gone = timeout(Duration::from_millis(20), limiter.check(&limit, &mallory())).await;
    assert!(gone.is_err());
    server.pause(false);
    let reported = timeout(20 * SECOND, async {
        while !log.lines().iter().any(|line| line.contains("key blocked")) {
            tokio::task::yield_now().await;
        }
    });
    reported.await.expect("the block is reported");
    assert!(
        limiter
            .peek(&limit, &mallory(), 1)
            .await
            .unwrap()
            .is_blocked()
    );
}

#[tokio::test]
async fn no_block_begins_on_a_server_that_cannot_write() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = window(1, after(2));
    drop(limiter.check(&limit, &mallory()).await.unwrap());
    let memory = |bytes: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .query(&mut server.connection())
            .unwrap();
    };
    assert!(
        !limiter
            .check(&limit, &mallory())
            .await
            .unwrap()
            .is_blocked()
    );
    memory("1");
    for _ in 0..3 {
        let denied = limiter.check(&limit, &mallory()).await.unwrap();
        assert!(!denied.allowed() && !denied.is_blocked(), "{denied:?}");
    }
    memory("0");
    assert!(
        limiter
            .check(&limit, &mallory())
            .await
            .unwrap()
            .is_blocked(),
        "the second that counts"
    );
}

#[tokio::test(start_paused = true)]
async fn blocked_key_is_never_evicted_from_a_full_store() {
    let limiter = RateLimiter::new(MemoryStore::builder().max_keys(1).build());
    let bucket = Limit::token_bucket("api", Quota::per_hour(2)).unwrap();
    let limit = bucket
        .with_block_policy(BlockPolicy::after(1, HOUR).lasting(HOUR))
        .unwrap();
    let charged = limiter.check_n(&limit, &mallory(), 2).await.unwrap();
    assert!(
        limiter
            .check(&limit, &mallory())
            .await
            .unwrap()
            .is_blocked()
    );
    limiter
        .refund(&limit, &mallory(), 2, charged.receipt().unwrap())
        .await
        .unwrap();
    for user in 0..3_u64 {
        assert!(
            limiter
                .check(&limit, &Key::from(user))
                .await
                .unwrap_err()
                .is_full()
        );
    }
    assert!(
        limiter
            .check(&limit, &mallory())
            .await
            .unwrap()
            .is_blocked()
    );
    limiter.unblock(&limit, &mallory()).await.unwrap();
    assert!(limiter.check(&limit, &mallory()).await.unwrap().allowed());
}

#[tokio::test]
async fn group_with_a_blocked_key_counts_no_denials() {
    let server = RedisServer::start();
    let ip = window(1, after(2));
    let user = Limit::gcra("user", Quota::per_second(100)).unwrap();
    let user = user.with_block_policy(BlockPolicy::by_operators()).unwrap();
    let stores = [RateLimiter::in_memory(), server.limiter().await];
    for limiter in stores {
        drop(limiter.check(&ip, &mallory()).await.unwrap());
        limiter.block(&user, &mallory(), HOUR).await.unwrap();
        for _ in 0..10 {
            let group = [Check::new(&ip, mallory()), Check::new(&user, mallory())];
            let denied = limiter.check_all(group).await.unwrap();
            assert!(!denied.verdicts()[0].is_blocked());
        }
        limiter.unblock(&user, &mallory()).await.unwrap();
        assert!(
            !limiter.check(&ip, &mallory()).await.unwrap().is_blocked(),
            "the first that counts"
        );
    }
}

#[tokio::test]
async fn longer_window_of_a_changed_policy_does_not_revive_what_was_forgotten() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let start = Duration::from_secs(1_790_000_000);
    let memory = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let redis = server.store().clock(clock.clone()).connect().await.unwrap();
    for limiter in [memory, RateLimiter::new(redis)] {
        clock.set(start);
        let short = window(1, BlockPolicy::after(3, MINUTE));
        for _ in 0..3 {
            drop(limiter.check(&short, &mallory()).await.unwrap());
        }
        clock.set(start + 2 * MINUTE);
        let long = window(1, BlockPolicy::after(3, HOUR));
        assert!(!limiter.check(&long, &mallory()).await.unwrap().is_blocked());
    }
}

#[tokio::test]
async fn block_ends_exactly_at_any_time_of_a_clock() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let memory = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let redis = RateLimiter::new(server.store().clock(clock.clone()).connect().await.unwrap());
    let year = Duration::from_secs(366 * 24 * 3600);
    for (number, start) in [0, 1, 4_503_599_627, 6_200_000_000].into_iter().enumerate() {
        let key = Key::from(number as u64);
        for limiter in [&memory, &redis] {
            clock.set(Duration::from_secs(start));
            let limit = window(
                1,
                BlockPolicy::after(1, year).lasting(year).growing(100, year),
            );
            drop(limiter.check(&limit, &key).await.unwrap());
            let blocked = limiter.check(&limit, &key).await.unwrap();
            assert_eq!(blocked.retry_after(), Some(year), "at {start} s");
            clock.advance(year - TICK);
            assert!(!limiter.check(&limit, &key).await.unwrap().allowed());
            clock.advance(TICK);
            assert!(limiter.check(&limit, &key).await.unwrap().allowed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_whose_turn_comes_just_before_its_deadline_is_no_offender() {
    let limit = Limit::fixed_window("api", Quota::per_second(3)).unwrap();
    let limit = limit.with_block_policy(after(1)).unwrap();
    let limiter = RateLimiter::in_memory();
    drop(limiter.check_n(&limit, &mallory(), 3).await.unwrap());
    let waits = [10_000, 1_049].map(|millis| {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        tokio::spawn(async move {
            let wait = Duration::from_millis(millis);
            limiter.acquire(&limit, &mallory(), 1, wait).await.unwrap()
        })
    });
    for wait in waits {
        assert!(wait.await.unwrap().allowed());
    }
    assert!(
        !limiter
            .peek(&limit, &mallory(), 1)
            .await
            .unwrap()
            .is_blocked()
    );
}

#[tokio::test]
async fn waiter_is_denied_by_a_server_that_cannot_write() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = window(1, after(5));
    drop(limiter.check(&limit, &mallory()).await.unwrap());
    let memory = |bytes: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .query(&mut server.connection())
            .unwrap();
    };
    memory("1");
    for _ in 0..3 {
        let group = [Check::new(&limit, mallory())];
        let waiting = limiter
            .acquire_all(group, Duration::from_millis(20))
            .await
            .unwrap();
        assert!(!waiting.allowed() && !waiting.is_blocked());
    }
    memory("0");
}

#[tokio::test(start_paused = true)]
async fn client_that_was_unblocked_elsewhere_stays_free_in_a_later_outage() {
    let store = Scripted::default();
    let replica = || RateLimiter::new(WithDenyCache::new(store.clone()));
    let (here, there) = (replica(), replica());
    let limit = window(100, BlockPolicy::by_operators());
    let limit = limit
        .with_on_store_failure(OnStoreFailure::FailOpen)
        .unwrap();
    here.block(&limit, &mallory(), 24 * HOUR).await.unwrap();
    for cost in [1, 2] {
        assert!(
            there
                .check_n(&limit, &mallory(), cost)
                .await
                .unwrap()
                .is_blocked()
        );
    }
    here.unblock(&limit, &mallory()).await.unwrap();
    advance(10 * SECOND).await;
    assert!(
        there
            .check_n(&limit, &mallory(), 2)
            .await
            .unwrap()
            .allowed()
    );
    store.switch_off(true);
    advance(HOUR).await;
    for cost in [1, 2] {
        assert!(
            there
                .check_n(&limit, &mallory(), cost)
                .await
                .unwrap()
                .allowed(),
            "cost {cost}"
        );
    }
}

#[tokio::test]
async fn corrupt_offences_heal_though_no_check_is_denied() {
    let server = RedisServer::start();
    let limiter = server.limiter().await;
    let limit = window(100, BlockPolicy::by_operators());
    let stored = "tollgate:{mallory}:wx:api";
    let () = redis::cmd("SET")
        .arg(&[stored, "garbage"])
        .query(&mut server.connection())
        .unwrap();
    assert!(limiter.check(&limit, &mallory()).await.unwrap().allowed());
    let exists: u32 = redis::cmd("EXISTS")
        .arg(stored)
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(exists, 0);
}

#[tokio::test]
async fn cost_above_the_capacity_is_reported_as_such_during_a_block() {
    let server = RedisServer::start();
    let limit = window(5, BlockPolicy::by_operators());
    for limiter in [RateLimiter::in_memory(), server.limiter().await] {
        limiter.block(&limit, &mallory(), HOUR).await.unwrap();
        assert!(
            limiter
                .check(&limit, &mallory())
                .await
                .unwrap()
                .is_blocked()
        );
        let larger = limiter.check_n(&limit, &mallory(), 6).await.unwrap();
        assert!(
            larger.exceeds_capacity() && !larger.is_blocked(),
            "{larger:?}"
        );
        assert_eq!(larger.retry_after(), None);
        assert!(
            limiter
                .check_n(&limit, &mallory(), 0)
                .await
                .unwrap()
                .allowed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn block_that_begins_under_a_local_limit_is_reported() {
    let (log, _guard) = Log::start();
    let store = Scripted::default();
    let limiter = RateLimiter::new(store.clone());
    let local = OnStoreFailure::local(1);
    // Whatever is set first.
    let plain = Limit::fixed_window("api", Quota::per_hour(1)).unwrap();
    let limit = plain
        .with_on_store_failure(local)
        .unwrap()
        .with_block_policy(after(2))
        .unwrap();
    store.switch_off(true);
    for _ in 0..5 {
        drop(limiter.check(&limit, &mallory()).await.unwrap());
    }
    let lines = log.lines();
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contains("key blocked"))
            .count(),
        1,
        "{lines:?}"
    );
}

#[tokio::test]
async fn redis_store_asks_again_after_the_time_that_is_set() {
    let server = RedisServer::start();
    let asking = server
        .store()
        .deny_blocked_for(Duration::ZERO)
        .deny_for(HOUR);
    let limiter = RateLimiter::new(asking.connect().await.unwrap());
    let limit = window(1, after(1));
    while !limiter
        .check(&limit, &mallory())
        .await
        .unwrap()
        .is_blocked()
    {}
    server.reset_calls();
    for _ in 0..5 {
        assert_eq!(
            limiter.check(&limit, &mallory()).await.unwrap().source(),
            Source::Store
        );
    }
    assert_eq!(server.calls("evalsha"), 5);
    let remembering = server.store().deny_for(Duration::ZERO);
    let limiter = RateLimiter::new(remembering.connect().await.unwrap());
    drop(limiter.check(&limit, &mallory()).await.unwrap());
    assert_eq!(
        limiter.check(&limit, &mallory()).await.unwrap().source(),
        Source::DenyCache
    );
}

#[tokio::test]
async fn denials_are_counted_on_after_a_clock_was_set_back() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let start = Duration::from_secs(1_790_000_000);
    let memory = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let redis = RateLimiter::new(server.store().clock(clock.clone()).connect().await.unwrap());
    let limit = Limit::gcra("api", Quota::per_second(1)).unwrap();
    let limit = limit
        .with_block_policy(BlockPolicy::after(3, MINUTE))
        .unwrap();
    for limiter in [memory, redis] {
        clock.set(start);
        for _ in 0..2 {
            drop(limiter.check(&limit, &mallory()).await.unwrap());
        }
        clock.set(start - HOUR);
        assert!(
            !limiter
                .check(&limit, &mallory())
                .await
                .unwrap()
                .is_blocked(),
            "the second"
        );
        // A minute after that, the window is over: it began anew with the earlier time.
        clock.set(start - HOUR + MINUTE + SECOND);
        while limiter.peek(&limit, &mallory(), 1).await.unwrap().allowed() {
            drop(limiter.check(&limit, &mallory()).await.unwrap());
        }
        assert!(
            !limiter
                .check(&limit, &mallory())
                .await
                .unwrap()
                .is_blocked(),
            "the first again"
        );
    }
}

#[tokio::test]
async fn growth_ends_at_a_longest_block_that_is_no_multiple() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let memory = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let redis = RateLimiter::new(server.store().clock(clock.clone()).connect().await.unwrap());
    let policy = BlockPolicy::after(1, MINUTE)
        .lasting(10 * SECOND)
        .growing(3, 31 * SECOND);
    let limit = Limit::gcra("api", Quota::per_day(1))
        .unwrap()
        .with_block_policy(policy)
        .unwrap();
    for limiter in [memory, redis] {
        let mut now = Duration::from_secs(1_790_000_000);
        for expected in [10, 30, 31, 31] {
            clock.set(now);
            let blocked = loop {
                let decision = limiter.check(&limit, &mallory()).await.unwrap();
                if let Some(left) = decision.deciding().blocked_for() {
                    break left;
                }
            };
            assert_eq!(blocked, expected * SECOND);
            now += blocked;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unblock_forgets_denials_that_did_not_yet_block() {
    let limiter = RateLimiter::in_memory();
    let limit = window(1, after(3));
    for _ in 0..3 {
        drop(limiter.check(&limit, &mallory()).await.unwrap());
    }
    limiter.unblock(&limit, &mallory()).await.unwrap();
    for _ in 0..2 {
        assert!(
            !limiter
                .check(&limit, &mallory())
                .await
                .unwrap()
                .is_blocked()
        );
    }
    assert!(
        limiter
            .check(&limit, &mallory())
            .await
            .unwrap()
            .is_blocked(),
        "the third since then"
    );
}

#[tokio::test(start_paused = true)]
async fn sweep_of_the_embedded_store_keeps_blocks_and_frees_what_is_over() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let limiter = RateLimiter::new(std::sync::Arc::clone(&store));
    let limit = Limit::gcra("api", Quota::per_second(1)).unwrap();
    let limit = limit.with_block_policy(after(1)).unwrap();
    while !limiter
        .check(&limit, &mallory())
        .await
        .unwrap()
        .is_blocked()
    {}
    // The budget is full again, and the block stands.
    advance(30 * SECOND).await;
    for user in 0..10_000_u64 {
        drop(limiter.check(&limit, &Key::from(user)).await.unwrap());
    }
    assert!(
        limiter
            .check(&limit, &mallory())
            .await
            .unwrap()
            .is_blocked()
    );
    advance(2 * HOUR).await;
    for user in 0..1_000_u64 {
        advance(Duration::from_millis(4)).await;
        drop(limiter.check(&limit, &Key::from(user % 2)).await.unwrap());
    }
    assert!(store.len() < 10, "{} budgets", store.len());
}

#[cfg(feature = "axum")]
#[tokio::test(start_paused = true)]
async fn layer_whose_requests_wait_blocks_a_client_that_hammers() {
    use axum::Router;
    use axum::routing::get;
    use tollgate::RateLimitLayer;
    use tollgate::key::Global;

    use crate::support::requests::{plain, status};

    for limit in [
        Limit::gcra("api", Quota::per_second(1)).unwrap(),
        Limit::fixed_window("api", Quota::per_second(1)).unwrap(),
    ] {
        let limit = limit.with_block_policy(after(20)).unwrap();
        let limiter = RateLimiter::in_memory();
        let layer = RateLimitLayer::new(&limiter, limit.clone(), Global).unwrap();
        let layer = layer.wait_up_to(2 * SECOND).unwrap().max_waiters_per_key(4);
        let app = Router::new().route("/", get(|| async {})).layer(layer);
        let requests = (0..200).map(|_| {
            let app = app.clone();
            tokio::spawn(async move { status(&app, plain("/")).await })
        });
        let mut allowed = 0;
        for request in requests.collect::<Vec<_>>() {
            allowed += u32::from(request.await.unwrap() == 200);
        }
        assert!((1..=6).contains(&allowed), "{limit}: {allowed}");
        let blocked = limiter.peek(&limit, &Key::global(), 1).await.unwrap();
        assert!(blocked.is_blocked(), "{limit}: most of 200 were denied");
    }
}

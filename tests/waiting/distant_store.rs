//! Waiters for units of a store that is far away. All time is virtual.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::scripted::{Scripted, ask_after};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::store::Answer;
use tollgate::{Key, Limit, Quota, RateLimiter};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A limiter on a store whose questions and answers take half a round trip each.
pub(crate) fn distant(round_trip: Duration) -> RateLimiter {
    let half = round_trip / 2;
    RateLimiter::new(Scripted::new(move |memory, operation| {
        let asked = ask_after(half, memory, operation);
        Answer::later(async move {
            let answer = asked.await;
            sleep(half).await;
            answer
        })
    }))
}

fn limits(per_second: u64) -> [Limit; 4] {
    let quota = Quota::per_second(per_second);
    let limits = [
        Limit::token_bucket("bucket", quota),
        Limit::fixed_window("fixed", quota),
        Limit::sliding_window("sliding", quota),
        Limit::sliding_log("log", quota),
    ];
    limits.map(Result::unwrap)
}

/// How many of the requests of 20 callers are allowed and denied in ten seconds.
async fn ten_seconds(limiter: &RateLimiter, limit: &Limit, max_wait: Duration) -> (u64, u64) {
    let start = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..20 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        callers.spawn(async move {
            let (mut allowed, mut denied) = (0, 0);
            while start.elapsed() < 10 * SECOND {
                let key = Key::global();
                match limiter
                    .acquire(&limit, &key, 1, max_wait)
                    .await
                    .unwrap()
                    .allowed()
                {
                    true => allowed += 1,
                    false => denied += 1,
                }
                sleep(MS).await;
            }
            (allowed, denied)
        });
    }
    let all = callers.join_all().await;
    all.into_iter()
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[tokio::test(start_paused = true)]
async fn waiters_use_the_quota_however_far_away_the_store_is() {
    for limit in limits(200) {
        for round_trip in [2, 10, 20, 60] {
            for max_wait in [100 * MS, SECOND] {
                let limiter = distant(round_trip * MS);
                let (allowed, denied) = ten_seconds(&limiter, &limit, max_wait).await;
                let case = format!("{} {round_trip} ms, wait {max_wait:?}", limit.name());
                // Up to a full budget, and ten times the quota. After a window, the first round
                // trips ask for less.
                let is_bucket = limit.name() == "bucket";
                let least = match round_trip {
                    _ if is_bucket => 2_190,
                    60 => 1_600,
                    _ => 1_900,
                };
                assert!(
                    (least..=2_220).contains(&allowed),
                    "{case}: {allowed} allowed"
                );
                // The units of a bucket are always there within a second. Those of a window may be
                // later.
                let may_deny = !is_bucket || max_wait < SECOND;
                assert!(may_deny || denied == 0, "{case}: {denied} denied");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn large_request_is_not_starved_by_small_ones_of_a_distant_store() {
    for limit in limits(200) {
        let limiter = distant(20 * MS);
        let start = Instant::now();
        let mut callers = JoinSet::new();
        for _ in 0..20 {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            callers.spawn(async move {
                while start.elapsed() < 20 * SECOND {
                    drop(
                        limiter
                            .acquire(&limit, &Key::global(), 1, SECOND)
                            .await
                            .unwrap(),
                    );
                }
            });
        }
        sleep(SECOND).await;
        for _ in 0..5 {
            let large = limiter
                .acquire(&limit, &Key::global(), 150, 3 * SECOND)
                .await
                .unwrap();
            assert!(large.allowed(), "{}: {large:?}", limit.name());
        }
        callers.abort_all();
    }
}

#[tokio::test(start_paused = true)]
async fn one_request_of_another_cost_does_not_slow_the_others_for_ever() {
    for limit in limits(200) {
        let limiter = distant(20 * MS);
        let other = tokio::spawn({
            let (limiter, limit) = (limiter.clone(), limit.clone());
            async move {
                sleep(SECOND).await;
                limiter
                    .acquire(&limit, &Key::global(), 2, 5 * SECOND)
                    .await
                    .unwrap()
                    .allowed()
            }
        });
        let (allowed, _) = ten_seconds(&limiter, &limit, SECOND).await;
        assert!(allowed >= 1_900, "{}: {allowed} allowed", limit.name());
        assert!(other.await.unwrap(), "{}", limit.name());
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_that_were_denied_get_their_units_in_the_order_of_their_arrival() {
    for limit in limits(10) {
        let limiter = distant(20 * MS);
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut callers = JoinSet::new();
        for number in 0..50 {
            let (limiter, limit, served) = (limiter.clone(), limit.clone(), Arc::clone(&served));
            callers.spawn(async move {
                // Later than the answer to the one before.
                sleep(number * 25 * MS).await;
                let decision = limiter
                    .acquire(&limit, &Key::global(), 1, 20 * SECOND)
                    .await
                    .unwrap();
                assert!(decision.allowed());
                served.lock().unwrap().push(number);
            });
        }
        callers.join_all().await;
        let served = served.lock().unwrap();
        // Those that ask at once may be answered in any order, and they are few.
        let late = served
            .iter()
            .enumerate()
            .map(|(at, number)| (*number as usize).abs_diff(at));
        let most = late.max().unwrap();
        assert!(most <= 4, "{}: {served:?}", limit.name());
    }
}

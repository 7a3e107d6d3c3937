//! What each algorithm allows at most in any minute, as the guide's page about algorithms says.

use std::collections::VecDeque;
use std::time::Duration;

use tollgate::clock::ManualClock;
use tollgate::store::MemoryStore;
use tollgate::{Key, Limit, Quota, RateLimiter};

const LIMIT: u64 = 100;
const MINUTE: u64 = 60_000;

/// When requests are forwarded, in milliseconds: some at the start, as many as possible at `burst`,
/// and from `greedy` on as many as possible, in short steps and then in longer ones.
async fn forwarded(limit: &Limit, first: u64, burst: u64, greedy: u64) -> Vec<u64> {
    let clock = ManualClock::new();
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
    let (alice, mut forwarded, mut now) = (Key::new("alice"), Vec::new(), 0);
    let short = (greedy..greedy + 7_000).step_by(20);
    let long = (greedy + 7_000..greedy + MINUTE).step_by(200);
    for at in [0, burst].into_iter().chain(short).chain(long) {
        clock.advance(Duration::from_millis(at - now));
        now = at;
        for number in 0.. {
            if at == 0 && number == first {
                break;
            }
            let decision = limiter.check(limit, &alice).await.unwrap();
            if !decision.allowed() {
                break;
            }
            forwarded.push(at + decision.delay().as_millis() as u64);
        }
    }
    forwarded
}

/// The most of these times in any minute.
fn most_in_a_minute(times: &[u64]) -> usize {
    let (mut minute, mut most) = (VecDeque::new(), 0);
    for &time in times {
        minute.push_back(time);
        while minute.front().is_some_and(|first| time - first >= MINUTE) {
            minute.pop_front();
        }
        most = most.max(minute.len());
    }
    most
}

/// The most in any minute that any of these clients gets.
async fn most_of_all_clients(limit: &Limit) -> usize {
    let mut most = 0;
    for first in [0, 1, LIMIT] {
        for burst in [1_180, 5_980, 30_100, 59_980] {
            for greedy in [burst, 54_100, 60_000, 60_600, 114_000] {
                let times = forwarded(limit, first, burst, greedy.max(burst)).await;
                most = most.max(most_in_a_minute(&times));
            }
        }
    }
    most
}

#[tokio::test]
async fn any_minute_has_at_most_what_the_guide_says_and_some_minute_almost_that() {
    let quota = Quota::per_minute(LIMIT);
    for (limit, at_most) in [
        (Limit::token_bucket("api", quota), 2 * LIMIT),
        (Limit::gcra("api", quota), 2 * LIMIT),
        (Limit::fixed_window("api", quota), 2 * LIMIT),
        (Limit::fixed_window_aligned("api", quota), 2 * LIMIT),
        (Limit::sliding_window("api", quota), 2 * LIMIT),
        // However many sub-windows there are.
        (Limit::sliding_window_with("api", quota, 10), 2 * LIMIT),
        (Limit::sliding_window_with("api", quota, 100), 2 * LIMIT),
        (Limit::sliding_log("api", quota), LIMIT),
        (Limit::leaky_bucket("api", quota), LIMIT),
    ] {
        let limit = limit.unwrap();
        let (most, at_most) = (most_of_all_clients(&limit).await, at_most as usize);
        assert!(most <= at_most, "{limit:?}: {most}");
        assert!(most * 100 >= at_most * 95, "{limit:?}: {most}");
    }
}

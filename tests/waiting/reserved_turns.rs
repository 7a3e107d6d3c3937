//! Waiters reserve their units in a bucket: their turns, and what happens if one gives up.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{Key, Limit, Quota, RateLimiter};

const MS: Duration = Duration::from_millis(1);

fn ten_a_second() -> Limit {
    Limit::token_bucket("limit", Quota::per_second(10).burst(1)).unwrap()
}

/// A limiter whose only unit was just charged.
async fn used_up() -> (RateLimiter, Limit, Key) {
    let (limiter, limit, key) = (RateLimiter::in_memory(), ten_a_second(), Key::new("k"));
    assert!(limiter.check(&limit, &key).await.unwrap().allowed());
    (limiter, limit, key)
}

fn acquire(
    of: &(RateLimiter, Limit, Key),
    units: u32,
    max_wait: Duration,
) -> impl Future<Output = (bool, Duration)> + Send + 'static {
    let ((limiter, limit, key), started) = (of.clone(), Instant::now());
    async move {
        let decision = limiter
            .acquire(&limit, &key, units, max_wait)
            .await
            .unwrap();
        (decision.allowed(), started.elapsed())
    }
}

#[tokio::test(start_paused = true)]
async fn check_that_does_not_wait_does_not_pass_a_waiter() {
    let budget = used_up().await;
    let waiting = tokio::spawn(acquire(&budget, 1, 1_000 * MS));
    sleep(100 * MS).await;
    let (limiter, limit, key) = &budget;
    assert!(
        !limiter.check(limit, key).await.unwrap().allowed(),
        "the unit is reserved"
    );
    assert_eq!(waiting.await.unwrap(), (true, 100 * MS));
}

#[tokio::test(start_paused = true)]
async fn waiter_that_gives_up_leaves_its_turn_to_the_next() {
    let budget = used_up().await;
    let mut waiters: Vec<_> = (0..4)
        .map(|_| tokio::spawn(acquire(&budget, 1, 10_000 * MS)))
        .collect();
    sleep(50 * MS).await;
    // The one at the front, which has a reservation, and the third, which has none.
    waiters.remove(0).abort();
    waiters.remove(1).abort();
    let mut times = Vec::new();
    for waiter in waiters {
        times.push(waiter.await.unwrap());
    }
    assert_eq!(times, [(true, 100 * MS), (true, 200 * MS)]);
}

#[tokio::test(start_paused = true)]
async fn last_waiter_that_gives_up_gives_its_units_back() {
    let budget = used_up().await;
    for _ in 0..20 {
        let waiter = tokio::spawn(acquire(&budget, 1, 10_000 * MS));
        sleep(2 * MS).await;
        waiter.abort();
        assert!(waiter.await.unwrap_err().is_cancelled());
    }
    assert_eq!(
        acquire(&budget, 1, 1_000 * MS).await,
        (true, 60 * MS),
        "40 ms have passed"
    );
}

#[tokio::test(start_paused = true)]
async fn next_waiter_that_needs_other_units_reserves_its_own() {
    let limit = Limit::token_bucket("limit", Quota::per_second(10).burst(4)).unwrap();
    let budget = (RateLimiter::in_memory(), limit, Key::new("k"));
    acquire(&budget, 4, MS).await;
    let first = tokio::spawn(acquire(&budget, 1, 10_000 * MS));
    tokio::task::yield_now().await;
    let second = tokio::spawn(acquire(&budget, 3, 10_000 * MS));
    sleep(50 * MS).await;
    first.abort();
    assert_eq!(second.await.unwrap(), (true, 300 * MS));
}

#[tokio::test(start_paused = true)]
async fn reset_ends_the_wait_of_all() {
    let budget = used_up().await;
    let waiters = [(); 1].map(|()| tokio::spawn(acquire(&budget, 1, 10_000 * MS)));
    sleep(20 * MS).await;
    let (limiter, limit, key) = &budget;
    limiter.reset(limit, key).await.unwrap();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), (true, 20 * MS));
    }
    assert_eq!(
        limiter.peek(limit, key, 0).await.unwrap().remaining(),
        0,
        "charged once"
    );
}

#[tokio::test(start_paused = true)]
async fn denial_says_when_the_units_are_available() {
    let (limiter, limit, key) = used_up().await;
    let denied = limiter.acquire(&limit, &key, 1, 30 * MS).await.unwrap();
    assert_eq!(denied.retry_after(), Some(100 * MS));
    assert_eq!(
        limiter.check(&limit, &key).await.unwrap().retry_after(),
        Some(100 * MS)
    );
}

/// Cancelled at random, no unit is lost and none is used twice.
#[tokio::test(start_paused = true)]
async fn cancellations_cost_no_throughput() {
    let budget = used_up().await;
    let mut waiters = JoinSet::new();
    for number in 0..200_u64 {
        let (waits, gives_up_after) = (acquire(&budget, 1, 100_000 * MS), number * 7_919 % 15_000);
        waiters.spawn(async move {
            match number % 3 {
                0 => waits.await.0,
                _ => tokio::time::timeout(Duration::from_millis(gives_up_after), waits)
                    .await
                    .is_ok_and(|(allowed, _)| allowed),
            }
        });
    }
    let started = Instant::now();
    let allowed = waiters
        .join_all()
        .await
        .into_iter()
        .filter(|allowed| *allowed)
        .count();
    let least = started.elapsed().as_millis() / 100;
    assert!(
        (least..=least + 1).contains(&(allowed as u128)),
        "{allowed} in {least} turns"
    );
    assert!(allowed < 200);
}

#[tokio::test(start_paused = true)]
async fn queue_without_waiters_keeps_no_reservation() {
    let budget = used_up().await;
    {
        let both = [(); 2].map(|()| tokio::spawn(acquire(&budget, 1, 10_000 * MS)));
        sleep(MS).await;
        both.iter().for_each(tokio::task::JoinHandle::abort);
        for waiter in both {
            assert!(waiter.await.unwrap_err().is_cancelled());
        }
    }
    let (limiter, limit, key) = &budget;
    assert_eq!(
        limiter.peek(limit, key, 1).await.unwrap().retry_after(),
        Some(99 * MS)
    );
}

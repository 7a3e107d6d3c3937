//! Places in a leaky bucket as a queue: checks leave evenly, whatever is refunded, and a check that
//! would wait for too long gets no place.

use std::time::Duration;

use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::decision::Receipt;
use tollgate::{Key, Limit, Quota};

use super::distant_store::distant;
use crate::support::budget::{Budget, START, quota};

const MS: Duration = Duration::from_millis(1);

/// The time of one unit.
const UNIT: u64 = 100_000;

const CAPACITY: u64 = 20;

fn ten_a_second() -> Limit {
    Limit::leaky_bucket("queue", quota(10, 1_000_000).burst(CAPACITY)).unwrap()
}

fn delay(budget: &mut Budget, now: u64) -> u64 {
    budget.charge(now, 1).delay().as_micros() as u64
}

#[test]
fn place_of_a_refund_in_the_middle_is_not_given_to_the_next_check() {
    let mut budget = Budget::new(ten_a_second());
    let charges: Vec<_> = (0..4).map(|_| budget.charge(START, 1)).collect();
    let delays: Vec<_> = charges.iter().map(|it| it.delay().as_millis()).collect();
    assert_eq!(delays, [0, 100, 200, 300]);
    drop(budget.refund(START, 1, charges[1].receipt().unwrap()));
    assert_eq!(
        delay(&mut budget, START),
        4 * UNIT,
        "the fourth leaves before"
    );
}

#[test]
fn last_places_are_given_back_one_after_another() {
    let mut budget = Budget::new(ten_a_second());
    let charges: Vec<_> = (0..4).map(|_| budget.charge(START, 1)).collect();
    for last in charges.iter().rev().take(2) {
        drop(budget.refund(START, 1, last.receipt().unwrap()));
    }
    assert_eq!(delay(&mut budget, START), 2 * UNIT);
}

#[test]
fn check_whose_turn_comes_too_late_is_denied_and_takes_no_place() {
    let mut budget = Budget::new(ten_a_second());
    drop(budget.charge(START, 5));
    let late = budget.reserve(START, 1, 4 * UNIT);
    assert_eq!(late.retry_after(), Some(Duration::from_micros(UNIT)));
    assert!(!budget.reserve(START + UNIT - 1, 1, 4 * UNIT).allowed());
    let in_time = budget.reserve(START + UNIT, 1, 4 * UNIT);
    assert_eq!(in_time.delay(), Duration::from_micros(4 * UNIT));
}

/// A check that was allowed: from when to when its units drain.
#[derive(Clone, Copy, Debug)]
struct Place {
    from: u64,
    to: u64,
    /// Until it is used.
    receipt: Option<Receipt>,
}

/// The queue as a list of places, in whole microseconds.
#[derive(Default)]
struct Places(Vec<Place>);

impl Places {
    fn delay(&self, now: u64) -> u64 {
        self.0.last().map_or(0, |last| last.to.saturating_sub(now))
    }

    /// How long a check would have to wait until it is allowed.
    fn denied_for(&self, now: u64, cost: u64, max_wait: u64) -> u64 {
        let delay = self.delay(now);
        let late_by = match max_wait {
            0 => 0,
            max_wait => delay.saturating_sub(max_wait),
        };
        late_by.max((delay + cost * UNIT).saturating_sub(CAPACITY * UNIT))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Charge {
        cost: u64,
        max_wait: u64,
    },
    /// Of the place that so many others follow.
    Refund {
        before: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let max_wait = prop_oneof![Just(0), 1..10 * UNIT, Just(1)];
    let step = prop_oneof![
        3 => (1..5_u64, max_wait).prop_map(|(cost, max_wait)| Step::Charge { cost, max_wait }),
        1 => (0..4_usize).prop_map(|before| Step::Refund { before }),
    ];
    let pause = prop_oneof![Just(0), 1..2 * UNIT];
    prop::collection::vec((pause, step), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn checks_leave_one_after_another_whatever_is_refunded(steps in steps()) {
        let mut budget = Budget::new(ten_a_second());
        let mut places = Places::default();
        let mut now = START;
        for (pause, step) in steps {
            now += pause;
            match step {
                Step::Charge { cost, max_wait } => {
                    let denied_for = places.denied_for(now, cost, max_wait);
                    let delay = places.delay(now);
                    let decision = budget.reserve(now, cost as u32, max_wait);
                    prop_assert_eq!(decision.allowed(), denied_for == 0);
                    if denied_for > 0 {
                        let expected = Some(Duration::from_micros(denied_for));
                        prop_assert_eq!(decision.retry_after(), expected);
                        continue;
                    }
                    prop_assert_eq!(decision.delay(), Duration::from_micros(delay));
                    let (from, receipt) = (now + delay, decision.receipt());
                    places.0.push(Place { from, to: from + cost * UNIT, receipt });
                }
                Step::Refund { before } => {
                    let Some(at) = places.0.len().checked_sub(before + 1) else { continue };
                    let Some(receipt) = places.0[at].receipt.take() else { continue };
                    drop(budget.refund(now, receipt.cost(), receipt));
                    // A place that is over has left, and one in the middle stays.
                    if before == 0 && places.0[at].to > now {
                        places.0.pop();
                    }
                }
            }
        }
        for pair in places.0.windows(2) {
            prop_assert!(pair[0].to <= pair[1].from, "{pair:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn impatient_callers_do_not_make_patient_ones_leave_together() {
    let limiter = distant(2 * MS);
    let limit = Limit::leaky_bucket("queue", Quota::per_second(10).burst(20)).unwrap();
    let started = Instant::now();
    let mut patient = JoinSet::new();
    let mut impatient = JoinSet::new();
    for _ in 0..10 {
        for wait in [Duration::from_secs(5), MS] {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            let callers = if wait > MS {
                &mut patient
            } else {
                &mut impatient
            };
            callers.spawn(async move {
                let decision = limiter
                    .acquire(&limit, &Key::global(), 1, wait)
                    .await
                    .unwrap();
                decision.allowed().then(|| started.elapsed())
            });
        }
        sleep(3 * MS).await;
    }
    drop(impatient.join_all().await);
    let mut left: Vec<_> = patient.join_all().await.into_iter().flatten().collect();
    left.sort();
    assert_eq!(left.len(), 10);
    for pair in left.windows(2) {
        assert!(pair[1] - pair[0] >= 95 * MS, "{left:?}");
    }
    assert!(left[9] < 1_200 * MS, "no place is left unused: {left:?}");
}

#[tokio::test(start_paused = true)]
async fn place_that_was_in_time_when_the_store_decided_is_waited_out() {
    let limiter = distant(40 * MS);
    let limit = Limit::leaky_bucket("queue", Quota::per_second(10)).unwrap();
    let key = Key::global();
    drop(limiter.check_n(&limit, &key, 4).await.unwrap());
    let started = Instant::now();
    // The store decides 20 ms later that the delay is 360 ms, and the answer takes 20 ms more.
    let decision = limiter.acquire(&limit, &key, 1, 365 * MS).await.unwrap();
    assert_eq!((decision.allowed(), started.elapsed()), (true, 400 * MS));
}

#[cfg(feature = "http")]
#[tokio::test(start_paused = true)]
async fn request_without_a_place_counts_one_denial_and_says_when_its_turn_comes() {
    use tollgate::key::Global;
    use tollgate::limit::BlockPolicy;
    use tollgate::{RateLimitLayer, RateLimiter};

    use crate::support::requests::{app, number, plain, send, status};

    let limit = Limit::leaky_bucket("queue", Quota::new(1, Duration::from_secs(10)).burst(20));
    let policy = BlockPolicy::after(4, Duration::from_secs(3_600));
    let limit = limit.unwrap().with_block_policy(policy).unwrap();
    let layer = RateLimitLayer::new(RateLimiter::in_memory(), limit, Global).unwrap();
    let layer = layer.wait_up_to(Duration::from_secs(60)).unwrap();
    let app = app(layer.max_waiters(1));
    assert_eq!(status(&app, plain("/")).await, 200);
    let waiting = tokio::spawn({
        let app = app.clone();
        async move { status(&app, plain("/")).await }
    });
    sleep(MS).await;
    for denial in 1..=3 {
        let response = send(&app, plain("/")).await;
        assert_eq!(response.status(), 429);
        let retry_after = number(response.headers(), "retry-after");
        assert_eq!(retry_after, 20, "denial {denial}");
    }
    let fourth = send(&app, plain("/")).await;
    let retry_after = number(fourth.headers(), "retry-after");
    assert_eq!(retry_after, 600, "the fourth denial begins the block");
    waiting.abort();
}

#[cfg(feature = "http")]
#[tokio::test(start_paused = true)]
async fn requests_without_a_place_leave_no_gap_in_the_queue() {
    use tollgate::RateLimitLayer;
    use tollgate::key::Global;

    use crate::support::requests::{app, plain, status};

    let limit = Limit::leaky_bucket("queue", Quota::per_second(10).burst(20)).unwrap();
    let layer = RateLimitLayer::new(distant(5 * MS), limit, Global).unwrap();
    let layer = layer
        .wait_up_to(Duration::from_secs(5))
        .unwrap()
        .max_waiters(2);
    let app = app(layer);
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..40 {
        let app = app.clone();
        clients.spawn(async move {
            sleep(client * MS / 2).await;
            let mut answered = 0;
            while started.elapsed() < Duration::from_secs(6) {
                match status(&app, plain("/")).await {
                    200 => answered += 1,
                    _ => sleep(10 * MS).await,
                }
            }
            answered
        });
    }
    let answered: u32 = clients.join_all().await.into_iter().sum();
    assert!((57..=64).contains(&answered), "{answered} of 60");
}

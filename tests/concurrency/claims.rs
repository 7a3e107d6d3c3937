//! What a concurrency limiter asks of a store, how often, and what it does with the answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::decision::Source;
use tollgate::store::{Claim, Claimed, PermitStore, Store};
use tollgate::{Error, Key, Limit, MemoryStore, Permit, RateLimiter};

use crate::support::permits::{InMemory, granted_by};

const SECOND: Duration = Duration::from_secs(1);

/// The embedded store as one elsewhere, which keeps a record.
#[derive(Clone, Debug, Default)]
struct Recorded(Arc<Record>);

#[derive(Debug, Default)]
struct Record {
    store: InMemory,
    delay: Mutex<Duration>,
    is_away: AtomicBool,
    answers_nothing: AtomicBool,
    /// Added to each answer.
    too_many: AtomicUsize,
    claims: Mutex<Vec<Claim>>,
    in_flight: Mutex<HashMap<[u8; 8], usize>>,
    calls: AtomicUsize,
    most_calls: AtomicUsize,
    largest_call: AtomicUsize,
}

impl PermitStore for Recorded {
    fn claim(&self, claims: Vec<Claim>) -> Claimed {
        let record = Arc::clone(&self.0);
        Box::pin(async move {
            for claim in &claims {
                let mut in_flight = record.in_flight.lock().unwrap();
                let of_holder = in_flight.entry(*claim.holder.as_bytes()).or_default();
                *of_holder += 1;
                assert_eq!(*of_holder, 1, "a holder has one claim in flight");
            }
            record.claims.lock().unwrap().extend(claims.iter().cloned());
            record
                .largest_call
                .fetch_max(claims.len(), Ordering::SeqCst);
            let calls = record.calls.fetch_add(1, Ordering::SeqCst) + 1;
            record.most_calls.fetch_max(calls, Ordering::SeqCst);
            let delay = *record.delay.lock().unwrap();
            if !delay.is_zero() {
                sleep(delay).await;
            }
            record.calls.fetch_sub(1, Ordering::SeqCst);
            for claim in &claims {
                record
                    .in_flight
                    .lock()
                    .unwrap()
                    .remove(claim.holder.as_bytes());
            }
            if record.answers_nothing.load(Ordering::SeqCst) {
                return Vec::new();
            }
            if record.is_away.load(Ordering::SeqCst) {
                return claims
                    .iter()
                    .map(|_| Err(Error::unreachable("it is away")))
                    .collect();
            }
            let too_many = record.too_many.load(Ordering::SeqCst) as u64;
            let answers = record.store.claim(claims).await;
            answers
                .into_iter()
                .map(|answer| Ok(answer? + too_many))
                .collect()
        })
    }
}

impl Recorded {
    fn slow(delay: Duration) -> Self {
        let store = Self::default();
        *store.0.delay.lock().unwrap() = delay;
        store
    }

    fn set_away(&self, is_away: bool) {
        self.0.is_away.store(is_away, Ordering::SeqCst);
    }

    fn taken(&self) -> Vec<Claim> {
        std::mem::take(&mut self.0.claims.lock().unwrap())
    }
}

fn exports(limit: u32) -> Limit {
    Limit::concurrency("exports", limit).unwrap()
}

fn acme() -> Key {
    Key::new("acme")
}

async fn take(limiter: &RateLimiter, limit: u32) -> Option<Permit> {
    limiter
        .try_acquire_permit(&exports(limit), &acme())
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn answer_costs_no_more_than_the_call() {
    let store = Recorded::slow(Duration::from_millis(7));
    let limiter = granted_by(store);
    let started = Instant::now();
    let permit = take(&limiter, 1).await;
    assert!(permit.is_some());
    assert_eq!(started.elapsed(), Duration::from_millis(7));
    drop(permit);
    limiter.flush().await;
    assert_eq!(started.elapsed(), Duration::from_millis(14));
    assert_eq!(limiter.keys_with_permits(), 0);
}

#[tokio::test(start_paused = true)]
async fn callers_of_a_key_share_claims_one_after_another() {
    let store = Recorded::slow(Duration::from_millis(20));
    let limiter = granted_by(store.clone());
    let mut callers = JoinSet::new();
    for number in 0..100 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            sleep(Duration::from_millis(number)).await;
            let permit = take(&limiter, 1_000).await;
            sleep(Duration::from_millis(5)).await;
            drop(permit);
        });
    }
    drop(callers.join_all().await);
    limiter.flush().await;
    let claims = store.taken();
    assert!(
        (5..=9).contains(&claims.len()),
        "{} claims in 125 ms",
        claims.len()
    );
    let last = claims.last().unwrap();
    assert_eq!((last.granted, last.released), (100, 100));
}

#[tokio::test(start_paused = true)]
async fn permit_that_is_held_is_renewed_three_times_in_a_lease_and_then_no_more() {
    let store = Recorded::default();
    for (lease, seconds) in [(1, 10), (10, 100)] {
        let limiter = granted_by(store.clone());
        limiter.set_permit_lease(lease * SECOND).unwrap();
        let permit = take(&limiter, 1).await;
        drop(store.taken());
        sleep(seconds * SECOND).await;
        let renewals = store.taken();
        assert!(
            (24..=31).contains(&renewals.len()),
            "{} in ten leases",
            renewals.len()
        );
        assert!(
            renewals
                .iter()
                .all(|claim| (claim.granted, claim.released) == (1, 0))
        );
        drop(permit);
        sleep(seconds * SECOND).await;
        assert_eq!(store.taken().len(), 1, "it is given back");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_caller_asks_forty_times_a_second_until_it_gives_up() {
    let store = Recorded::default();
    let [holds, waits] = [(); 2].map(|()| granted_by(store.clone()));
    let held = take(&holds, 1).await;
    drop(store.taken());
    let waiting = tokio::spawn({
        let waits = waits.clone();
        async move {
            waits
                .acquire_permit(&exports(1), &acme(), SECOND)
                .await
                .unwrap()
                .is_some()
        }
    });
    assert!(!waiting.await.unwrap());
    let asked = store.taken().len();
    assert!((38..=44).contains(&asked), "{asked} times");
    sleep(SECOND).await;
    drop(store.taken());
    sleep(2 * SECOND).await;
    let renewals = store.taken();
    assert!(
        renewals.len() <= 1 && renewals.iter().all(|claim| claim.granted == 1),
        "{renewals:?}"
    );
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn store_hears_of_local_permits_when_it_is_back() {
    let store = Recorded::default();
    let limiter = granted_by(store.clone());
    let first = take(&limiter, 5).await;
    store.set_away(true);
    let local = [take(&limiter, 5).await, take(&limiter, 5).await];
    assert!(
        local
            .iter()
            .flatten()
            .all(|permit| permit.source() == Source::FailOpen)
    );
    store.set_away(false);
    drop(store.taken());
    let next = take(&limiter, 5).await;
    assert_eq!(
        next.as_ref().map(Permit::source),
        Some(Source::Store),
        "at once"
    );
    assert_eq!(store.taken()[0].granted, 3);
    let [fifth, sixth] = [take(&limiter, 5).await, take(&limiter, 5).await];
    assert!(fifth.is_some() && sixth.is_none(), "they count");
    drop((first, local, next));
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_caller_that_is_gone_is_given_back() {
    let store = Recorded::slow(Duration::from_millis(100));
    let [gives_up, other] = [(); 2].map(|()| granted_by(store.clone()));
    for wait in [Duration::ZERO, 10 * SECOND] {
        let asking = tokio::spawn({
            let limiter = gives_up.clone();
            async move {
                limiter
                    .acquire_permit(&exports(1), &acme(), wait)
                    .await
                    .map(drop)
            }
        });
        sleep(Duration::from_millis(50)).await;
        asking.abort();
        let acquired = other
            .acquire_permit(&exports(1), &acme(), SECOND)
            .await
            .unwrap();
        assert!(acquired.is_some(), "{wait:?}");
        drop(acquired);
        other.flush().await;
    }
}

#[tokio::test(start_paused = true)]
async fn store_that_grants_too_much_gets_it_back() {
    let store = Recorded::default();
    let limiter = granted_by(store.clone());
    store.0.too_many.store(3, Ordering::SeqCst);
    let permit = take(&limiter, 1).await;
    store.0.too_many.store(0, Ordering::SeqCst);
    assert_eq!(limiter.held_permits(&exports(1), acme()), 1);
    drop(permit);
    limiter.flush().await;
    let last = store.taken().pop().unwrap();
    assert_eq!((last.granted, last.released), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn four_calls_of_256_claims_are_in_flight() {
    let store = Recorded::slow(Duration::from_millis(10));
    let limiter = granted_by(store.clone());
    let mut callers = JoinSet::new();
    for user in 0..3_000_u64 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            limiter
                .try_acquire_permit(&exports(1), &Key::from(user))
                .await
                .unwrap()
                .is_some()
        });
    }
    assert!(callers.join_all().await.into_iter().all(|granted| granted));
    let [most, largest] =
        [&store.0.most_calls, &store.0.largest_call].map(|it| it.load(Ordering::SeqCst));
    assert_eq!((most, largest), (4, 256));
}

#[tokio::test(start_paused = true)]
async fn answer_that_is_missing_is_an_outage() {
    let store = Recorded::default();
    let limiter = granted_by(store.clone());
    store.0.answers_nothing.store(true, Ordering::SeqCst);
    assert_eq!(
        take(&limiter, 1).await.map(|permit| permit.source()),
        Some(Source::FailOpen)
    );
    store.0.answers_nothing.store(false, Ordering::SeqCst);
    limiter.flush().await;
    assert_eq!(
        take(&limiter, 1).await.map(|permit| permit.source()),
        Some(Source::Store)
    );
}

#[tokio::test(start_paused = true)]
async fn waiters_come_before_callers_that_ask_at_once_and_end_with_the_store() {
    let store = Recorded::slow(Duration::from_millis(10));
    let limiter = granted_by(store.clone());
    let held = take(&limiter, 1).await;
    let wait = |limiter: &RateLimiter| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            limiter
                .acquire_permit(&exports(1), &acme(), 60 * SECOND)
                .await
                .unwrap()
        })
    };
    let waiting = wait(&limiter);
    sleep(SECOND).await;
    drop(held);
    assert!(take(&limiter, 1).await.is_none(), "another waits");
    let held = waiting.await.unwrap();
    assert!(held.is_some());
    let waiting = wait(&limiter);
    sleep(SECOND).await;
    store.set_away(true);
    let started = Instant::now();
    assert_eq!(
        waiting.await.unwrap().map(|permit| permit.source()),
        Some(Source::FailOpen)
    );
    assert!(started.elapsed() < SECOND / 10, "{:?}", started.elapsed());
}

#[tokio::test]
async fn limits_of_different_names_and_keys_share_nothing_in_memory() {
    let limiter = RateLimiter::in_memory();
    let imports = Limit::concurrency("imports", 1).unwrap();
    let held = [
        limiter
            .try_acquire_permit(&exports(1), &acme())
            .await
            .unwrap(),
        limiter.try_acquire_permit(&imports, &acme()).await.unwrap(),
        limiter
            .try_acquire_permit(&exports(1), &Key::new("globex"))
            .await
            .unwrap(),
    ];
    assert!(held.iter().all(Option::is_some));
    assert_eq!(limiter.keys_with_permits(), 3);
    drop(held);
    assert_eq!(limiter.keys_with_permits(), 0);
}

#[tokio::test(start_paused = true)]
async fn two_limiters_on_one_embedded_store_hand_over_within_a_poll() {
    let store = Arc::new(MemoryStore::new());
    let [one, two] = [(); 2].map(|()| RateLimiter::new(Arc::clone(&store)));
    let held = take(&one, 1).await;
    let waiting = tokio::spawn({
        let two = two.clone();
        async move {
            let permit = two
                .acquire_permit(&exports(1), &acme(), 60 * SECOND)
                .await
                .unwrap();
            (permit.is_some(), Instant::now())
        }
    });
    sleep(10 * SECOND + SECOND / 3).await;
    let freed = Instant::now();
    drop(held);
    let (granted, at) = waiting.await.unwrap();
    assert!(
        granted && at - freed <= Duration::from_millis(25),
        "{:?}",
        at - freed
    );
    assert_eq!((one.keys_with_permits(), two.keys_with_permits()), (0, 0));
}

/// The permits that a claim of an empty key is granted.
async fn granted(store: &impl PermitStore, waiting: u32, at_once: u32, limit: u32) -> u64 {
    let holder = tollgate::store::HolderId::from(*b"holder-1");
    let mut claim = Claim::new("jobs".into(), Key::new("acme"), holder, limit, 10 * SECOND);
    (claim.waiting, claim.at_once) = (waiting, at_once);
    store.claim(vec![claim]).await.pop().unwrap().unwrap()
}

#[tokio::test]
async fn free_permits_are_granted_to_those_that_wait_and_then_at_once() {
    for (waiting, at_once, limit, expected) in [
        (2, 2, 3, 3),
        (2, 2, 4, 4),
        (2, 2, 9, 4),
        (2, 2, 1, 1),
        (0, 2, 1, 1),
    ] {
        let in_memory = granted(
            &MemoryStore::new().permits().unwrap(),
            waiting,
            at_once,
            limit,
        )
        .await;
        assert_eq!(in_memory, expected, "{waiting}, {at_once}, {limit}");
    }
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_grants_free_permits_alike() {
    let server = crate::support::RedisServer::start();
    for (waiting, at_once, limit, expected) in [(2, 2, 3, 3), (2, 2, 9, 4), (2, 2, 1, 1)] {
        let store = server
            .store_of(format!("limit-{limit}"))
            .connect()
            .await
            .unwrap();
        assert_eq!(
            granted(&store, waiting, at_once, limit).await,
            expected,
            "{limit}"
        );
    }
}

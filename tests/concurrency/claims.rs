//! What a concurrency limiter asks of a store, how often, and what it does with the answers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep};
use tollgate::decision::Source;
use tollgate::limit::OnStoreFailure;
use tollgate::store::{Answer, Budget, Change, Claim, Operation, Store};
use tollgate::{Decision, Error, Key, Limit, MemoryStore, Permit, RateLimiter};

use crate::support::scripted::{Scripted, time_out_after};

const SECOND: Duration = Duration::from_secs(1);

/// An embedded store as one elsewhere, which keeps a record.
#[derive(Clone)]
struct Recorded {
    store: Scripted,
    record: Arc<Record>,
}

#[derive(Debug, Default)]
struct Record {
    delay: Mutex<Duration>,
    is_away: AtomicBool,
    /// Added to what each holder wants.
    too_many: AtomicU32,
    claims: Mutex<Vec<Claim>>,
    in_flight: Mutex<HashSet<[u8; 8]>>,
    most_in_flight: AtomicUsize,
}

impl Record {
    async fn answer(
        self: Arc<Self>,
        memory: Arc<MemoryStore>,
        operation: Operation,
    ) -> Result<Decision, Error> {
        let Operation::Change(budget, Change::Claim(mut claim)) = operation else {
            panic!("permits are claimed, not {operation:?}");
        };
        self.claims.lock().unwrap().push(claim);
        {
            let mut in_flight = self.in_flight.lock().unwrap();
            assert!(
                in_flight.insert(claim.holder),
                "a holder has one claim in flight"
            );
            self.most_in_flight
                .fetch_max(in_flight.len(), Ordering::SeqCst);
        }
        let delay = *self.delay.lock().unwrap();
        if !delay.is_zero() {
            sleep(delay).await;
        }
        self.in_flight.lock().unwrap().remove(&claim.holder);
        if self.is_away.load(Ordering::SeqCst) {
            return Err(Error::unreachable("it is away"));
        }
        let too_many = self.too_many.load(Ordering::SeqCst);
        claim.at_once += too_many;
        let limit = budget.limit().quota().limit() as u32 + too_many;
        let budget = Budget::new(&exports(limit), budget.key());
        memory
            .apply(Operation::Change(budget, Change::Claim(claim)))
            .await
    }
}

impl Default for Recorded {
    fn default() -> Self {
        let record = Arc::new(Record::default());
        let of_store = Arc::clone(&record);
        let store = Scripted::new(move |memory, operation| {
            Answer::later(Arc::clone(&of_store).answer(Arc::clone(memory), operation))
        });
        Self { store, record }
    }
}

impl Recorded {
    fn slow(delay: Duration) -> Self {
        let store = Self::default();
        *store.record.delay.lock().unwrap() = delay;
        store
    }

    fn limiter(&self) -> RateLimiter {
        RateLimiter::new(self.store.clone())
    }

    /// A limiter whose permits have this lease.
    fn leasing_for(&self, lease: Duration) -> RateLimiter {
        let limiter = RateLimiter::builder(self.store.clone()).permit_lease(lease);
        limiter.build().unwrap()
    }

    fn set_away(&self, is_away: bool) {
        self.record.is_away.store(is_away, Ordering::SeqCst);
    }

    fn taken(&self) -> Vec<Claim> {
        std::mem::take(&mut self.record.claims.lock().unwrap())
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
    let limiter = store.limiter();
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
    let limiter = store.limiter();
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
        let limiter = store.leasing_for(lease * SECOND);
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
    let [holds, waits] = [(); 2].map(|()| store.limiter());
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
async fn released_permit_reaches_a_waiter_elsewhere_at_the_next_poll() {
    const POLL: Duration = Duration::from_millis(25);
    let latency = Duration::from_millis(3);
    let store = Recorded::slow(latency);
    let [holds, waits] = [(); 2].map(|()| store.limiter());
    for phase in 0..100 {
        let held = take(&holds, 1).await;
        let waiting = tokio::spawn({
            let waits = waits.clone();
            async move {
                let permit = waits.acquire_permit(&exports(1), &acme(), SECOND).await;
                (permit.unwrap().is_some(), Instant::now())
            }
        });
        sleep(Duration::from_millis(60 + phase)).await;
        drop(held);
        holds.flush().await;
        let released = Instant::now();
        let (is_granted, granted) = waiting.await.unwrap();
        waits.flush().await;
        assert!(is_granted);
        let handover = granted - released;
        // Timers fire up to a millisecond late.
        let most = POLL + latency + Duration::from_millis(1);
        assert!(handover <= most, "{handover:?} in phase {phase}");
    }
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_waiter_that_leaves_while_it_is_granted_is_free_at_the_next_poll() {
    const MS: Duration = Duration::from_millis(1);
    let store = Recorded::slow(10 * MS);
    let [holds, waits, next] = [(); 3].map(|()| store.limiter());
    for phase in 0..60 {
        let held = take(&holds, 1).await;
        assert!(held.is_some());
        let leaving = tokio::spawn({
            let waits = waits.clone();
            async move { waits.acquire_permit(&exports(1), &acme(), 100 * MS).await }
        });
        sleep(MS * (50 + phase)).await;
        drop(held);
        drop(leaving.await.unwrap());
        let started = Instant::now();
        let permit = next.acquire_permit(&exports(1), &acme(), SECOND).await;
        assert!(permit.unwrap().is_some());
        // The grant, its return, a poll, and its answer.
        let took = started.elapsed();
        assert!(took <= 70 * MS, "{took:?} in phase {phase}");
        for limiter in [&holds, &waits, &next] {
            limiter.flush().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn late_answer_costs_no_permit_however_many_keys_are_in_use() {
    let store = Scripted::default();
    let [limiter, other] = [(); 2].map(|()| RateLimiter::new(store.clone()));
    let closed = exports(1)
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let mut in_use = Vec::new();
    for number in 0..12_000_u64 {
        let permit = limiter.try_acquire_permit(&closed, Key::from(number)).await;
        in_use.push(permit.unwrap().expect("it is free"));
    }
    store.does(|memory, operation| {
        drop(memory.apply(operation));
        Answer::ready(Err(Error::timeout()))
    });
    let lost = limiter.try_acquire_permit(&closed, acme()).await;
    assert!(lost.is_err(), "it was granted, and its answer was lost");
    store.switch_off(false);
    let given_back = other.acquire_permit(&closed, acme(), SECOND).await;
    assert!(given_back.unwrap().is_some());
    drop(in_use);
}

#[tokio::test(start_paused = true)]
async fn no_waiter_gets_more_than_its_own_limit_however_many_wait_before_it() {
    let limiter = Recorded::default().limiter();
    let mut held = Vec::new();
    while let Some(permit) = take(&limiter, 200).await {
        held.push(permit);
    }
    assert_eq!(held.len(), 200);
    let mut callers = JoinSet::new();
    for number in 0..=100 {
        let limiter = limiter.clone();
        let limit = exports(if number == 100 { 5 } else { 200 });
        callers.spawn(async move {
            let permit = limiter.acquire_permit(&limit, &acme(), 60 * SECOND).await;
            let permit = permit.unwrap().expect("each is served");
            let in_flight = limiter.held_permits(&limit, acme());
            assert!(
                in_flight <= limit.quota().limit(),
                "{in_flight} under {limit:?}"
            );
            sleep(SECOND / 10).await;
            drop(permit);
        });
        yield_now().await;
    }
    sleep(SECOND).await;
    held.clear();
    drop(callers.join_all().await);
}

#[tokio::test(start_paused = true)]
async fn caller_waits_for_one_deadline_of_a_hung_store_when_its_share_is_used() {
    const DEADLINE: Duration = Duration::from_millis(250);
    let store = Scripted::new(|_, _| time_out_after(DEADLINE));
    let limiter = RateLimiter::new(store);
    let share = OnStoreFailure::local(2);
    let limit = exports(2).with_on_store_failure(share).unwrap();
    let held = limiter.try_acquire_permit(&limit, acme()).await.unwrap();
    assert!(held.is_some());
    let started = Instant::now();
    let permit = limiter.acquire_permit(&limit, acme(), SECOND).await;
    assert!(permit.unwrap().is_none(), "its share is one permit");
    let took = started.elapsed();
    assert!(took <= DEADLINE + Duration::from_millis(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn store_hears_of_local_permits_when_it_is_back() {
    let store = Recorded::default();
    let limiter = store.limiter();
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
    let [gives_up, other] = [(); 2].map(|()| store.limiter());
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
    let limiter = store.limiter();
    store.record.too_many.store(3, Ordering::SeqCst);
    let permit = take(&limiter, 1).await;
    store.record.too_many.store(0, Ordering::SeqCst);
    assert_eq!(limiter.held_permits(&exports(1), acme()), 1);
    drop(permit);
    limiter.flush().await;
    let last = store.taken().pop().unwrap();
    assert_eq!((last.granted, last.released), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn claims_in_flight_are_bounded() {
    let store = Recorded::slow(Duration::from_millis(10));
    let limiter = store.limiter();
    let mut callers = JoinSet::new();
    for user in 0..10_000_u64 {
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
    // Callers and releases.
    assert_eq!(
        store.record.most_in_flight.load(Ordering::SeqCst),
        1_024 + 512
    );
}

/// Too many callers are not an outage: none fails open, also under limits of other keys.
#[tokio::test(start_paused = true)]
async fn more_callers_than_a_slow_store_takes_are_an_overload() {
    let store = Recorded::slow(Duration::from_millis(200));
    let limiter = store.limiter();
    let mut callers = JoinSet::new();
    for user in 0..30_000_u64 {
        let limiter = limiter.clone();
        callers.spawn(async move {
            let key = Key::from(user);
            match limiter.try_acquire_permit(&exports(1), &key).await {
                Ok(permit) => {
                    let source = permit.expect("one is free").source();
                    assert_eq!(source, Source::Store);
                    true
                }
                Err(error) => {
                    assert!(error.is_overloaded(), "{error}");
                    false
                }
            }
        });
    }
    let granted = callers.join_all().await;
    let granted = granted.into_iter().filter(|granted| *granted).count();
    // A thousand each 200 ms, for a second.
    assert!((4_000..=6_000).contains(&granted), "{granted} permits");
    limiter.flush().await;
    sleep(10 * SECOND).await;
    assert_eq!(limiter.keys_with_permits(), 0);
}

/// A runtime of one thread that asks for permits of these keys, holds them, and can be blocked.
struct OtherRuntime {
    thread: std::thread::JoinHandle<()>,
    block: std::sync::mpsc::Sender<Duration>,
}

impl OtherRuntime {
    /// Returns when the store has their claims.
    fn start(store: &Recorded, limiter: &RateLimiter, keys: Vec<Key>) -> Self {
        let limiter = limiter.clone();
        let record = Arc::clone(&store.record);
        let count = keys.len();
        let (asked, is_asked) = std::sync::mpsc::channel();
        let (block, is_blocked) = std::sync::mpsc::channel::<Duration>();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(async {
                let mut asking = JoinSet::new();
                for key in keys {
                    let limiter = limiter.clone();
                    asking.spawn(async move {
                        let permit = limiter.try_acquire_permit(&exports(1), &key).await;
                        std::future::pending::<()>().await;
                        drop(permit);
                    });
                }
                while record.claims.lock().unwrap().len() < count {
                    yield_now().await;
                }
                asked.send(()).unwrap();
                loop {
                    if let Ok(lasts) = is_blocked.try_recv() {
                        std::thread::sleep(lasts);
                        return;
                    }
                    sleep(Duration::from_millis(1)).await;
                }
            });
        });
        is_asked.recv().unwrap();
        Self { thread, block }
    }

    fn block(&self, lasts: Duration) {
        self.block.send(lasts).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn claim_of_a_blocked_runtime_fails_no_caller_of_another() {
    let store = Recorded::slow(Duration::from_millis(50));
    let limiter = store.limiter();
    let other = OtherRuntime::start(&store, &limiter, vec![acme()]);
    other.block(Duration::from_millis(1_500));
    // The record allows one claim of a holder at a time, and a claim that is stuck is repeated.
    store.record.in_flight.lock().unwrap().clear();
    // The blocked caller gets the other one.
    let permit = take(&limiter, 2).await.expect("one is free");
    assert_eq!(permit.source(), Source::Store);
    other.thread.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn permits_are_renewed_although_the_runtime_of_the_tasks_is_blocked() {
    let store = Recorded::default();
    let limiter = store.leasing_for(SECOND);
    // Its tasks renew the permits of all runtimes.
    let other = OtherRuntime::start(&store, &limiter, (100..120_u64).map(Key::from).collect());
    let mut held = Vec::new();
    for user in 0..20_u64 {
        let permit = limiter
            .try_acquire_permit(&exports(1), Key::from(user))
            .await;
        held.extend(permit.unwrap());
    }
    assert_eq!(held.len(), 20);
    other.block(Duration::from_millis(1_500));
    while !other.thread.is_finished() {
        // A caller of one key, which has one of the tasks.
        drop(take(&limiter, 1).await);
        sleep(Duration::from_millis(10)).await;
        assert!(held.iter().all(Permit::is_renewed));
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_come_before_callers_that_ask_at_once_and_end_with_the_store() {
    let store = Recorded::slow(Duration::from_millis(10));
    let limiter = store.limiter();
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
async fn granted(store: &impl Store, waiting: u32, at_once: u32, limit: u32) -> u64 {
    let mut claim = Claim::new(*b"holder-1", 10 * SECOND);
    claim.waiting = waiting;
    claim.at_once = at_once;
    let claim = Operation::Change(Budget::new(&exports(limit), "acme"), Change::Claim(claim));
    store.apply(claim).await.unwrap().remaining()
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
        let in_memory = granted(&MemoryStore::new(), waiting, at_once, limit).await;
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

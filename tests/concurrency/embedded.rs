//! Permits on wrappers of an embedded store: they may fail, answer late, or answer nonsense. What
//! such a store keeps has no lease that would end soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tollgate::store::{Answer, Operation, Store};
use tollgate::{Check, Error, Limit, MemoryStore, Permit, Quota, RateLimiter};

use crate::support::scripted::{Scripted, ask_after};

const SECOND: Duration = Duration::from_secs(1);

fn exports() -> Limit {
    Limit::concurrency("exports", 1).unwrap()
}

async fn take(limiter: &RateLimiter) -> Option<Permit> {
    limiter
        .try_acquire_permit(&exports(), "acme")
        .await
        .unwrap()
}

/// A store that calls `script` with the number of the call, from 0.
fn wrapper(
    script: impl Fn(u32, &Arc<MemoryStore>, Operation) -> Answer + Send + Sync + 'static,
) -> Scripted {
    let calls = AtomicU32::new(0);
    let store = Scripted::new(move |memory, operation| {
        script(calls.fetch_add(1, Ordering::SeqCst), memory, operation)
    });
    store.embedded(true)
}

fn failed() -> Answer {
    Answer::ready(Err(Error::store("it has lost the answer")))
}

#[tokio::test(start_paused = true)]
async fn permit_of_a_claim_that_was_applied_and_failed_is_given_back() {
    let store = wrapper(|call, memory, operation| {
        let answer = memory.apply(operation);
        if call == 0 { failed() } else { answer }
    });
    let limiter = RateLimiter::new(store);
    drop(take(&limiter).await.expect("it fails open"));
    sleep(SECOND).await;
    assert_eq!(limiter.keys_with_permits(), 0);
    assert!(take(&limiter).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn place_of_a_waiter_whose_claim_failed_is_given_up() {
    let store = wrapper(|call, memory, operation| match call {
        4 => failed(),
        _ => memory.apply(operation),
    });
    let [holds, waits] = [(); 2].map(|()| RateLimiter::new(store.clone()));
    let held = take(&holds).await;
    assert!(held.is_some());
    let waiting = waits.acquire_permit(&exports(), "acme", 10 * SECOND).await;
    drop(waiting.unwrap().expect("it fails open"));
    sleep(SECOND).await;
    drop(held);
    assert!(take(&holds).await.is_some(), "no caller waits");
}

#[tokio::test(start_paused = true)]
async fn claim_that_is_answered_late_is_not_sent_twice() {
    let delays = [SECOND / 10, SECOND / 1_000];
    let store = wrapper(move |call, memory, operation| {
        let delay = delays[usize::from(call > 0)];
        // As in a task of its own: the claim is applied whether its answer is awaited or not.
        let applied = tokio::spawn(ask_after(delay, memory, operation));
        Answer::later(async { applied.await.unwrap() })
    });
    let limiter = RateLimiter::new(store.clone());
    let started = Instant::now();
    let permit = take(&limiter).await;
    assert!(permit.is_some());
    assert!(started.elapsed() >= SECOND / 10);
    assert_eq!(store.asked(), 1);
    drop(permit);
    limiter.flush().await;
    sleep(SECOND).await;
    assert_eq!(limiter.keys_with_permits(), 0);
    assert!(take(&limiter).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn store_that_goes_on_granting_too_much_is_asked_four_times_a_second() {
    for is_embedded in [true, false] {
        let store = wrapper(|_, memory, operation| {
            // As a wrapper that exempts a key answers.
            let free = Limit::gcra("free", Quota::per_second(5)).unwrap();
            memory.apply(Operation::Peek(
                Check::new(&free, operation.budgets().next().unwrap().key()).into(),
            ))
        });
        let store = store.embedded(is_embedded);
        let limiter = RateLimiter::new(store.clone());
        drop(take(&limiter).await);
        store.asked();
        sleep(10 * SECOND).await;
        let asked = store.asked();
        assert!(asked <= 41, "{asked} times in ten seconds");
    }
}

/// Limiters on one store: one holds the only permit, and the other one's caller waits.
async fn one_waits(store: &Arc<MemoryStore>) -> (RateLimiter, Option<Permit>, RateLimiter) {
    let [holds, waits] = [(); 2].map(|()| RateLimiter::new(Arc::clone(store)));
    let held = take(&holds).await;
    assert!(held.is_some());
    (holds, held, waits)
}

#[tokio::test(start_paused = true)]
async fn place_of_a_waiter_that_is_gone_is_free_at_once() {
    let store = Arc::new(MemoryStore::new());
    let (holds, held, waits) = one_waits(&store).await;
    let waiting = waits.acquire_permit(&exports(), "acme", SECOND).await;
    assert!(waiting.unwrap().is_none());
    drop(held);
    assert_eq!(waits.keys_with_permits(), 0);
    assert!(take(&holds).await.is_some());
}

#[test]
fn place_of_a_waiter_ends_with_its_runtime() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let store = Arc::new(MemoryStore::new());
    let stays = runtime().unwrap();
    let (holds, held, waits) = stays.block_on(one_waits(&store));
    let ends = runtime().unwrap();
    let caller = waits.clone();
    ends.block_on(async {
        drop(tokio::spawn(async move {
            let limit = exports();
            let wait = 600 * SECOND;
            caller.acquire_permit(&limit, "acme", wait).await.map(drop)
        }));
        tokio::task::yield_now().await;
    });
    assert_eq!(waits.keys_with_permits(), 1, "it waits");
    drop(ends);
    drop(held);
    assert!(stays.block_on(take(&holds)).is_some());
}

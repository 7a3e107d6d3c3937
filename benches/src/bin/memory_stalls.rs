//! The longest single check of the embedded store while millions of keys are added, while they
//! expire, and while it shrinks. Run it with `make micro`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tollgate::store::{Operation, Store};
use tollgate::{Check, Key, Limit, MemoryStore, Quota};

/// `KEYS` in the environment sets another number, and `LONG` keys of 60 bytes.
const KEYS: u64 = 6_000_000;

fn check(store: &MemoryStore, limit: &Limit, key: &Key) -> Duration {
    let started = Instant::now();
    let mut answer = store.apply(Operation::Charge(Check::new(limit, key).into()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(
        Pin::new(&mut answer).poll(&mut context),
        Poll::Ready(Ok(_))
    ));
    started.elapsed()
}

/// The times of the checks in one phase.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn print(mut self, phase: &str) {
        let total: Duration = self.0.iter().sum();
        self.0.sort_unstable_by(|a, b| b.cmp(a));
        let mean = total / u32::try_from(self.0.len()).unwrap();
        println!(
            "{phase:9} {} checks, {mean:?} on average, longest {:?}",
            self.0.len(),
            &self.0[..5]
        );
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let keys = std::env::var("KEYS").map_or(KEYS, |keys| keys.parse().unwrap());
    let long = std::env::var("LONG").is_ok();
    let key = |number: u64| {
        if long {
            Key::new(format!("{number:060}"))
        } else {
            Key::from(number)
        }
    };
    let store = Arc::new(MemoryStore::new());
    let limit = Limit::token_bucket("limit", Quota::per_minute(1)).unwrap();

    let mut growing = Times::default();
    for number in 0..keys {
        growing.0.push(check(&store, &limit, &key(number)));
    }
    assert_eq!(store.len() as u64, keys);
    growing.print("growing");

    tokio::time::advance(Duration::from_secs(61)).await;
    let mut expiring = Times::default();
    let busy = Key::new("busy");
    while store.len() > 1 {
        for _ in 0..100_000 {
            // The store sweeps a few places every 4 ms.
            tokio::time::advance(Duration::from_millis(4)).await;
            expiring.0.push(check(&store, &limit, &busy));
        }
    }
    expiring.print("expiring");

    let mut after = Times::default();
    for number in 0..keys / 4 {
        after.0.push(check(&store, &limit, &key(number % 1_000)));
    }
    after.print("after");
}

//! Payments: units that were allowed before, which Redis charges once however often it is asked.
#![cfg(feature = "redis")]

use std::time::Duration;

use redis::Commands;
use tollgate::clock::ManualClock;
use tollgate::limit::BlockPolicy;
use tollgate::store::{Budget, Change, Operation, Payment, Store};
use tollgate::{Check, Limit, MemoryStore, Quota, RedisStore};

use crate::replicas::alice;
use crate::support::RedisServer;

const PAYER: [u8; 8] = *b"process1";

const SECOND: Duration = Duration::from_secs(1);

fn limits() -> Vec<Limit> {
    let quota = Quota::per_day(10);
    [
        Limit::fixed_window("api", quota),
        Limit::sliding_window("api", quota),
        Limit::sliding_log("api", quota),
        Limit::token_bucket("api", quota),
        Limit::leaky_bucket_meter("api", quota),
        Limit::gcra("api", quota),
    ]
    .map(Result::unwrap)
    .into()
}

async fn store(server: &RedisServer) -> RedisStore {
    server.store().connect().await.unwrap()
}

fn payment(limit: &Limit, payer: [u8; 8], number: u64, units: u32) -> Operation {
    let payment = Payment::new(payer, number, units);
    Operation::Change(Budget::new(limit, alice()), Change::Pay(payment))
}

/// Pays, and returns what is left.
async fn pay(store: &RedisStore, limit: &Limit, payer: [u8; 8], number: u64, units: u32) -> u64 {
    let paid = store.apply(payment(limit, payer, number, units)).await;
    paid.unwrap().remaining()
}

#[tokio::test]
async fn payment_counts_once_for_each_number_of_its_payer() {
    for limit in limits() {
        let server = RedisServer::start();
        let store = store(&server).await;
        assert_eq!(pay(&store, &limit, PAYER, 5, 3).await, 7, "{limit:?}");
        assert_eq!(pay(&store, &limit, PAYER, 5, 3).await, 7, "sent again");
        assert_eq!(pay(&store, &limit, PAYER, 4, 3).await, 7, "late");
        assert_eq!(pay(&store, &limit, PAYER, 6, 1).await, 6, "the next one");
        assert_eq!(pay(&store, &limit, *b"process2", 5, 2).await, 4);
    }
}

/// A peek in front has the script read and write the keys in another way.
#[tokio::test]
async fn payments_that_are_repeated_in_one_call_count_once() {
    for limit in limits() {
        for peeks_first in [false, true] {
            let server = RedisServer::start();
            let store = store(&server).await;
            let free = Check::new(&limit, alice()).with_cost(0);
            let peek = peeks_first.then(|| store.apply(Operation::Peek(free.into())));
            let answers: Vec<_> = [5, 5, 4, 6, 5, 6]
                .map(|number| store.apply(payment(&limit, PAYER, number, 2)))
                .into();
            let mut left = Vec::new();
            for answer in peek.into_iter().chain(answers) {
                left.push(answer.await.unwrap().remaining());
            }
            let of_payments = &left[usize::from(peeks_first)..];
            assert_eq!(of_payments, [8, 8, 8, 6, 6, 6], "{limit:?}");
            assert_eq!(pay(&store, &limit, PAYER, 7, 1).await, 5, "{limit:?}");
        }
    }
}

#[tokio::test]
async fn payment_of_a_blocked_key_is_charged_and_says_that_it_is_blocked() {
    let server = RedisServer::start();
    let clock = ManualClock::new();
    let redis = server.store().clock(clock.clone()).connect().await.unwrap();
    let memory = MemoryStore::with_clock(clock);
    for (number, limit) in (1..).zip(limits()) {
        let limit = limit.with_block_policy(BlockPolicy::after(1, SECOND).lasting(60 * SECOND));
        let limit = limit.unwrap();
        let charge = |cost| Operation::Charge(Check::new(&limit, alice()).with_cost(cost).into());
        let operations = [charge(9), charge(5), payment(&limit, PAYER, number, 1)];
        for operation in operations {
            let decided = redis.apply(operation.clone()).await.unwrap();
            let expected = memory.apply(operation).await.unwrap();
            assert_eq!(decided, expected, "{limit:?}");
        }
        let reset = Operation::Change(Budget::new(&limit, alice()), Change::Reset);
        drop(redis.apply(reset.clone()).await.unwrap());
        drop(memory.apply(reset).await.unwrap());
    }
}

#[tokio::test]
async fn payment_charges_what_does_not_fit() {
    for limit in limits() {
        let server = RedisServer::start();
        let store = store(&server).await;
        let limit = limit.with_max_debt(0).unwrap();
        assert_eq!(pay(&store, &limit, PAYER, 1, 15).await, 0);
        let charge = Operation::Charge(Check::new(&limit, alice()).into());
        let denied = store.apply(charge).await.unwrap();
        assert!(!denied.allowed());
        let wait = denied.retry_after().unwrap();
        // Five units too many, and one more. A window forgets them at its end.
        if matches!(limit.kind(), "b") {
            assert!(wait > Duration::from_secs(5 * 8_640), "{wait:?}");
        }
    }
}

#[tokio::test]
async fn payments_of_one_call_each_count() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let limit = Limit::token_bucket("api", Quota::per_day(1_000)).unwrap();
    let answers: Vec<_> = (1..=20)
        .chain(1..=20)
        .map(|number| store.apply(payment(&limit, PAYER, number, 2)))
        .collect();
    for answer in answers {
        assert!(answer.await.unwrap().allowed());
    }
    assert_eq!(pay(&store, &limit, PAYER, 21, 1).await, 1_000 - 41);
}

#[tokio::test]
async fn record_of_a_payer_that_is_unreadable_counts_as_none() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let limit = Limit::token_bucket("api", Quota::per_day(10)).unwrap();
    assert_eq!(pay(&store, &limit, PAYER, 5, 1).await, 9);
    let record = format!(
        "{}:{}",
        store.redis_key(&limit, &alice()),
        "70726f6365737331"
    );
    let record = record.replace("}:b:", "}:bo:");
    let mut redis = server.connection();
    let ttl: i64 = redis.pttl(&record).unwrap();
    assert!((60_000..=71_000).contains(&ttl), "{ttl} ms");
    let mut left = 9;
    for garbage in ["", "short", "\u{7f}garbag", "much longer garbage"] {
        redis.set::<_, _, ()>(&record, garbage).unwrap();
        left -= 1;
        assert_eq!(pay(&store, &limit, PAYER, 5, 1).await, left, "{garbage}");
    }
}

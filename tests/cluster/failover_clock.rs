//! A replica whose clock is ahead or behind becomes the master. Real servers, one of them with another clock.

// It takes seconds, and features change nothing of it: it runs with all of them alone.
#![cfg(all(feature = "redis", feature = "test-util", target_os = "linux"))]

use std::time::Duration;

use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep, timeout};
use tollgate::{Key, Limit, Quota, RateLimiter};

use crate::support::RedisServer;

const CAPACITY: u64 = 10;

const PERIOD: Duration = Duration::from_secs(5);

fn limits() -> Vec<Limit> {
    let quota = Quota::new(CAPACITY, PERIOD);
    let limits = [
        Limit::token_bucket("token_bucket", quota),
        Limit::leaky_bucket("leaky_bucket", quota),
        Limit::leaky_bucket_meter("meter", quota),
        Limit::gcra("gcra", quota),
        Limit::fixed_window("fixed_window", quota),
        Limit::fixed_window_aligned("aligned", quota),
        Limit::sliding_window("sliding_window", quota),
        Limit::sliding_window_with("sub_windows", quota, 10),
        Limit::sliding_log("sliding_log", quota),
    ];
    limits.into_iter().map(Result::unwrap).collect()
}

async fn limiter(server: &RedisServer) -> RateLimiter {
    // Denials are asked anew: this is about the server's.
    let store = server.store().deny_for(Duration::ZERO).connect().await;
    RateLimiter::new(store.unwrap())
}

/// Consumes all that is there. Returns how much that was.
async fn drain(limiter: &RateLimiter, limit: &Limit, key: &Key) -> u64 {
    for allowed in 0..=CAPACITY * 3 {
        if !limiter.check(limit, key).await.unwrap().allowed() {
            return allowed;
        }
    }
    panic!("{limit} allows everything");
}

async fn fail_over_to(offset: i64) {
    let (master, replica) = block_in_place(|| {
        let master = RedisServer::start();
        let of_master = format!("127.0.0.1 {}", master.port());
        let arguments = [
            "--replicaof",
            &*of_master,
            "--repl-diskless-sync-delay",
            "0",
        ];
        (master, RedisServer::start_with_clock(offset, &arguments))
    });
    let seconds = |server: &RedisServer| -> i64 {
        redis::cmd("TIME")
            .query::<(i64, i64)>(&mut server.connection())
            .unwrap()
            .0
    };
    let difference = seconds(&replica) - seconds(&master);
    assert!(
        (difference - offset).abs() <= 1,
        "the clock is {difference} s off"
    );
    let key = Key::new("alice");
    let before = limiter(&master).await;
    let mut connection = master.connection();
    // Until the replica has all writes of this connection and of those before it.
    let mut replicate = || {
        let () = redis::cmd("SET")
            .arg("written")
            .arg(1)
            .query(&mut connection)
            .unwrap();
        let wait = || {
            redis::cmd("WAIT")
                .arg(1)
                .arg(100)
                .query::<u32>(&mut connection)
        };
        assert!(
            std::iter::repeat_with(wait)
                .take(200)
                .any(|replicas| replicas.unwrap() == 1)
        );
    };
    block_in_place(&mut replicate);
    let drained = Instant::now();
    for limit in limits() {
        drain(&before, &limit, &key).await;
    }
    block_in_place(&mut replicate);
    drop(master);
    // Until then the master may have replenished budgets, and told the replica.
    let took = drained.elapsed();
    let promote = ["NO", "ONE"];
    let () = redis::cmd("REPLICAOF")
        .arg(&promote)
        .query(&mut replica.connection())
        .unwrap();

    let after = limiter(&replica).await;
    let mut tasks = JoinSet::new();
    for limit in limits() {
        let (after, key) = (after.clone(), key.clone());
        tasks.spawn(async move { decides_well(offset, took, &after, &limit, &key).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

async fn decides_well(offset: i64, took: Duration, after: &RateLimiter, limit: &Limit, key: &Key) {
    let allowed = drain(after, limit, key).await;
    assert!(
        allowed <= CAPACITY,
        "{offset} s, {limit}: a burst of {allowed}"
    );
    let has_stepped_back = -offset > PERIOD.as_secs() as i64;
    // A window that is aligned to the clock may have ended on the master.
    let is_aligned = limit.name() == "aligned";
    if has_stepped_back && !is_aligned && took < PERIOD {
        assert_eq!(
            allowed, 0,
            "{offset} s, {limit}: a clock that steps back mints nothing"
        );
    }
    let wait = after
        .check(limit, key)
        .await
        .unwrap()
        .retry_after()
        .unwrap();
    // A sliding window that is used up at its begin needs a part of the next one, too, whatever the clock.
    let normally = if limit.kind() == "s" {
        PERIOD * 2
    } else {
        PERIOD
    };
    // A small step back prolongs a wait by itself. After one of more than a period, the time starts anew.
    let step = Duration::from_secs(offset.min(0).unsigned_abs());
    let longest = normally + if step <= PERIOD { step } else { Duration::ZERO };
    assert!(
        wait <= longest,
        "{offset} s, {limit}: locked out for {wait:?}"
    );
    let asked = Instant::now();
    let passes = async {
        while !after.check(limit, key).await.unwrap().allowed() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PERIOD * 5, passes)
        .await
        .expect("it is not locked out");
    println!(
        "{offset} s, {limit}: {allowed} at once, again after {:?} ({wait:?})",
        asked.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn promoted_replica_whose_clock_is_off_locks_nobody_out_and_allows_one_burst() {
    let mut tasks = JoinSet::new();
    for offset in [-600, 600, -1, 1, -7_200] {
        tasks.spawn(fail_over_to(offset));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

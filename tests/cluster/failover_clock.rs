//! A replica whose clock is ahead or behind becomes the master. Real servers, one of them with
//! another clock.

// It takes seconds, and features change nothing of it: it runs with all of them alone.
#![cfg(all(feature = "redis", feature = "test-util", target_os = "linux"))]

use std::sync::Arc;
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

/// Consumes all units. Returns how many there were.
async fn drain(limiter: &RateLimiter, limit: &Limit, key: &Key) -> u64 {
    let mut allowed = 0;
    while limiter.check(limit, key).await.unwrap().allowed() {
        allowed += 1;
        assert!(allowed < CAPACITY * 100, "{limit} allows everything");
    }
    allowed
}

/// The time of the server's clock.
fn clock(server: &RedisServer) -> Duration {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut server.connection()).unwrap();
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// The replication section of a server's `INFO`.
fn replication(server: &RedisServer) -> String {
    let mut info = redis::cmd("INFO");
    let info = info.arg("replication");
    info.query(&mut server.connection()).unwrap()
}

/// How many windows that are aligned to the clock end between two times.
fn ended_windows(begin: Duration, end: Duration) -> u64 {
    let window = |time: Duration| time.as_secs() / PERIOD.as_secs();
    window(end).saturating_sub(window(begin))
}

/// How many units are replenished in this time.
fn replenished(elapsed: Duration) -> u64 {
    (elapsed.as_secs_f64() / PERIOD.as_secs_f64() * CAPACITY as f64) as u64
}

async fn fail_over_to(offset: i64) {
    let (master, replica) = block_in_place(|| {
        let master = RedisServer::start();
        let port = master.port().to_string();
        let replica_of = ["--replicaof", "127.0.0.1", &port];
        let replica = RedisServer::start_with_clock(offset, &replica_of);
        (master, replica)
    });
    let difference = clock(&replica).as_secs() as i64 - clock(&master).as_secs() as i64;
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
        let has_all = std::iter::repeat_with(wait)
            .take(600)
            .any(|replicas| replicas.unwrap() == 1);
        assert!(
            has_all,
            "{offset} s, not within a minute. The master: {}\nThe replica: {}",
            replication(&master),
            replication(&replica)
        );
    };
    block_in_place(&mut replicate);
    let since = Instant::now();
    for limit in limits() {
        drain(&before, &limit, &key).await;
    }
    block_in_place(&mut replicate);
    drop(master);
    let promote = ["NO", "ONE"];
    let () = redis::cmd("REPLICAOF")
        .arg(&promote)
        .query(&mut replica.connection())
        .unwrap();

    let after = limiter(&replica).await;
    let replica = Arc::new(replica);
    let mut tasks = JoinSet::new();
    for limit in limits() {
        let promoted = Promoted {
            limiter: after.clone(),
            server: Arc::clone(&replica),
            offset,
            since,
        };
        let key = key.clone();
        tasks.spawn(async move { promoted.decides_well(&limit, &key).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// A replica that became the master.
struct Promoted {
    limiter: RateLimiter,
    server: Arc<RedisServer>,
    /// Seconds that its clock is ahead of the old master's.
    offset: i64,
    /// The budgets were used up after this.
    since: Instant,
}

impl Promoted {
    async fn decides_well(&self, limit: &Limit, key: &Key) {
        let offset = self.offset;
        let begin = (Instant::now(), self.clock());
        let allowed = drain(&self.limiter, limit, key).await;
        let end = (Instant::now(), self.clock());
        // However long a busy machine takes: units of that time are no part of the burst.
        let elapsed = end.0 - begin.0;
        let meanwhile = if limit.name() == "aligned" {
            CAPACITY * ended_windows(begin.1, end.1)
        } else {
            replenished(elapsed) + 1
        };
        assert!(
            allowed <= CAPACITY + meanwhile,
            "{offset} s, {limit}: a burst of {allowed} in {elapsed:?}"
        );
        let has_stepped_back = -offset > PERIOD.as_secs() as i64;
        // A window that is aligned to the clock may have ended on the old master.
        if has_stepped_back && limit.name() != "aligned" {
            let elapsed = end.0 - self.since;
            assert!(
                allowed <= replenished(elapsed),
                "{offset} s, {limit}: a clock that steps back mints {allowed} in {elapsed:?}"
            );
        }
        self.lets_in_again(limit, key).await;
    }

    async fn lets_in_again(&self, limit: &Limit, key: &Key) {
        let offset = self.offset;
        let denied = self.limiter.check(limit, key).await.unwrap();
        // The time since the drain may have been enough for a unit.
        let wait = denied.retry_after().unwrap_or_default();
        // A sliding window that is used up at its begin needs a part of the next one, whatever the
        // clock.
        let normally = if limit.kind() == "s" {
            PERIOD * 2
        } else {
            PERIOD
        };
        // A small step back prolongs a wait by itself. After one of more than a period, the time
        // starts anew.
        let step = Duration::from_secs(offset.min(0).unsigned_abs());
        let longest = normally + if step <= PERIOD { step } else { Duration::ZERO };
        assert!(
            wait <= longest,
            "{offset} s, {limit}: locked out for {wait:?}"
        );
        let begin = Instant::now();
        let passes = async {
            while !self.limiter.check(limit, key).await.unwrap().allowed() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PERIOD * 5, passes)
            .await
            .expect("it is not locked out");
        println!(
            "{offset} s, {limit}: again after {:?} ({wait:?})",
            begin.elapsed()
        );
    }

    fn clock(&self) -> Duration {
        block_in_place(|| clock(&self.server))
    }
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

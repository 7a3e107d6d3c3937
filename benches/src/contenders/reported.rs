//! A limiter written by hand that counts in the process, and reports every 50 ms.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem::take;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use axum::body::Body;
use http::{HeaderValue, Request, Response, StatusCode};
use redis::aio::MultiplexedConnection;
use tokio::time::sleep;
use tower::service_fn;

use super::{Contender, Side};
use crate::redis_server::connection;
use crate::users::user;

const INTERVAL: Duration = Duration::from_millis(50);

const SHARDS: usize = 64;

/// The counts of a key.
#[derive(Clone, Copy, Default)]
struct Count {
    /// The total of all processes in the last report.
    known: u64,
    /// The requests of this process since then.
    pending: u64,
}

struct Counts {
    shards: [Shard; SHARDS],
    hasher: RandomState,
}

type Shard = Mutex<HashMap<String, Count>>;

impl Counts {
    fn shard(&self, key: &str) -> &Shard {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// Returns what is left, if one more is allowed.
    fn count(&self, key: &str, most: u64) -> Option<u64> {
        let mut shard = self.shard(key).lock().expect("no thread panics");
        if !shard.contains_key(key) {
            shard.insert(key.to_owned(), Count::default());
        }
        let count = shard.get_mut(key)?;
        let left = most.checked_sub(count.known + count.pending + 1)?;
        count.pending += 1;
        Some(left)
    }

    async fn report(&self, connection: &mut MultiplexedConnection, period: Duration) {
        for shard in &self.shards {
            let pending: Vec<_> = {
                let mut shard = shard.lock().expect("no thread panics");
                let changed = shard.iter_mut().filter(|(_, count)| count.pending > 0);
                changed
                    .map(|(key, count)| (key.clone(), take(&mut count.pending)))
                    .collect()
            };
            if pending.is_empty() {
                continue;
            }
            let mut calls = redis::pipe();
            for (key, count) in &pending {
                calls.cmd("INCRBY").arg(key).arg(count);
                calls.cmd("PEXPIRE").arg(key);
                calls.arg(period.as_millis() as u64).arg("NX").ignore();
            }
            let totals: Vec<u64> = calls.query_async(connection).await.expect("Redis answers");
            let mut shard = shard.lock().expect("no thread panics");
            for ((key, _), total) in pending.iter().zip(totals) {
                if let Some(count) = shard.get_mut(key) {
                    count.known = total;
                }
            }
        }
    }
}

async fn report_to(mut connection: MultiplexedConnection, counts: Weak<Counts>, period: Duration) {
    while let Some(counts) = counts.upgrade() {
        counts.report(&mut connection, period).await;
        drop(counts);
        sleep(INTERVAL).await;
    }
}

pub(super) fn by_hand() -> Contender {
    let name = "by hand, INCRBY every 50 ms";
    Contender::new(Side::Reporter, name, |setup| async move {
        let most = u64::from(setup.allowance.burst);
        let period = Duration::from_millis(setup.allowance.every_ms.into());
        let period = period.saturating_mul(setup.allowance.burst);
        let counts = Arc::new(Counts {
            shards: std::array::from_fn(|_| Shard::default()),
            hasher: RandomState::new(),
        });
        let connection = connection(&setup.redis_url).await;
        tokio::spawn(report_to(connection, Arc::downgrade(&counts), period));
        service_fn(move |request: Request<Body>| {
            let key = user(request.headers()).unwrap_or_default();
            let left = counts.count(key, most);
            async move {
                let mut response = Response::new(Body::empty());
                if left.is_none() {
                    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                }
                let left = HeaderValue::from(left.unwrap_or(0));
                response.headers_mut().insert("x-ratelimit-remaining", left);
                Ok(response)
            }
        })
    })
}

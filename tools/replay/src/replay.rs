//! Runs checks one after another, on a clock set to their times.

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate::clock::ManualClock;
use tollgate::store::{Change, Group, Operation};
use tollgate::{Check, Decision, Limit, MemoryStore, RateLimiter, RedisStore};

use crate::limit::WireLimit;
use crate::options::StoreKind;
use crate::request::{Op, Request};

pub(crate) struct Replay {
    limits: Vec<Limit>,
    clock: ManualClock,
    limiter: RateLimiter,
}

impl Replay {
    pub(crate) async fn start(
        limits: Vec<Limit>,
        store: &StoreKind,
    ) -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::new();
        let limiter = match store {
            StoreKind::Memory => RateLimiter::new(MemoryStore::with_clock(clock.clone())),
            StoreKind::Redis(url) => RateLimiter::new(connect(url, &clock).await?),
        };
        Ok(Self {
            limits,
            clock,
            limiter,
        })
    }

    /// The limits that are in force.
    pub(crate) fn limits(&self) -> &[Limit] {
        &self.limits
    }

    pub(crate) async fn decide(&mut self, request: &Request) -> Result<Decision, Box<dyn Error>> {
        if let Some(WireLimit(limit)) = &request.limit {
            replace(&mut self.limits, limit)?;
        }
        self.clock.set(Duration::from_micros(request.at_us));
        let group = Group::new(self.checks(request))?;
        let change = match request.op {
            Op::Charge => return Ok(self.limiter.apply(Operation::Charge(group)).await?),
            Op::Peek => return Ok(self.limiter.apply(Operation::Peek(group)).await?),
            Op::Refund => Change::Settle {
                receipt: request.receipt(),
                cost: request.receipt().cost().saturating_sub(request.cost),
            },
            Op::Settle => Change::Settle {
                receipt: request.receipt(),
                cost: request.cost,
            },
            Op::Reset => Change::Reset,
            Op::Block => Change::Block(Duration::from_micros(request.block_us)),
        };
        let mut verdicts = Vec::new();
        for check in &group {
            let operation = Operation::Change(check.budget().clone(), change.clone());
            let changed = self.limiter.apply(operation).await?;
            verdicts.extend_from_slice(changed.verdicts());
        }
        Decision::of_group(verdicts).ok_or_else(|| "there is no --limit".into())
    }

    fn checks(&self, request: &Request) -> Vec<Check> {
        let max_wait = Duration::from_micros(request.max_wait_us);
        let limits = self.limits.iter();
        let check = |limit| Check::new(limit, &*request.key).with_cost(request.cost);
        limits
            .map(|limit| check(limit).with_max_wait(max_wait))
            .collect()
    }
}

/// Replaces the limit of the same name.
fn replace(limits: &mut [Limit], limit: &Limit) -> Result<(), String> {
    let place = limits.iter_mut().find(|known| known.name() == limit.name());
    let place = place.ok_or_else(|| {
        format!(
            "no --limit has the name `{}`, so there is none to change",
            limit.name()
        )
    })?;
    *place = limit.clone();
    Ok(())
}

async fn connect(url: &str, clock: &ManualClock) -> Result<RedisStore, Box<dyn Error>> {
    // Keys of an earlier run must not count.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let prefix = format!("replay-{}-{}", std::process::id(), now.as_micros());
    let builder = RedisStore::builder(prefix).url(url).clock(clock.clone());
    Ok(builder.deadline(Duration::from_secs(5)).connect().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(name: &str, per_second: u64) -> Limit {
        Limit::gcra(name, tollgate::Quota::per_second(per_second)).unwrap()
    }

    #[test]
    fn limit_replaces_the_one_of_its_name() {
        let mut limits = [limit("a", 1), limit("b", 2)];
        replace(&mut limits, &limit("b", 3)).unwrap();
        assert_eq!(limits, [limit("a", 1), limit("b", 3)]);
        let error = replace(&mut limits, &limit("c", 4)).unwrap_err();
        assert!(error.contains("no --limit has the name `c`"), "{error}");
        assert_eq!(limits, [limit("a", 1), limit("b", 3)]);
    }
}

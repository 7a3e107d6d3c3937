//! Several limits on the same requests, in virtual time, and what is counted of them.

use std::collections::{BTreeMap, HashMap};

use std::time::Duration;

use tollgate::clock::ManualClock;
use tollgate::{Key, Limit, MemoryStore, RateLimiter};

use crate::limit::LimitSpec;

pub(super) const MINUTE: u64 = 60_000_000;

/// A limit with a store of its own, on a clock set by hand.
pub(super) struct Simulation {
    pub(super) spec: LimitSpec,
    limit: Limit,
    limiter: RateLimiter,
    clock: ManualClock,
}

impl Simulation {
    pub(super) fn new(spec: &LimitSpec) -> anyhow::Result<Self> {
        let (limit, clock) = (spec.limit("replay")?, ManualClock::new());
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()));
        Ok(Self {
            spec: spec.clone(),
            limit,
            limiter,
            clock,
        })
    }

    /// Returns whether a request at a time is allowed.
    pub(super) async fn allows(&self, at_us: u64, key: &Key) -> anyhow::Result<bool> {
        self.clock.set(Duration::from_micros(at_us));
        Ok(self.limiter.check(&self.limit, key).await?.allowed())
    }
}

/// The counts of a key.
pub(super) struct OfKey {
    pub(super) name: Box<str>,
    pub(super) requests: u64,
    /// By limit.
    pub(super) denied: Box<[u64]>,
}

/// The counts of a minute.
#[derive(Clone)]
pub(super) struct OfMinute {
    pub(super) requests: u64,
    /// By limit.
    pub(super) denied: Box<[u64]>,
}

pub(super) struct Comparison {
    pub(super) simulations: Vec<Simulation>,
    pub(super) keys: HashMap<Key, OfKey>,
    /// By the minute since the Unix epoch.
    pub(super) minutes: BTreeMap<u64, OfMinute>,
    /// The minute of the last request, which most often is that of the next one.
    current: (u64, OfMinute),
    pub(super) first_us: u64,
    pub(super) last_us: u64,
    requests: u64,
}

impl Comparison {
    pub(super) fn new(limits: &[LimitSpec]) -> anyhow::Result<Self> {
        let simulations: anyhow::Result<Vec<_>> = limits.iter().map(Simulation::new).collect();
        let nothing = OfMinute {
            requests: 0,
            denied: vec![0; limits.len()].into(),
        };
        Ok(Self {
            simulations: simulations?,
            keys: HashMap::new(),
            minutes: BTreeMap::new(),
            current: (0, nothing),
            first_us: 0,
            last_us: 0,
            requests: 0,
        })
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// Asks every limit. Times never step back.
    pub(super) async fn check(&mut self, at_us: u64, key: &Key, name: &str) -> anyhow::Result<()> {
        if self.requests == 0 {
            self.first_us = at_us;
        }
        self.last_us = at_us;
        self.requests += 1;
        let minute = at_us / MINUTE;
        if minute != self.current.0 {
            self.end_minute();
            self.current.0 = minute;
        }
        // An entry would copy the key of every request.
        if !self.keys.contains_key(key) {
            let denied = vec![0; self.simulations.len()].into();
            self.keys.insert(
                key.clone(),
                OfKey {
                    name: name.into(),
                    requests: 0,
                    denied,
                },
            );
        }
        let Some(of_key) = self.keys.get_mut(key) else {
            return Ok(());
        };
        of_key.requests += 1;
        let of_minute = &mut self.current.1;
        of_minute.requests += 1;
        for (number, simulation) in self.simulations.iter().enumerate() {
            if !simulation.allows(at_us, key).await? {
                of_key.denied[number] += 1;
                of_minute.denied[number] += 1;
            }
        }
        Ok(())
    }

    /// Keeps what was counted of the current minute.
    pub(super) fn end_minute(&mut self) {
        let (minute, counted) = &mut self.current;
        if counted.requests > 0 {
            self.minutes.insert(*minute, counted.clone());
            counted.requests = 0;
            counted.denied.fill(0);
        }
    }
}

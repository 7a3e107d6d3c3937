//! The settings of `Prefetch`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;

use super::stock::MIN_BLOCK;
use super::{Prefetch, SHARDS, SharedBlocks};
use crate::algorithm::Rule;
use crate::model::Limit;
use crate::store::Store;
use crate::units::ConfigError;

/// Short, so that a key that cools down soon gives its units back.
const DEFAULT_MAX_AGE: Duration = Duration::from_millis(250);

const MIN_MAX_AGE: Duration = Duration::from_millis(50);

const MAX_MAX_AGE: Duration = Duration::from_secs(10);

/// The default block is at most the capacity divided by this.
const DEFAULT_PART: u64 = 10;

/// The settings of [`Prefetch`].
#[must_use = "a builder does nothing until the store is built"]
pub struct PrefetchBuilder<S> {
    store: S,
    /// Each limit with its largest block, if that is set.
    limits: Vec<(Limit, Option<u64>)>,
    max_age: Duration,
}

impl<S: Store> PrefetchBuilder<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            store,
            limits: Vec::new(),
            max_age: DEFAULT_MAX_AGE,
        }
    }

    /// Prefetches units of hot keys under this limit, in blocks of at most a tenth of its capacity.
    pub fn limit(mut self, limit: &Limit) -> Self {
        self.limits.push((limit.clone(), None));
        self
    }

    /// Prefetches units of hot keys under this limit, in blocks of at most `block` units: 8 to the
    /// limit's capacity.
    pub fn limit_up_to(mut self, limit: &Limit, block: u32) -> Self {
        self.limits.push((limit.clone(), Some(block.into())));
        self
    }

    /// Sets how long the units of a key may be spent after the last block was charged. Then the
    /// rest is given back, at most half this time later. Range: 50 ms to 10 s. Default: 250 ms.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// Returns an error if no limit is given, a limit cannot be prefetched, or a number is out of
    /// range.
    pub fn build(self) -> Result<Prefetch<S>, ConfigError> {
        if self.limits.is_empty() {
            return Err(ConfigError::new(
                "no limit is prefetched; name one with `.limit(...)`",
            ));
        }
        if !(MIN_MAX_AGE..=MAX_MAX_AGE).contains(&self.max_age) {
            return Err(ConfigError::new(format!(
                "`max_age` is {:?}; use {MIN_MAX_AGE:?} to {MAX_MAX_AGE:?}",
                self.max_age
            )));
        }
        let mut limits = HashMap::new();
        for (limit, block) in self.limits {
            let max = largest_block(&limit, block).map_err(|error| error.of_limit(limit.name()))?;
            let name = limit.name().to_owned();
            if limits.insert(name, (limit.clone(), max)).is_some() {
                return Err(ConfigError::new("the limit is named twice; name it once")
                    .of_limit(limit.name()));
            }
        }
        Ok(Prefetch {
            shared: Arc::new(SharedBlocks {
                store: Arc::new(self.store),
                limits,
                max_age: self.max_age,
                hasher: DefaultHashBuilder::default(),
                shards: (0..SHARDS).map(|_| Default::default()).collect(),
                has_reaper: AtomicBool::new(false),
            }),
        })
    }
}

fn largest_block(limit: &Limit, block: Option<u64>) -> Result<u64, ConfigError> {
    if limit.blocking().is_some() {
        return Err(ConfigError::new(
            "it blocks keys, and a blocked key could spend its prefetched units; remove \
             `with_block_policy`, or do not prefetch it",
        ));
    }
    if limit.is_asynchronous() {
        return Err(ConfigError::new(
            "it is asynchronous, so this process decides it already; do not prefetch it",
        ));
    }
    match limit.rule() {
        Rule::Concurrency(_) => {
            return Err(ConfigError::new(
                "the permits of a concurrency limit are not units; do not prefetch it",
            ));
        }
        Rule::SlidingLog(_) => {
            return Err(ConfigError::new(
                "a sliding log is exact, and prefetching would break that; use another algorithm, \
                 or do not prefetch it",
            ));
        }
        Rule::Bucket(rule) if rule.queues() => {
            return Err(ConfigError::new(
                "a leaky bucket lets checks leave one by one, and prefetching would let a block \
                 leave at once; use `leaky_bucket_meter`, or do not prefetch it",
            ));
        }
        _ => {}
    }
    let capacity = limit.quota().capacity();
    let max = block.unwrap_or(capacity / DEFAULT_PART);
    if max < MIN_BLOCK || max > capacity {
        return Err(ConfigError::new(format!(
            "the block is {max} units; use {MIN_BLOCK} to the capacity of {capacity} with \
             `limit_up_to`, or do not prefetch a limit as small as this"
        )));
    }
    Ok(max)
}

impl<S: fmt::Debug> fmt::Debug for PrefetchBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefetchBuilder")
            .field("store", &self.store)
            .field("max_age", &self.max_age)
            .finish_non_exhaustive()
    }
}

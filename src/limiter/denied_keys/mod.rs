//! The keys that are denied most often.

mod report;
mod shard;
mod summary;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, mem};

use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;

use self::shard::SketchShard;
pub use self::summary::{DeniedKey, DeniedSummary};
use crate::model::{Decision, DigestSecret, Group, Key, Source};
use crate::store::{Note, Store};
use crate::units::{ConfigError, Mutex};

/// A power of two. Keys are spread over so many sketches, so that threads rarely wait for each
/// other.
const SHARDS: usize = 16;

/// The keys that an event names.
const IN_EVENT: usize = 10;

/// The keys that a limiter denies most often, counted in this process. You may look at these
/// clients, or [block](crate::RateLimiter::block) them.
///
/// It is off until a limiter [counts](crate::RateLimiterBuilder::count_denied_keys) with it. Then
/// the event `most denied keys` names the first ten, once in each minute with a denial, and
/// [`current`](Self::current) and [`previous`](Self::previous) return more. Metrics cannot do this:
/// a key is not a label.
///
/// ```
/// use tollgate::denied_keys::DeniedKeys;
/// use tollgate::{Key, Limit, MemoryStore, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let denied = DeniedKeys::new();
/// let limiter = RateLimiter::builder(MemoryStore::new()).count_denied_keys(&denied).build()?;
///
/// let login = Limit::gcra("login", Quota::per_minute(1))?;
/// for _ in 0..4 {
///     limiter.check(&login, &Key::new("mallory")).await?;
/// }
/// let summary = denied.current();
/// assert_eq!(summary.denials(), 3);
/// let first = &summary.keys()[0];
/// assert_eq!((first.limit_name(), first.key(), first.denials()), ("login", "mallory", 3));
/// # Ok(())
/// # }
/// ```
///
/// # Bounds
///
/// It needs at most 1,024 counters, whatever clients send: about 200 KB. Up to about 600 different
/// keys in a period, every count is exact. With more, the count of a key may be too large, by at
/// most [`overcount`](DeniedKey::overcount). The keys are divided into 16 shards. A key with more
/// than 1/64 of the denials of its shard is always found.
///
/// If there are more than 65,536 denials in a period, a growing part is left out at random, and the
/// others count for them. Of ten million denials, 97 % are left out. The count of a key with a
/// hundredth of them is then wrong by about 4 %.
///
/// Denials of a limit in shadow mode do not count, nor do requests that are rejected because the
/// store is unavailable.
///
/// # Privacy
///
/// Keys are often personal data, such as addresses and names. [`hashed`](Self::hashed) returns
/// digests in their place, also to `tollgate top`. [`in_this_process`](Self::in_this_process) keeps
/// them out of Redis.
#[derive(Clone)]
pub struct DeniedKeys {
    shared: Arc<SharedCounts>,
}

struct SharedCounts {
    secret: Option<DigestSecret>,
    hasher: DefaultHashBuilder,
    /// When the period started, and the summary of the one before.
    period: Mutex<(Instant, DeniedSummary)>,
    shards: [Mutex<SketchShard>; SHARDS],
    /// `true` if a task waits for the end of the period.
    report_is_due: AtomicBool,
    /// The stores of the limiters that count here. A single one gets the keys of each period.
    stores: Mutex<Vec<Weak<dyn Store>>>,
    stays_in_process: AtomicBool,
}

impl DeniedKeys {
    /// Notes the keys to a store, at the end of each period, if it is the only one.
    pub(super) fn note_to(&self, store: &Arc<dyn Store>) {
        self.shared.stores.lock().push(Arc::downgrade(store));
    }

    /// Counts keys as they are.
    #[must_use]
    pub fn new() -> Self {
        Self::build(None)
    }

    /// Shows digests in place of keys, the first 16 bytes of an HMAC-SHA256 of the limit's name and
    /// the key, in hexadecimal. They are the same on all replicas with this secret, and equal the
    /// partition keys of `RateLimitLayer::partition_key` with it.
    ///
    /// # Errors
    ///
    /// Returns an error if the secret has fewer than 16 bytes.
    pub fn hashed(secret: impl AsRef<[u8]>) -> Result<Self, ConfigError> {
        Ok(Self::build(Some(DigestSecret::new(
            "DeniedKeys::hashed",
            secret.as_ref(),
        )?)))
    }

    /// Keeps the keys in this process. By default, the first 64 keys of each minute are written to
    /// Redis, and `tollgate top` adds up the keys of all replicas. Redis keeps the 256 most denied
    /// keys of a minute, for 65 minutes, under `prefix:denied:MINUTE`. If several limiters count
    /// here, their keys are not written, because each limiter may have another Redis.
    #[must_use]
    pub fn in_this_process(self) -> Self {
        self.shared.stays_in_process.store(true, Ordering::Relaxed);
        self
    }

    fn build(secret: Option<DigestSecret>) -> Self {
        let period = (Instant::now(), DeniedSummary::default());
        let shards = std::array::from_fn(|_| Mutex::default());
        let hasher = DefaultHashBuilder::default();
        let period = Mutex::new(period);
        Self {
            shared: Arc::new(SharedCounts {
                secret,
                hasher,
                period,
                shards,
                report_is_due: AtomicBool::new(false),
                stores: Mutex::default(),
                stays_in_process: AtomicBool::new(false),
            }),
        }
    }

    /// The summary of the period that has begun. It is at most a minute old.
    #[must_use]
    pub fn current(&self) -> DeniedSummary {
        let shared = &self.shared;
        let started = shared.period.lock().0;
        shared.summary(started.elapsed(), |shard, add| add(&shard.lock()))
    }

    /// The summary of the last period that has ended, which the last event reported.
    #[must_use]
    pub fn previous(&self) -> DeniedSummary {
        self.shared.period.lock().1.clone()
    }

    /// Counts the denials of a group.
    pub(super) fn count(&self, group: &Group, decision: &Decision) {
        if decision.source() == Source::FailClosed {
            return;
        }
        for (check, verdict) in group.iter().zip(decision.verdicts()) {
            if !verdict.allowed() {
                self.count_one(check.limit().name(), check.key());
            }
        }
    }

    /// Counts one denial.
    pub(super) fn count_one(&self, limit: &str, key: &Key) {
        let shared = &self.shared;
        SharedCounts::report(shared);
        let hash = shared.hasher.hash_one((limit, key.as_str()));
        let random = |number: u64| shared.hasher.hash_one(number);
        shared.shards[hash as usize % SHARDS]
            .lock()
            .count(hash, limit, key, random);
    }
}

impl SharedCounts {
    /// Has the store pass the keys of a period on.
    fn publish(&self, ended: &DeniedSummary) {
        if self.stays_in_process.load(Ordering::Relaxed) {
            return;
        }
        let only = match &**self.stores.lock() {
            [only] => only.upgrade(),
            _ => None,
        };
        if let Some(store) = only {
            let keys = ended.keys().iter();
            let keys: Vec<_> = keys
                .map(|it| (it.limit_name(), it.key(), it.denials()))
                .collect();
            store.note(Note::Denied(&keys));
        }
    }

    /// Ends the period, and begins another.
    fn next_period(&self) -> DeniedSummary {
        let mut period = self.period.lock();
        let ended = self.summary(period.0.elapsed(), |shard, add| {
            let shard = mem::take(&mut *shard.lock());
            add(&shard);
        });
        *period = (Instant::now(), ended.clone());
        ended
    }

    /// Sums up the shards. `each` passes on what is in one of them.
    fn summary(
        &self,
        period: Duration,
        mut each: impl FnMut(&Mutex<SketchShard>, &mut dyn FnMut(&SketchShard)),
    ) -> DeniedSummary {
        let mut summary = DeniedSummary::new(period);
        for shard in &self.shards {
            each(shard, &mut |shard| {
                summary.denials += shard.denials();
                for counter in shard.counted() {
                    let key = match &self.secret {
                        Some(secret) => secret
                            .digest(&counter.limit, counter.key.as_str())
                            .to_string(),
                        None => counter.key.as_str().to_owned(),
                    };
                    let key = DeniedKey::new(&counter.limit, key, counter.count, counter.error);
                    summary.keys.push(key);
                }
            });
        }
        summary.sort();
        summary
    }
}

impl Default for DeniedKeys {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for DeniedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeniedKeys")
            .field("is_hashed", &self.shared.secret.is_some())
            .finish_non_exhaustive()
    }
}

//! The permits of a store: what it grants to the holders of requests in flight.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::permits::{self, MAX_PERMITS};
use crate::nouns::{Error, HolderId, Key, Micros};

/// More permits than any process is granted.
const MAX_COUNT: u64 = 1 << 52;

/// Longer than a process runs.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// The permits that a store grants, for [concurrency limits](crate::Limit::concurrency): see
/// [`Store::permits`](crate::store::Store::permits).
#[derive(Clone, Debug)]
pub struct Permits(Arc<dyn PermitStore>);

impl Permits {
    #[doc(hidden)]
    pub fn new(store: impl PermitStore) -> Self {
        Self(Arc::new(store))
    }

    pub(crate) fn of_shared(store: Arc<dyn PermitStore>) -> Self {
        Self(store)
    }

    pub(crate) fn into_store(self) -> Arc<dyn PermitStore> {
        self.0
    }
}

#[doc(hidden)]
impl PermitStore for Permits {
    fn claim(&self, claims: Vec<Claim>) -> Claimed {
        self.0.claim(claims)
    }

    fn parts(&self) -> usize {
        self.0.parts()
    }

    fn part(&self, key: &Key) -> usize {
        self.0.part(key)
    }

    fn embedded(&self) -> Option<&dyn EmbeddedPermits> {
        self.0.embedded()
    }
}

/// A claim of a holder of permits: one process, for one key under one limit. See [`PermitStore`].
///
/// `granted` and `released` count from the start of the holder, and only grow. So a claim can be lost or repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The limit's name.
    pub name: Arc<str>,
    /// The key.
    pub key: Key,
    /// The holder.
    pub holder: HolderId,
    /// The permits granted so far, as far as the holder knows.
    pub granted: u64,
    /// The released permits of these.
    pub released: u64,
    /// The places that it needs in the queue of the key.
    pub waiting: u32,
    /// Permits to grant only if they are free and the queue is empty.
    pub at_once: u32,
    /// The most permits of the key, of all holders: at most 1,000,000.
    pub limit: u32,
    /// How long all of this counts without a further claim. At most ten years, and on Redis 10 minutes.
    pub lease: Duration,
}

impl Claim {
    /// Creates a claim of a holder that has nothing and wants nothing.
    #[must_use]
    pub fn new(name: Arc<str>, key: Key, holder: HolderId, limit: u32, lease: Duration) -> Self {
        Self {
            name,
            key,
            holder,
            granted: 0,
            released: 0,
            waiting: 0,
            at_once: 0,
            limit,
            lease,
        }
    }

    /// The numbers.
    pub(crate) fn numbers(&self) -> permits::Claim {
        let Self {
            holder,
            waiting,
            at_once,
            ..
        } = *self;
        let limit = self.limit.min(MAX_PERMITS);
        // Within exact arithmetic.
        let [granted, released] = [self.granted, self.released].map(|it| it.min(MAX_COUNT));
        let lease = Micros::try_from(self.lease.min(MAX_LEASE).as_micros()).unwrap_or(0);
        permits::Claim {
            holder,
            granted,
            released,
            waiting,
            at_once,
            limit,
            lease,
        }
    }
}

/// The permits of each claim: so many were granted to its holder since it began. A part of a store may be unavailable.
pub type Claimed = Pin<Box<dyn Future<Output = Vec<Result<u64, Error>>> + Send>>;

/// A store of the permits of concurrency limits, such as [`MemoryStore`](crate::MemoryStore) and `RedisStore`.
///
/// A holder sends its whole state in each [claim](Claim), and gets the number of permits that were granted to it so far. Permits
/// that are not renewed within a lease count as released.
pub trait PermitStore: fmt::Debug + Send + Sync + 'static {
    /// Applies claims, and returns a result for each, in their order. No two are of one key under one name.
    ///
    /// The future must end: a limiter gives up a call that takes longer than a third of a lease, and repeats it. An
    /// [unavailable](Error::is_unavailable) error leaves the decision to the limit's failure policy, and any other error
    /// is the caller's.
    ///
    /// A claim first gives back what its holder has released, and sets its places in the queue to `waiting`. Then the queue
    /// is served while permits are free, in the order in which holders entered it, and after that `at_once`.
    fn claim(&self, claims: Vec<Claim>) -> Claimed;

    /// The number of parts that keep permits. Default: 1. The claims of one call are of one part. So a part that hangs, such
    /// as a master of a cluster, does not delay the answers of others.
    fn parts(&self) -> usize {
        1
    }

    /// The part that keeps the permits of a key, below [`parts`](Self::parts). Default: 0.
    fn part(&self, key: &Key) -> usize {
        let _ = key;
        0
    }

    /// The store, if it answers at once. Default: `None`.
    fn embedded(&self) -> Option<&dyn EmbeddedPermits> {
        None
    }
}

/// A [`PermitStore`] that is part of this process: it answers at once, and is never unavailable.
pub trait EmbeddedPermits: Send + Sync {
    /// Applies a claim, and returns the permits that were granted to its holder since it began.
    ///
    /// An agent of a limiter is locked meanwhile: this must not call it, and must not block.
    fn claim_now(&self, claim: &Claim) -> u64;
}

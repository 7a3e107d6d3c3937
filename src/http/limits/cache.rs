//! The cache of a look-up: bounded, one look-up in flight for each id, and old values while
//! look-ups fail.

use std::collections::HashMap;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_core::future::BoxFuture;
use quick_cache::sync::Cache as Entries;
use tokio::runtime::Handle as Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, timeout, timeout_at};

use super::LookupResult;
use crate::nouns::later;
#[cfg(feature = "redis")]
use crate::store::{Announcement, RedisChannel};
use crate::telemetry::{self, Throttle};

/// A failed look-up is not repeated sooner.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) type Fetch<I, T> =
    Arc<dyn Fn(I) -> BoxFuture<'static, Result<Option<T>, String>> + Send + Sync>;

#[derive(Clone, Copy, Debug)]
pub(super) struct CacheSettings {
    pub(super) capacity: usize,
    pub(super) ttl: Duration,
    pub(super) unknown_ttl: Duration,
    pub(super) stale_for: Duration,
    pub(super) patience: Duration,
    pub(super) timeout: Duration,
    pub(super) max_in_flight: usize,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            capacity: 10_000,
            ttl: Duration::from_secs(60),
            unknown_ttl: Duration::from_secs(10),
            stale_for: Duration::from_secs(60 * 60),
            patience: Duration::from_millis(50),
            timeout: Duration::from_millis(500),
            max_in_flight: 64,
        }
    }
}

/// The result of a look-up, as the cache keeps it.
pub(super) enum KnownValue<T> {
    Value(Arc<T>),
    Unknown,
    Failed,
}

impl<T> Clone for KnownValue<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Value(value) => Self::Value(Arc::clone(value)),
            Self::Unknown => Self::Unknown,
            Self::Failed => Self::Failed,
        }
    }
}

impl<T> KnownValue<T> {
    pub(super) fn as_result(&self) -> LookupResult<'_, T> {
        match self {
            Self::Value(value) => LookupResult::Known(value),
            Self::Unknown => LookupResult::Unknown,
            Self::Failed => LookupResult::Failed,
        }
    }
}

struct CachedValue<T> {
    known: KnownValue<T>,
    /// The number of the look-up that found it.
    flight: u64,
    fresh_until: Instant,
    stale_until: Instant,
}

impl<T> Clone for CachedValue<T> {
    fn clone(&self) -> Self {
        Self {
            known: self.known.clone(),
            ..*self
        }
    }
}

/// A look-up in flight.
struct LookUpInFlight<T> {
    number: u64,
    started: Instant,
    /// `None` until it ends.
    ended: watch::Receiver<Option<KnownValue<T>>>,
}

impl<T> Clone for LookUpInFlight<T> {
    fn clone(&self) -> Self {
        Self {
            number: self.number,
            started: self.started,
            ended: self.ended.clone(),
        }
    }
}

pub(super) struct Cache<I, T> {
    pub(super) settings: CacheSettings,
    fetch: Fetch<I, T>,
    entries: Entries<I, CachedValue<T>>,
    flights: Mutex<HashMap<I, LookUpInFlight<T>>>,
    next_flight: AtomicU64,
    /// The values of look-ups with a lower number may have changed since.
    doubtful_below: AtomicU64,
    followed: Followers,
    permits: Arc<Semaphore>,
    events: Throttle,
    /// The throttle of events about announcements without an id.
    unknown_ids: Throttle,
}

impl<I, T> Cache<I, T>
where
    I: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    pub(super) fn new(fetch: Fetch<I, T>, settings: CacheSettings) -> Self {
        Self {
            fetch,
            entries: Entries::new(settings.capacity.max(1)),
            flights: Mutex::default(),
            next_flight: AtomicU64::new(1),
            doubtful_below: AtomicU64::new(0),
            followed: Followers::default(),
            permits: Arc::new(Semaphore::new(
                settings.max_in_flight.min(Semaphore::MAX_PERMITS),
            )),
            events: Throttle::default(),
            unknown_ids: Throttle::default(),
            settings,
        }
    }

    /// An empty cache with other settings.
    pub(super) fn rebuilt(&self, settings: CacheSettings) -> Self {
        Self::new(Arc::clone(&self.fetch), settings)
    }

    /// The known result, if it is fresh.
    pub(super) fn fresh(&self, id: &I) -> Option<KnownValue<T>> {
        let entry = self.entries.get(id)?;
        let is_doubtful = entry.flight < self.doubtful_below.load(Ordering::Relaxed);
        (!is_doubtful && Instant::now() < entry.fresh_until).then_some(entry.known)
    }

    /// Marks all values as stale. They stay usable while look-ups fail, are slow, or are too many.
    pub(super) fn expire_all(&self) {
        let next = self.next_flight.load(Ordering::Relaxed);
        self.doubtful_below.fetch_max(next, Ordering::Relaxed);
    }

    pub(super) fn forget(&self, id: &I) {
        // A look-up that started before may find the old value. It is not kept then.
        let mut flights = self.flights();
        flights.remove(id);
        self.entries.remove(id);
    }

    pub(super) async fn find(self: &Arc<Self>, id: I) -> KnownValue<T> {
        let now = Instant::now();
        let stale = self
            .entries
            .get(&id)
            .filter(|entry| now < entry.stale_until);
        let patience = match stale {
            Some(_) => self.settings.patience,
            None => self.settings.timeout,
        };
        let found = match self.flight(id) {
            Some(mut flight) => {
                let deadline = later(flight.started, patience);
                let ended = timeout_at(deadline, flight.ended.wait_for(Option::is_some)).await;
                // The look-up panicked if its sender is gone.
                ended.ok().and_then(|ended| ended.ok()?.clone())
            }
            None => None,
        };
        match (found, stale) {
            (Some(KnownValue::Failed) | None, Some(stale)) => stale.known,
            (Some(found), _) => found,
            (None, None) => KnownValue::Failed,
        }
    }

    /// The look-up of an id that is in flight, or that starts now. `None` if too many are in
    /// flight.
    fn flight(self: &Arc<Self>, id: I) -> Option<LookUpInFlight<T>> {
        let mut flights = self.flights();
        if let Some(flight) = flights.get(&id) {
            return Some(flight.clone());
        }
        if let Some(known) = self.fresh(&id) {
            // It ended just now.
            let (_, ended) = watch::channel(Some(known));
            return Some(LookUpInFlight {
                number: 0,
                started: Instant::now(),
                ended,
            });
        }
        let Ok(runtime) = Runtime::try_current() else {
            telemetry::lookup_failed(&self.events, "there is no tokio runtime");
            return None;
        };
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            telemetry::lookup_failed(&self.events, "too many look-ups are in flight");
            return None;
        };
        let (sender, ended) = watch::channel(None);
        let number = self.next_flight.fetch_add(1, Ordering::Relaxed);
        let flight = LookUpInFlight {
            number,
            started: Instant::now(),
            ended,
        };
        flights.insert(id.clone(), flight.clone());
        drop(flights);
        let cache = Arc::clone(self);
        let number = flight.number;
        let guard = LookupGuard {
            cache,
            id,
            number,
            known: None,
            _permit: permit,
        };
        runtime.spawn(async move { guard.run(sender).await });
        Some(flight)
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<I, LookUpInFlight<T>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self, id: I) -> KnownValue<T> {
        let error = match timeout(self.settings.timeout, (self.fetch)(id)).await {
            Ok(Ok(Some(value))) => return KnownValue::Value(Arc::new(value)),
            Ok(Ok(None)) => return KnownValue::Unknown,
            Ok(Err(error)) => error,
            Err(_) => format!("no answer within {:?}", self.settings.timeout),
        };
        telemetry::lookup_failed(&self.events, &error);
        KnownValue::Failed
    }

    /// Keeps a result. After a failure, an old value stays, and is used for a while without a
    /// look-up.
    fn store(&self, id: I, flight: u64, known: KnownValue<T>) {
        let now = Instant::now();
        let settings = &self.settings;
        let fresh_for = |ttl: Duration, known: KnownValue<T>| {
            let fresh_until = later(now, ttl);
            let stale_until = later(fresh_until, settings.stale_for);
            CachedValue {
                known,
                flight,
                fresh_until,
                stale_until,
            }
        };
        let entry = match known {
            KnownValue::Value(_) => fresh_for(settings.ttl, known),
            KnownValue::Unknown => fresh_for(settings.unknown_ttl, known),
            KnownValue::Failed => match self.entries.get(&id).filter(|old| now < old.stale_until) {
                Some(old) => {
                    let fresh_until = later(now, PAUSE).min(old.stale_until);
                    CachedValue {
                        flight,
                        fresh_until,
                        ..old
                    }
                }
                None => {
                    let fresh_until = later(now, PAUSE);
                    CachedValue {
                        known,
                        flight,
                        fresh_until,
                        stale_until: fresh_until,
                    }
                }
            },
        };
        self.entries.insert(id, entry);
    }
}

/// The tasks that follow announcements of changes. They end with the cache.
#[derive(Default)]
struct Followers(Mutex<Vec<AbortHandle>>);

impl Drop for Followers {
    fn drop(&mut self) {
        let tasks = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(AbortHandle::abort);
    }
}

#[cfg(feature = "redis")]
impl<I, T> Cache<I, T>
where
    I: Clone + Eq + Hash + FromStr + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    /// Starts a task that forgets what changed.
    #[track_caller]
    pub(super) fn follow(self: &Arc<Self>, mut channel: RedisChannel) {
        let cache = Arc::downgrade(self);
        let task = Runtime::current().spawn(async move {
            loop {
                let announcement = channel.next().await;
                let Some(cache) = cache.upgrade() else { return };
                match announcement {
                    Announcement::Any => cache.expire_all(),
                    Announcement::One(id) => match id.parse() {
                        Ok(id) => cache.forget(&id),
                        Err(_) => telemetry::change_not_understood(&cache.unknown_ids, &id),
                    },
                }
                // A channel that always has a message must not keep the worker.
                yield_now().await;
            }
        });
        let mut tasks = self
            .followed
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        tasks.push(task.abort_handle());
    }
}

/// A look-up that ends when this is dropped, whether it succeeds, fails or panics.
struct LookupGuard<I: Eq + Hash + Clone + Send + Sync + 'static, T: Send + Sync + 'static> {
    cache: Arc<Cache<I, T>>,
    id: I,
    number: u64,
    /// `None` until it ends.
    known: Option<KnownValue<T>>,
    _permit: OwnedSemaphorePermit,
}

impl<I: Eq + Hash + Clone + Send + Sync, T: Send + Sync> LookupGuard<I, T> {
    async fn run(mut self, ended: watch::Sender<Option<KnownValue<T>>>) {
        let known = self.cache.fetch(self.id.clone()).await;
        self.known = Some(known.clone());
        // It is kept before the requests that wait for it go on.
        drop(self);
        ended.send_replace(Some(known));
    }

    /// Returns whether the id was not forgotten since the look-up started.
    fn is_current(&self, flights: &HashMap<I, LookUpInFlight<T>>) -> bool {
        flights
            .get(&self.id)
            .is_some_and(|flight| flight.number == self.number)
    }
}

impl<I: Eq + Hash + Clone + Send + Sync, T: Send + Sync> Drop for LookupGuard<I, T> {
    fn drop(&mut self) {
        let known = self.known.take().unwrap_or_else(|| {
            telemetry::lookup_failed(&self.cache.events, "the look-up panicked or was aborted");
            KnownValue::Failed
        });
        let mut flights = self.cache.flights();
        if self.is_current(&flights) {
            self.cache.store(self.id.clone(), self.number, known);
            flights.remove(&self.id);
        }
    }
}

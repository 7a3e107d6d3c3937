//! The cache of a look-up: bounded, one look-up in flight for each id, and old values while
//! look-ups fail.
//!
//! An id that is forgotten while its look-up is in flight is looked up once more when that ends, if
//! anybody asks for it. So an id has one look-up that runs and at most one that waits for it,
//! however often it is forgotten.

use std::collections::HashMap;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_core::future::BoxFuture;
use quick_cache::sync::Cache as Entries;
use tokio::runtime::Handle as Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, timeout, timeout_at};

use super::LookupResult;
use crate::store::{Announcement, Announcements};
use crate::telemetry::{self, Throttle};
use crate::units::{Mutex, later};

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
#[derive(Clone)]
pub(in crate::http) enum KnownValue<V> {
    Value(V),
    Unknown,
    Failed,
}

impl<T> KnownValue<Arc<T>> {
    pub(in crate::http) fn as_result(&self) -> LookupResult<'_, T> {
        match self {
            Self::Value(value) => LookupResult::Known(value),
            Self::Unknown => LookupResult::Unknown,
            Self::Failed => LookupResult::Failed,
        }
    }
}

#[derive(Clone)]
struct CachedValue<V> {
    known: KnownValue<V>,
    /// The number of the look-up that found it.
    flight: u64,
    fresh_until: Instant,
    stale_until: Instant,
}

/// A look-up that runs, or that waits for an earlier one of its id.
#[derive(Clone)]
struct LookUpInFlight<V> {
    number: u64,
    /// When the first request asked for it.
    asked: Instant,
    /// `None` until it ends.
    ended: watch::Receiver<Option<KnownValue<V>>>,
}

/// Tells those that wait for a look-up its result.
type Ended<V> = watch::Sender<Option<KnownValue<V>>>;

impl<V> LookUpInFlight<V> {
    fn new(number: u64) -> (Self, Ended<V>) {
        let (sender, ended) = watch::channel(None);
        let asked = Instant::now();
        (
            Self {
                number,
                asked,
                ended,
            },
            sender,
        )
    }
}

/// The look-ups of one id.
struct LookUpsOfId<V> {
    running: LookUpInFlight<V>,
    /// `true` if the id was forgotten since then. The value that is found may be the old one.
    is_forgotten: bool,
    /// The look-up that runs next.
    next: Option<(LookUpInFlight<V>, Ended<V>)>,
}

pub(super) struct Cache<I, T> {
    pub(super) settings: CacheSettings,
    fetch: Fetch<I, T>,
    entries: Entries<I, CachedValue<Arc<T>>>,
    flights: Mutex<HashMap<I, LookUpsOfId<Arc<T>>>>,
    next_flight: AtomicU64,
    /// The values of look-ups with a lower number may have changed since.
    doubtful_below: AtomicU64,
    /// Tasks that follow announcements of changes. They end with the cache.
    followed: Mutex<Vec<JoinSet<()>>>,
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
            followed: Mutex::default(),
            permits: Arc::new(Semaphore::new(
                settings.max_in_flight.min(Semaphore::MAX_PERMITS),
            )),
            events: Throttle::default(),
            unknown_ids: Throttle::default(),
            settings,
        }
    }

    /// The known result, if it is fresh.
    pub(super) fn fresh(&self, id: &I) -> Option<KnownValue<Arc<T>>> {
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
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get_mut(id) {
            flight.is_forgotten = true;
        }
        self.entries.remove(id);
    }

    pub(super) async fn find(self: &Arc<Self>, id: I) -> KnownValue<Arc<T>> {
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
                let deadline = later(flight.asked, patience);
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

    /// The look-up of an id that is in flight, or that starts now or after it. `None` if too many
    /// are in flight.
    fn flight(self: &Arc<Self>, id: I) -> Option<LookUpInFlight<Arc<T>>> {
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get_mut(&id) {
            if !flight.is_forgotten {
                return Some(flight.running.clone());
            }
            let next = flight
                .next
                .get_or_insert_with(|| LookUpInFlight::new(self.next_number()));
            return Some(next.0.clone());
        }
        if let Some(known) = self.fresh(&id) {
            // It ended just now.
            let (flight, ended) = LookUpInFlight::new(0);
            ended.send_replace(Some(known));
            return Some(flight);
        }
        let Ok(runtime) = Runtime::try_current() else {
            telemetry::lookup_failed(&self.events, "there is no tokio runtime");
            return None;
        };
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            telemetry::lookup_failed(&self.events, "too many look-ups are in flight");
            return None;
        };
        let (running, ended) = LookUpInFlight::new(self.next_number());
        let flight = LookUpsOfId {
            running: running.clone(),
            is_forgotten: false,
            next: None,
        };
        flights.insert(id.clone(), flight);
        drop(flights);
        let guard = LookupGuard {
            cache: Arc::clone(self),
            id,
            known: None,
            permit: Some(permit),
            runtime,
        };
        guard.start(ended);
        Some(running)
    }

    fn next_number(&self) -> u64 {
        self.next_flight.fetch_add(1, Ordering::Relaxed)
    }

    async fn fetch(&self, id: I) -> KnownValue<Arc<T>> {
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
    fn store(&self, id: I, flight: u64, known: KnownValue<Arc<T>>) {
        let now = Instant::now();
        let settings = &self.settings;
        let fresh_for = |ttl: Duration, known: KnownValue<Arc<T>>| {
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

impl<I, T> Cache<I, T>
where
    I: Clone + Eq + Hash + FromStr + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    /// Starts a task that forgets what changed.
    #[track_caller]
    pub(super) fn follow(self: &Arc<Self>, announcements: impl Announcements) {
        let following = Self::forget_announced(Arc::downgrade(self), announcements);
        let mut task = JoinSet::new();
        task.spawn(following);
        self.followed.lock().push(task);
    }

    async fn forget_announced(cache: Weak<Self>, mut announcements: impl Announcements) {
        loop {
            let announcement = announcements.next().await;
            let Some(cache) = cache.upgrade() else { return };
            match announcement {
                Some(Announcement::Any) => cache.expire_all(),
                Some(Announcement::One(id)) => match id.parse() {
                    Ok(id) => cache.forget(&id),
                    Err(_) => telemetry::change_not_understood(&cache.unknown_ids, &id),
                },
                None => {
                    cache.expire_all();
                    telemetry::announcements_ended();
                    return;
                }
            }
            // A source that always has an announcement must not keep the worker.
            yield_now().await;
        }
    }
}

/// A look-up that ends when this is dropped, whether it succeeds, fails or panics.
struct LookupGuard<I: Eq + Hash + Clone + Send + Sync + 'static, T: Send + Sync + 'static> {
    cache: Arc<Cache<I, T>>,
    id: I,
    /// `None` until it ends.
    known: Option<KnownValue<Arc<T>>>,
    /// `None` if it has passed to the next look-up of the id.
    permit: Option<OwnedSemaphorePermit>,
    runtime: Runtime,
}

impl<I: Eq + Hash + Clone + Send + Sync, T: Send + Sync> LookupGuard<I, T> {
    fn start(self, ended: Ended<Arc<T>>) {
        let runtime = self.runtime.clone();
        runtime.spawn(async move { self.run(ended).await });
    }

    async fn run(mut self, ended: Ended<Arc<T>>) {
        let known = self.cache.fetch(self.id.clone()).await;
        self.known = Some(known.clone());
        // It is kept before the requests that wait for it go on.
        drop(self);
        ended.send_replace(Some(known));
    }

    /// Keeps the value, unless it may be an old one. Returns the next look-up of the id, if there
    /// is one.
    fn end(&mut self, known: KnownValue<Arc<T>>) -> Option<Ended<Arc<T>>> {
        let mut flights = self.cache.flights.lock();
        let flight = flights.get_mut(&self.id)?;
        if !flight.is_forgotten {
            let number = flight.running.number;
            self.cache.store(self.id.clone(), number, known);
        }
        let Some((next, ended)) = flight.next.take() else {
            flights.remove(&self.id);
            return None;
        };
        flight.running = next;
        // It begins only now, so those that come from now on have time to wait for it.
        flight.running.asked = Instant::now();
        flight.is_forgotten = false;
        Some(ended)
    }
}

impl<I: Eq + Hash + Clone + Send + Sync, T: Send + Sync> Drop for LookupGuard<I, T> {
    fn drop(&mut self) {
        let known = self.known.take().unwrap_or_else(|| {
            telemetry::lookup_failed(&self.cache.events, "the look-up panicked or was aborted");
            KnownValue::Failed
        });
        if let Some(ended) = self.end(known) {
            let next = Self {
                cache: Arc::clone(&self.cache),
                id: self.id.clone(),
                known: None,
                permit: self.permit.take(),
                runtime: self.runtime.clone(),
            };
            next.start(ended);
        }
    }
}

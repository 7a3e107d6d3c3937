//! Look-ups: what the application knows of a client, such as its plan.

use std::fmt;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use super::cache::{Cache, CacheSettings, Fetch, KnownValue};
use crate::http::fallbacks::{CHOSEN, watched};
use crate::http::key_extractor::{KeyExtractor, MissingKey};
use crate::http::request_fn::RequestFn;
use crate::model::Key;
#[cfg(feature = "redis")]
use crate::store::RedisChannel;
use crate::units::ConfigError;

/// Why a request without an id has no key.
const NO_ID: &str = "the request has no id to look up";

/// An asynchronous look-up with a bounded cache, such as of a user's plan in a database.
///
/// - One look-up is in flight for each id. All requests of the id wait for it. It is a task, so a
///   client that disconnects does not cancel it for others. If the id is forgotten meanwhile, its
///   next look-up starts when this one ends.
/// - A value is fresh for [`ttl`](Self::ttl). An id that the application does not know is also
///   remembered, for [`unknown_ttl`](Self::unknown_ttl).
/// - The first request after that starts a new look-up. If that fails, or takes longer than
///   [`patience`](Self::patience), the old value is used, for up to [`stale_for`](Self::stale_for).
///   A failed look-up is repeated after a second at the earliest.
/// - Without an old value, a request waits for up to [`timeout`](Self::timeout), and then gets
///   [`LookupResult::Failed`](crate::layer::LookupResult::Failed). It also does if
///   [`max_in_flight`](Self::max_in_flight) look-ups of other ids are in flight.
///
/// | setting | default |
/// |---|---|
/// | `capacity` | 10,000 ids |
/// | `ttl` | 60 s |
/// | `unknown_ttl` | 10 s |
/// | `stale_for` | 1 h |
/// | `patience` | 50 ms |
/// | `timeout` | 500 ms |
/// | `max_in_flight` | 64 |
///
/// Each setter makes a new, empty cache. Look-ups need a tokio runtime. Without one they fail.
///
/// ```
/// use http::request::Parts;
/// use tollgate::layer::{ChosenLimits, Lookup, LookupResult};
/// use tollgate::{Check, Limit, Quota, RateLimitLayer, RateLimiter};
///
/// #[derive(Clone, Copy, PartialEq, Eq, Hash)]
/// struct UserId(u64);
///
/// enum Plan { Free, Pro }
///
/// async fn plan_of(user: UserId) -> Result<Option<Plan>, std::io::Error> {
///     // A query, in a real service.
///     Ok(Some(if user.0 == 1 { Plan::Pro } else { Plan::Free }))
/// }
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// // The name is the same, so an upgrade keeps what was used.
/// let free = Limit::token_bucket("api", Quota::per_minute(10))?;
/// let pro = Limit::token_bucket("api", Quota::per_minute(1_000))?;
/// // While the database is away. A name of its own: in the budget of `api`, an account that used
/// // more than this would be locked out.
/// let fallback = Limit::token_bucket("fallback", Quota::per_minute(100))?;
///
/// let user = |request: &Parts| request.extensions.get::<UserId>().copied();
/// let plans = Lookup::new(user, plan_of);
/// let limiter = RateLimiter::in_memory();
/// let layer = RateLimitLayer::from_lookup(&limiter, plans, move |_, user, plan| match plan {
///     LookupResult::Known(Plan::Pro) => Check::new(&pro, user.0).into(),
///     LookupResult::Known(Plan::Free) => Check::new(&free, user.0).into(),
///     LookupResult::Unknown => ChosenLimits::reject("no such account"),
///     _ => Check::new(&fallback, user.0).into(),
/// })?;
/// # let _ = layer;
/// # Ok(())
/// # }
/// ```
pub struct Lookup<I, T> {
    id: RequestFn<Result<I, MissingKey>>,
    cache: Arc<Cache<I, T>>,
}

impl<I, T> Lookup<I, T>
where
    I: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    /// Creates a look-up.
    ///
    /// `id` is a closure that takes an id from a request's head, such as `|request: &Parts|
    /// request.extensions.get::<UserId>().copied()`. For a [key
    /// extractor](crate::key::KeyExtractor) use [`by_key`](Self::by_key). A request without an id
    /// is handled [like one without a key](crate::RateLimitLayer::on_missing_key). `fetch` looks
    /// the id up. `Ok(None)` says that it is not known. An error is reported as an event.
    pub fn new<F, E>(
        id: impl Fn(&Parts) -> Option<I> + Send + Sync + 'static,
        fetch: impl Fn(I) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: fmt::Display,
    {
        let id = move |parts: &Parts| id(parts).ok_or(MissingKey::new(NO_ID));
        Self::of(Arc::new(id), fetch)
    }

    fn of<F, E>(
        id: RequestFn<Result<I, MissingKey>>,
        fetch: impl Fn(I) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: fmt::Display,
    {
        let fetch: Fetch<I, T> = Arc::new(move |id| {
            let fetched = fetch(id);
            Box::pin(async move { fetched.await.map_err(|error| error.to_string()) })
        });
        let cache = Arc::new(Cache::new(fetch, CacheSettings::default()));
        Self { id, cache }
    }

    /// Sets the number of ids in the cache. Default: 10,000. At least 1.
    #[must_use]
    pub fn capacity(self, ids: usize) -> Self {
        self.with(|settings| settings.capacity = ids)
    }

    /// Sets the time for which a value is fresh. Default: 60 s.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|settings| settings.ttl = ttl)
    }

    /// Sets the time for which an unknown id is remembered. Default: 10 s.
    #[must_use]
    pub fn unknown_ttl(self, ttl: Duration) -> Self {
        self.with(|settings| settings.unknown_ttl = ttl)
    }

    /// Sets the time after its `ttl` for which a value is used if a look-up fails or is slow.
    /// Default: 1 h.
    #[must_use]
    pub fn stale_for(self, time: Duration) -> Self {
        self.with(|settings| settings.stale_for = time)
    }

    /// Sets the time for which requests wait for a new look-up if there is an old value. Default:
    /// 50 ms. Zero means that they do not wait, and a later request gets the new value.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        self.with(|settings| settings.patience = patience)
    }

    /// Sets the time after which a look-up has failed. Default: 500 ms. More than zero.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.timeout = timeout)
    }

    /// Sets the most look-ups in flight, so that a flood of ids does not overload the database.
    /// Default: 64. At least 1.
    #[must_use]
    pub fn max_in_flight(self, lookups: usize) -> Self {
        self.with(|settings| settings.max_in_flight = lookups)
    }

    /// Removes an id and its value from the cache. The next request looks it up. Call it when a
    /// plan changes. Other processes have caches of their own. On Redis they can
    /// [`follow`](Self::follow) announcements. With another messaging system, call `forget` for
    /// each message, and [`expire_all`](Self::expire_all) after a lost connection.
    pub fn forget(&self, id: &I) {
        self.cache.forget(id);
    }

    /// Ends the [`ttl`](Self::ttl) of all values. Each id is looked up anew with its next request.
    /// The old value is used if that fails or is slow.
    pub fn expire_all(&self) {
        self.cache.expire_all();
    }

    /// Removes each id that is announced on this channel from the cache, in a task that ends when
    /// the look-up and its layers are dropped. If announcements may have been missed, it [expires
    /// all](Self::expire_all).
    ///
    /// A setter makes a new cache, which follows the same channels.
    ///
    /// ```no_run
    /// use tollgate::layer::Lookup;
    /// use tollgate::RedisStore;
    /// use tollgate::store::RedisChannel;
    ///
    /// # type Id = fn(&http::request::Parts) -> Option<u64>;
    /// # async fn plans(user: Id) -> Result<(), tollgate::Error> {
    /// # async fn plan_of(user: u64) -> Result<Option<String>, std::io::Error> { Ok(None) }
    /// let store = RedisStore::connect("redis://127.0.0.1/", "shop").await?;
    /// let changes = RedisChannel::new(&store, "plans")?;
    /// let plans = Lookup::new(user, plan_of);
    /// plans.follow(changes.clone());
    /// // Here or in another process, after the plan of a user changed:
    /// changes.announce(42).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    #[track_caller]
    pub fn follow(&self, channel: RedisChannel)
    where
        I: FromStr,
    {
        self.cache.follow(channel);
    }

    fn with(self, set: impl FnOnce(&mut CacheSettings)) -> Self {
        let mut settings = self.cache.settings;
        set(&mut settings);
        Self {
            cache: self.cache.rebuilt(settings),
            ..self
        }
    }

    /// Checks the settings.
    pub(in crate::http) fn check(&self) -> Result<(), ConfigError> {
        let settings = &self.cache.settings;
        let wrong = |what: &str| {
            Err(ConfigError::new(format!(
                "{what} of the look-up is 0; use more"
            )))
        };
        if settings.capacity == 0 {
            return wrong("`capacity`");
        }
        if settings.max_in_flight == 0 {
            return wrong("`max_in_flight`");
        }
        if settings.timeout.is_zero() {
            return wrong("`timeout`");
        }
        Ok(())
    }

    pub(in crate::http) fn id_of(&self, parts: &Parts) -> Result<I, MissingKey> {
        (self.id)(parts)
    }

    /// The result, if no look-up is necessary.
    pub(in crate::http) fn known(&self, id: &I) -> Option<KnownValue<T>> {
        self.cache.fresh(id)
    }

    /// Starts or joins a look-up. Returns its result, or an older one.
    pub(in crate::http) async fn find(&self, id: I) -> KnownValue<T> {
        self.cache.find(id).await
    }
}

impl<T: Send + Sync + 'static> Lookup<Key, T> {
    /// Creates a look-up whose id is the key of a request.
    ///
    /// ```
    /// use tollgate::Key;
    /// use tollgate::key::Header;
    /// use tollgate::layer::Lookup;
    ///
    /// async fn plan_of(api_key: Key) -> Result<Option<String>, std::io::Error> {
    ///     // A query, in a real service.
    ///     Ok(Some("pro".to_owned()))
    /// }
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let plans = Lookup::by_key(Header::new("x-api-key")?, plan_of);
    /// # let _ = plans;
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_key<F, E>(
        extractor: impl KeyExtractor,
        fetch: impl Fn(Key) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: fmt::Display,
    {
        let extractor = watched(Arc::new(extractor), CHOSEN);
        Self::of(Arc::new(move |parts| extractor.extract(parts)), fetch)
    }
}

impl<I, T> Clone for Lookup<I, T> {
    /// Shares the cache.
    fn clone(&self) -> Self {
        Self {
            id: Arc::clone(&self.id),
            cache: Arc::clone(&self.cache),
        }
    }
}

impl<I, T> fmt::Debug for Lookup<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup")
            .field("settings", &self.cache.settings)
            .finish_non_exhaustive()
    }
}

//! Look-ups: what your application knows of a client, such as its plan.

use std::fmt;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::Arc;

use http::request::Parts;

use super::cache::{Cache, KnownValue};
use crate::http::key_extractor::MissingKey;
use crate::http::request_fn::RequestFn;
use crate::store::Announcements;

/// An asynchronous look-up with a bounded cache, such as of a user's plan in a database.
///
/// - One look-up is in flight for each id. All requests of the id wait for it. It is a task, so a
///   client that disconnects does not cancel it for others. If the id is forgotten meanwhile, its
///   next look-up starts when this one ends.
/// - A value is fresh for [`ttl`](crate::layer::LookupBuilder::ttl). An id that the application
///   does not know is also remembered, for
///   [`unknown_ttl`](crate::layer::LookupBuilder::unknown_ttl).
/// - The first request after that starts a new look-up. If that fails, or takes longer than
///   [`patience`](crate::layer::LookupBuilder::patience), the old value is used, for up to
///   [`stale_for`](crate::layer::LookupBuilder::stale_for). A failed look-up is repeated after a
///   second at the earliest.
/// - Without an old value, a request waits for up to
///   [`timeout`](crate::layer::LookupBuilder::timeout), and then gets
///   [`LookupResult::Failed`](crate::layer::LookupResult::Failed). It also does if
///   [`max_in_flight`](crate::layer::LookupBuilder::max_in_flight) look-ups of other ids are in
///   flight.
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
/// Look-ups need a tokio runtime. Without one they fail. To change these settings, use a
/// [builder](Self::builder).
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
/// // While the database is away. The name differs, because in the budget of `api`, an account
/// // that used more than this would be locked out.
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
    pub(super) id: RequestFn<Result<I, MissingKey>>,
    pub(super) cache: Arc<Cache<I, T>>,
}

impl<I, T> Lookup<I, T>
where
    I: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    /// Removes an id and its value from the cache. The next request looks it up. You call it when a
    /// plan changes. Other processes have caches of their own, which can [`follow`](Self::follow)
    /// announcements.
    pub fn forget(&self, id: &I) {
        self.cache.forget(id);
    }

    /// Ends the [`ttl`](crate::layer::LookupBuilder::ttl) of all values. Each id is looked up anew
    /// with its next request. The old value is used if that fails or is slow.
    pub fn expire_all(&self) {
        self.cache.expire_all();
    }

    /// Removes each id that is announced from the cache, in a task that ends when the look-up and
    /// its layers are dropped. If announcements may have been missed, it [expires
    /// all](Self::expire_all).
    ///
    #[cfg_attr(feature = "redis", doc = "```no_run")]
    #[cfg_attr(not(feature = "redis"), doc = "```ignore")]
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
    #[track_caller]
    pub fn follow(&self, announcements: impl Announcements)
    where
        I: FromStr,
    {
        self.cache.follow(announcements);
    }

    pub(in crate::http) fn id_of(&self, parts: &Parts) -> Result<I, MissingKey> {
        (self.id)(parts)
    }

    /// The result, if no look-up is necessary.
    pub(in crate::http) fn known(&self, id: &I) -> Option<KnownValue<Arc<T>>> {
        self.cache.fresh(id)
    }

    /// Starts or joins a look-up. Returns its result, or an older one.
    pub(in crate::http) async fn find(&self, id: I) -> KnownValue<Arc<T>> {
        self.cache.find(id).await
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

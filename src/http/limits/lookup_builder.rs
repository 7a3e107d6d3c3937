//! How a look-up is made.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use super::cache::{Cache, CacheSettings, Fetch};
use super::lookup::Lookup;
use crate::http::extract::Header;
use crate::http::fallbacks::{CHOSEN, watched};
use crate::http::key_extractor::{KeyExtractor, MissingKey};
use crate::http::request_fn::RequestFn;
use crate::model::Key;
use crate::units::ConfigError;

/// Why a request without an id has no key.
const NO_ID: &str = "the request has no id to look up";

impl<I, T> Lookup<I, T>
where
    I: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    /// Creates a look-up.
    ///
    /// `id` is a closure that takes an id from a request's head, such as `|request: &Parts|
    /// request.extensions.get::<UserId>().copied()`. For a header use
    /// [`by_header`](Lookup::by_header), and for a [key extractor](crate::key::KeyExtractor)
    /// [`by_key`](Lookup::by_key). A request without an id is handled [like one without a
    /// key](crate::RateLimitLayer::on_missing_key). `fetch` looks the id up. `Ok(None)` says that
    /// it is not known. An error is reported as an event.
    pub fn new<F, E>(
        id: impl Fn(&Parts) -> Option<I> + Send + Sync + 'static,
        fetch: impl Fn(I) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: fmt::Display,
    {
        Self::builder(id, fetch).into_lookup()
    }

    /// Returns a builder of a look-up like [`new`](Self::new), for other settings than the
    /// defaults.
    pub fn builder<F, E>(
        id: impl Fn(&Parts) -> Option<I> + Send + Sync + 'static,
        fetch: impl Fn(I) -> F + Send + Sync + 'static,
    ) -> LookupBuilder<I, T>
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: fmt::Display,
    {
        let id = move |parts: &Parts| id(parts).ok_or(MissingKey::new(NO_ID));
        LookupBuilder::new(Arc::new(id), fetch)
    }
}

impl<T: Send + Sync + 'static> Lookup<String, T> {
    /// Creates a look-up whose id is the text of a header, such as an API key.
    ///
    /// A request has no id if the header is missing, empty, sent more than once, or not UTF-8.
    ///
    /// ```
    /// use tollgate::layer::Lookup;
    ///
    /// async fn plan_of(api_key: String) -> Result<Option<String>, std::io::Error> {
    ///     // A query, in a real service.
    ///     Ok(Some("pro".to_owned()))
    /// }
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let plans = Lookup::by_header("x-api-key", plan_of)?;
    /// # let _ = plans;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if [`Header::new`] does.
    pub fn by_header<F, E>(
        name: &str,
        fetch: impl Fn(String) -> F + Send + Sync + 'static,
    ) -> Result<Self, ConfigError>
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: fmt::Display,
    {
        Ok(Self::builder_by_header(name, fetch)?.into_lookup())
    }

    /// Returns a builder of a look-up like [`by_header`](Self::by_header), for other settings than
    /// the defaults.
    ///
    /// # Errors
    ///
    /// Returns an error if [`Header::new`] does.
    pub fn builder_by_header<F, E>(
        name: &str,
        fetch: impl Fn(String) -> F + Send + Sync + 'static,
    ) -> Result<LookupBuilder<String, T>, ConfigError>
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: fmt::Display,
    {
        let header = Header::new(name)?;
        Ok(LookupBuilder::new(
            Arc::new(move |parts| header.text(parts)),
            fetch,
        ))
    }
}

impl<T: Send + Sync + 'static> Lookup<Key, T> {
    /// Creates a look-up whose id is the key of a request.
    ///
    /// [`Key::as_str`] is the text of a key as it is stored. Other bytes than letters, digits and
    /// `-_.@/+=,` are escaped, and a key of more than 128 bytes is a hash. To look up the text of a
    /// header, use [`by_header`](Lookup::by_header).
    ///
    /// ```
    /// use tollgate::Key;
    /// use tollgate::key::PeerIp;
    /// use tollgate::layer::Lookup;
    ///
    /// async fn network_of(client: Key) -> Result<Option<String>, std::io::Error> {
    ///     // A query, in a real service.
    ///     Ok(Some("partner".to_owned()))
    /// }
    ///
    /// let networks = Lookup::by_key(PeerIp, network_of);
    /// # let _ = networks;
    /// ```
    pub fn by_key<F, E>(
        extractor: impl KeyExtractor,
        fetch: impl Fn(Key) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: fmt::Display,
    {
        Self::builder_by_key(extractor, fetch).into_lookup()
    }

    /// Returns a builder of a look-up like [`by_key`](Self::by_key), for other settings than the
    /// defaults.
    pub fn builder_by_key<F, E>(
        extractor: impl KeyExtractor,
        fetch: impl Fn(Key) -> F + Send + Sync + 'static,
    ) -> LookupBuilder<Key, T>
    where
        F: Future<Output = Result<Option<T>, E>> + Send + 'static,
        E: fmt::Display,
    {
        let extractor = watched(Arc::new(extractor), CHOSEN);
        LookupBuilder::new(Arc::new(move |parts| extractor.extract(parts)), fetch)
    }
}

/// Builds a [`Lookup`]. See [`Lookup::builder`].
///
/// ```
/// use std::time::Duration;
/// use http::request::Parts;
/// use tollgate::layer::Lookup;
///
/// async fn plan_of(user: u64) -> Result<Option<String>, std::io::Error> {
///     // A query, in a real service.
///     Ok(Some("pro".to_owned()))
/// }
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let user = |request: &Parts| request.extensions.get::<u64>().copied();
/// let plans = Lookup::builder(user, plan_of)
///     .capacity(100_000)
///     .ttl(Duration::from_secs(300))
///     .build()?;
/// # let _ = plans;
/// # Ok(())
/// # }
/// ```
#[must_use = "call `build`"]
pub struct LookupBuilder<I, T> {
    id: RequestFn<Result<I, MissingKey>>,
    fetch: Fetch<I, T>,
    settings: CacheSettings,
}

impl<I, T> LookupBuilder<I, T>
where
    I: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    fn new<F, E>(
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
        let settings = CacheSettings::default();
        Self {
            id,
            fetch,
            settings,
        }
    }

    /// Sets the number of ids in the cache. Default: 10,000. At least 1.
    pub const fn capacity(mut self, ids: usize) -> Self {
        self.settings.capacity = ids;
        self
    }

    /// Sets the time for which a value is fresh. Default: 60 s.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Sets the time for which an unknown id is remembered. Default: 10 s.
    pub const fn unknown_ttl(mut self, ttl: Duration) -> Self {
        self.settings.unknown_ttl = ttl;
        self
    }

    /// Sets for how long after its `ttl` a value is still used if look-ups fail or are slow.
    /// Default: 1 h.
    pub const fn stale_for(mut self, time: Duration) -> Self {
        self.settings.stale_for = time;
        self
    }

    /// Sets the time for which requests wait for a new look-up if there is an old value. Default:
    /// 50 ms. Zero means that they do not wait, and a later request gets the new value.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.settings.patience = patience;
        self
    }

    /// Sets the timeout of a look-up. Default: 500 ms. More than zero.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Sets the most look-ups in flight, so that a flood of ids does not overload the database.
    /// Default: 64. At least 1.
    pub const fn max_in_flight(mut self, lookups: usize) -> Self {
        self.settings.max_in_flight = lookups;
        self
    }

    /// Creates the look-up, with an empty cache.
    ///
    /// # Errors
    ///
    /// Returns an error if the capacity, the timeout or the number of look-ups in flight is zero.
    pub fn build(self) -> Result<Lookup<I, T>, ConfigError> {
        let settings = &self.settings;
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
        Ok(self.into_lookup())
    }

    /// The look-up, with settings that are in their ranges.
    fn into_lookup(self) -> Lookup<I, T> {
        Lookup {
            id: self.id,
            cache: Arc::new(Cache::new(self.fetch, self.settings)),
        }
    }
}

impl<I, T> fmt::Debug for LookupBuilder<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookupBuilder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

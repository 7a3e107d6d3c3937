//! The constructors of a layer.

use std::hash::Hash;
use std::sync::Arc;

use http::request::Parts;

use super::RateLimitLayer;
#[cfg(feature = "config")]
use crate::http::LimitSet;
use crate::http::limits::{ChosenLimits, Lookup, LookupResult, by_key, by_lookup, by_request};
#[cfg(feature = "config")]
use crate::http::live::LimitSetView;
use crate::http::policy::{KeyedLimit, Policy};
use crate::http::request_limiter::RequestLimiter;
use crate::http::{Global, KeyExtractor};
use crate::limiter::RateLimiter;
use crate::model::{Key, Limit};
use crate::units::{ConfigError, Quota};

/// # Constructors
///
/// Most take the limiter, a limit, and the key by which requests are counted. They return an error
/// if the name or a number is out of range, or if this limiter has another quota of that name.
/// Limits can also be [chosen](Self::from_fn) by a closure, or come from a configuration.
/// [`load_shed`](Self::load_shed) needs neither a limiter nor a key.
impl RateLimitLayer {
    /// A burst at once, then the rate. See [`Limit::token_bucket`].
    ///
    /// # Errors
    ///
    /// Returns an error like all constructors.
    pub fn token_bucket(
        limiter: impl Into<RateLimiter>,
        name: &str,
        quota: Quota,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        Self::new(limiter, Limit::token_bucket(name, quota)?, key)
    }

    /// Requests leave evenly, each after its delay. See [`Limit::leaky_bucket`].
    ///
    /// # Errors
    ///
    /// Returns an error like all constructors.
    pub fn leaky_bucket(
        limiter: impl Into<RateLimiter>,
        name: &str,
        quota: Quota,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        Self::new(limiter, Limit::leaky_bucket(name, quota)?, key)
    }

    /// At most the limit in each window. See [`Limit::fixed_window`].
    ///
    /// # Errors
    ///
    /// Returns an error like all constructors.
    pub fn fixed_window(
        limiter: impl Into<RateLimiter>,
        name: &str,
        quota: Quota,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        Self::new(limiter, Limit::fixed_window(name, quota)?, key)
    }

    /// Counts this period, and a weighted part of the previous one. See [`Limit::sliding_window`].
    ///
    /// # Errors
    ///
    /// Returns an error like all constructors.
    pub fn sliding_window(
        limiter: impl Into<RateLimiter>,
        name: &str,
        quota: Quota,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        Self::new(limiter, Limit::sliding_window(name, quota)?, key)
    }

    /// Exactly the limit in any window. See [`Limit::sliding_log`].
    ///
    /// # Errors
    ///
    /// Returns an error like all constructors.
    pub fn sliding_log(
        limiter: impl Into<RateLimiter>,
        name: &str,
        quota: Quota,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        Self::new(limiter, Limit::sliding_log(name, quota)?, key)
    }

    /// The token bucket's promise as a schedule. See [`Limit::gcra`].
    ///
    /// # Errors
    ///
    /// Returns an error like all constructors.
    pub fn gcra(
        limiter: impl Into<RateLimiter>,
        name: &str,
        quota: Quota,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        Self::new(limiter, Limit::gcra(name, quota)?, key)
    }

    /// At most so many requests of a key at once. See [`Limit::concurrency`].
    ///
    /// ```
    /// use tollgate::key::Global;
    /// use tollgate::{RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let limiter = RateLimiter::in_memory();
    /// let layer = RateLimitLayer::concurrency(&limiter, "reports", 4, Global)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error like all constructors.
    pub fn concurrency(
        limiter: impl Into<RateLimiter>,
        name: &str,
        limit: u32,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        Self::new(limiter, Limit::concurrency(name, limit)?, key)
    }

    /// Allows at most so many requests of all clients in flight in this process, and sheds the
    /// others. The next one is answered 503 at once.
    ///
    /// It protects the server, and each process counts for itself, in memory. It decides without a
    /// wait. A request is in flight until its response body has ended. The name stands for the
    /// limit in events and metrics, where a request that is shed has the outcome `shed`. The reason
    /// of its rejection is [`LoadShed`](crate::layer::Reason::LoadShed).
    ///
    /// Make it the outermost of the layers that cost you time. Exempt your health checks, because a
    /// busy server is alive. Put other limits into layers of their own.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::get;
    /// use http::HeaderValue;
    /// use tollgate::RateLimitLayer;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let shed = RateLimitLayer::load_shed("server", 512)?
    ///     .skip(|request| request.uri.path() == "/health")
    ///     .respond_with(|_, mut response| {
    ///         let json = HeaderValue::from_static("application/json");
    ///         response.headers_mut().insert("content-type", json);
    ///         response.map(|_text| r#"{"error":"busy"}"#)
    ///     });
    /// let app: Router = Router::new()
    ///     .route("/", get(|| async { "hello" }))
    ///     .route("/health", get(|| async { "ok" }))
    ///     .layer(shed);
    /// # let _ = app;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The number is fixed. It does not adapt to the latency. For that, use another crate. See
    /// [where the layer goes](crate::guide::where_the_layer_goes#a-server-that-is-busy).
    ///
    /// # Errors
    ///
    /// Returns an error if the name is invalid, or the number is 0 or above 1,000,000.
    pub fn load_shed(name: &str, in_flight: u32) -> Result<Self, ConfigError> {
        let limit = Limit::concurrency(name, in_flight)?.shedding_load();
        Self::new(RateLimiter::in_memory(), limit, Global)
    }

    /// Any limit. You can pass a [`Limit`], or what its constructors return.
    ///
    /// ```
    /// use tollgate::key::PeerIp;
    /// use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let limit = Limit::sliding_window_with("api", Quota::per_minute(60), 6);
    /// let layer = RateLimitLayer::new(RateLimiter::in_memory(), limit, PeerIp)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error like all constructors.
    pub fn new(
        limiter: impl Into<RateLimiter>,
        limit: impl TryInto<Limit, Error: Into<ConfigError>>,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        let limit = limit.try_into().map_err(Into::into)?;
        let layer = Self::of_policy(limiter.into(), Policy::new());
        layer.with_limit(KeyedLimit::new(limit, key, None))
    }

    /// Several limits under one key.
    ///
    /// ```
    /// use tollgate::key::PeerIp;
    /// use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let limits = vec![
    ///     Limit::token_bucket("second", Quota::per_second(10))?,
    ///     Limit::fixed_window("day", Quota::per_day(10_000))?,
    /// ];
    /// let layer = RateLimitLayer::from_limits(RateLimiter::in_memory(), limits, PeerIp)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if there is no limit, or like [`limit`](Self::limit).
    pub fn from_limits(
        limiter: impl Into<RateLimiter>,
        limits: impl IntoIterator<Item = Limit>,
        key: impl KeyExtractor,
    ) -> Result<Self, ConfigError> {
        let key: Arc<dyn KeyExtractor> = Arc::new(key);
        let mut limits = limits.into_iter();
        let first = limits.next().ok_or_else(|| {
            ConfigError::new("the layer has no limits; pass at least one, or leave the layer out")
        })?;
        let layer = Self::new(limiter, first, Arc::clone(&key))?;
        limits.try_fold(layer, |layer, limit| layer.limit(limit, Arc::clone(&key)))
    }

    /// Limits that a closure chooses for each request, such as by the plan of an account, by the
    /// size of a request, for a part of the traffic.
    ///
    /// The closure creates the checks, with their keys and costs. All checks of the layer are
    /// decided in one call. All are charged, or none. Limits of one name and one
    /// [kind](Limit#kinds) share a budget. A client that changes from one plan to another keeps
    /// what it used. [`cost`](Self::cost) does not apply. A check of a [concurrency
    /// limit](Limit::concurrency) asks for a permit.
    ///
    /// ```
    /// use tollgate::layer::ChosenLimits;
    /// use tollgate::{Check, Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// #[derive(Clone)]
    /// struct Account { id: u64, plan: &'static str }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let free = Limit::token_bucket("api", Quota::per_minute(10))?;
    /// let pro = Limit::token_bucket("api", Quota::per_minute(1_000))?;
    /// let layer = RateLimitLayer::from_fn(RateLimiter::in_memory(), move |request| {
    ///     match request.extensions.get::<Account>() {
    ///         Some(account) => match account.plan {
    ///             "free" => Check::new(&free, account.id).into(),
    ///             "pro" => Check::new(&pro, account.id).into(),
    ///             "internal" => ChosenLimits::Unlimited,
    ///             _ => ChosenLimits::reject("the plan of this account is not known"),
    ///         },
    ///         None => ChosenLimits::reject("no account"),
    ///     }
    /// })?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the closure returns more than 255 checks, or two checks of one budget, the request is
    /// answered with 500, and an event says why.
    ///
    /// # Errors
    ///
    /// Returns no error at present.
    pub fn from_fn(
        limiter: impl Into<RateLimiter>,
        choose: impl Fn(&Parts) -> ChosenLimits + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        Ok(Self::of_policy(
            limiter.into(),
            Policy::chosen(by_request(choose)),
        ))
    }

    /// Limits that a closure chooses for each request, by a key that an extractor takes from it. A
    /// request without a key is handled [as for other limits](Self::on_missing_key). See
    /// [`from_fn`](Self::from_fn).
    ///
    /// The closure gets the key [as it is counted](Key::as_str), and passes it to the checks. It
    /// finds the plan in the request's head.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate::key::Header;
    /// use tollgate::layer::ChosenLimits;
    /// use tollgate::{Check, Key, Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// # let limiter = RateLimiter::in_memory();
    /// // One name, so an upgrade keeps what was used.
    /// let free = Limit::token_bucket("api", Quota::per_minute(10))?;
    /// let pro = Limit::token_bucket("api", Quota::per_minute(1_000))?;
    /// let choose = move |request: &Parts, user: &Key| {
    ///     let plan = request.headers.get("x-plan").and_then(|plan| plan.to_str().ok());
    ///     match plan {
    ///         Some("pro") => Check::new(&pro, user).into(),
    ///         Some("free") => Check::new(&free, user).into(),
    ///         _ => ChosenLimits::reject("no such plan"),
    ///     }
    /// };
    /// let layer = RateLimitLayer::from_key(&limiter, Header::new("x-user")?, choose)?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns no error at present.
    pub fn from_key(
        limiter: impl Into<RateLimiter>,
        key: impl KeyExtractor,
        choose: impl Fn(&Parts, &Key) -> ChosenLimits + Send + Sync + 'static,
    ) -> Result<Self, ConfigError> {
        Ok(Self::of_policy(
            limiter.into(),
            Policy::chosen(by_key(key, choose)),
        ))
    }

    /// Limits that a closure chooses for each request, by what your application looks up, such as
    /// the plan of an account in a database. See [`Lookup`] for its cache, and
    /// [`from_fn`](Self::from_fn).
    ///
    /// The closure gets the request's head, the id, and what was found. So it also chooses the
    /// outcome of an unknown id and of a look-up that failed.
    ///
    /// The look-up comes before all checks and permits of the layer, and a rejected request
    /// consumes nothing. If you want to protect your database from a client that sends many ids,
    /// put a limit by address into a layer outside.
    ///
    /// # Errors
    ///
    /// Returns an error if the look-up has a capacity of 0, a timeout of 0, or a maximum of 0
    /// look-ups in flight.
    pub fn from_lookup<I, T>(
        limiter: impl Into<RateLimiter>,
        lookup: Lookup<I, T>,
        choose: impl Fn(&Parts, &I, LookupResult<'_, T>) -> ChosenLimits + Send + Sync + 'static,
    ) -> Result<Self, ConfigError>
    where
        I: Clone + Eq + Hash + Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        Ok(Self::of_policy(
            limiter.into(),
            Policy::chosen(by_lookup(lookup, choose)),
        ))
    }

    /// The limits of a configuration, which can be replaced while your service runs. See
    /// [`LimitSet`](crate::config::LimitSet).
    ///
    /// One layer on a whole router is enough, because the configuration says which limits apply to
    /// which routes. All limits that apply to a request are decided in one call. All are charged,
    /// or none.
    ///
    /// # Errors
    ///
    /// Returns an error if this limiter has another limit of one of the names, or its store cannot
    /// decide one.
    #[cfg(feature = "config")]
    pub fn from_config(
        limiter: impl Into<RateLimiter>,
        limits: &LimitSet,
    ) -> Result<Self, ConfigError> {
        let limiter = limiter.into();
        let live = LimitSetView::new(limits.clone());
        live.attach(&limiter)?;
        Ok(Self::of_policy(limiter, Policy::live(live)))
    }

    fn of_policy(limiter: RateLimiter, policy: Policy) -> Self {
        Self {
            limiter: Arc::new(RequestLimiter::new(limiter, policy)),
        }
    }

    /// Adds a limit, which gets the settings of the layer.
    pub(super) fn with_limit(mut self, keyed: KeyedLimit) -> Result<Self, ConfigError> {
        let limiter = Arc::make_mut(&mut self.limiter);
        limiter.policy.add_limit(&limiter.rate_limiter, keyed)?;
        limiter.names = limiter.policy.names();
        Ok(self)
    }
}

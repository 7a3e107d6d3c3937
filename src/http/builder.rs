//! The builder of a layer with several limits.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use http::request::Parts;

use super::fallbacks::watched;
use super::limits::{Found, Limits, Lookup, by_key, by_lookup, by_request};
#[cfg(feature = "config")]
use super::live::{LimitSet, Live};
use super::policy::{Concurrency, ConcurrencyRule, KeyedLimit, Policy, Rule};
use super::settings::Settings;
use super::{KeyExtractor, RateLimitLayer};
use crate::limiter::{ConcurrencyLimiter, RateLimiter};
use crate::nouns::{ConcurrencyLimit, ConfigError, Key, Limit, MAX_GROUP};

/// A builder of a layer with several limits.
#[must_use = "a builder does nothing until the layer is built"]
pub struct RateLimitLayerBuilder {
    limiter: RateLimiter,
    rules: Vec<Rule>,
    concurrency: Vec<ConcurrencyRule>,
    /// Of the concurrency limits of a configuration.
    #[cfg(feature = "config")]
    concurrency_limiter: Option<ConcurrencyLimiter>,
}

impl RateLimitLayerBuilder {
    pub(super) const fn new(limiter: RateLimiter) -> Self {
        Self {
            limiter,
            rules: Vec::new(),
            concurrency: Vec::new(),
            #[cfg(feature = "config")]
            concurrency_limiter: None,
        }
    }

    /// Adds a limit, under a key of its own. A request costs 1 unit, or the cost set by
    /// [`RateLimitLayer::cost`].
    pub fn limit(self, limit: Limit, key: impl KeyExtractor) -> Self {
        self.add(Rule::Fixed(KeyedLimit::new(limit, key, None)))
    }

    /// Adds a limit, under a key and with a cost of its own: one request under one limit can be 800
    /// tokens under another, in one check.
    ///
    /// The headers report the limit that allows the fewest further requests of the same cost. The
    /// [verdicts](crate::Decision::verdicts) have every limit.
    ///
    /// ```
    /// use http::request::Parts;
    /// use tollgate::key::Header;
    /// use tollgate::{Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// /// The estimate of a gateway, capped.
    /// fn tokens(request: &Parts) -> u32 {
    ///     let estimate = request.headers.get("x-estimated-tokens");
    ///     let estimate = estimate.and_then(|it| it.to_str().ok()?.parse().ok());
    ///     estimate.unwrap_or(500).clamp(1, 4_000)
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let user = Header::new("x-user")?;
    /// let layer = RateLimitLayer::builder(RateLimiter::in_memory())
    ///     .limit(Limit::token_bucket("requests", Quota::per_minute(60))?, user.clone())
    ///     .limit_with_cost(Limit::token_bucket("tokens", Quota::per_minute(40_000))?, user, tokens)
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn limit_with_cost(
        self,
        limit: Limit,
        key: impl KeyExtractor,
        cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.add(Rule::Fixed(KeyedLimit::new(limit, key, Some(Arc::new(cost)))))
    }

    /// Adds limits that a closure chooses for each request: by the plan of an account, by the size of a request, for a
    /// part of the traffic.
    ///
    /// The closure creates the checks, with their keys and costs. All checks of the layer are decided in one
    /// call: all are charged, or none. Limits of one name share a budget: a client that changes from one plan to
    /// another keeps what it used. [`RateLimitLayer::cost`] does not apply.
    ///
    /// ```
    /// use tollgate::layer::Limits;
    /// use tollgate::{Check, Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// #[derive(Clone)]
    /// struct Account { id: u64, plan: &'static str }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let free = Limit::token_bucket("api", Quota::per_minute(10))?;
    /// let pro = Limit::token_bucket("api", Quota::per_minute(1_000))?;
    /// let layer = RateLimitLayer::builder(RateLimiter::in_memory())
    ///     .limits(move |request| match request.extensions.get::<Account>() {
    ///         Some(account) => match account.plan {
    ///             "free" => Check::new(&free, account.id).into(),
    ///             "pro" => Check::new(&pro, account.id).into(),
    ///             "internal" => Limits::Unlimited,
    ///             _ => Limits::reject("the plan of this account is not known"),
    ///         },
    ///         None => Limits::reject("no account"),
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the checks are more than 255, or two of one budget, the request is answered with 500, and an event says why.
    pub fn limits(self, choose: impl Fn(&Parts) -> Limits + Send + Sync + 'static) -> Self {
        self.add(Rule::Chosen(by_request(choose)))
    }

    /// Adds limits that a closure chooses for each request, by a key that an extractor takes from it. A request without a
    /// key is handled [as for other limits](RateLimitLayer::on_missing_key).
    ///
    /// See [`limits`](Self::limits).
    pub fn limits_by_key(
        self,
        key: impl KeyExtractor,
        choose: impl Fn(&Parts, &Key) -> Limits + Send + Sync + 'static,
    ) -> Self {
        self.add(Rule::Chosen(by_key(key, choose)))
    }

    /// Adds limits that a closure chooses for each request, by what the application looks up: the plan of an account in a
    /// database. See [`Lookup`] for its cache, and [`limits`](Self::limits).
    ///
    /// The closure gets the request's head, the id, and what was found. So it chooses the outcome of an unknown id and of a
    /// look-up that failed, too.
    ///
    /// The look-up comes before all checks of the layer, and a rejected request consumes nothing. To protect the
    /// database from a client that sends many ids, put a limit by address into a layer outside.
    pub fn limits_by_lookup<I, T>(
        self,
        lookup: Lookup<I, T>,
        choose: impl Fn(&Parts, &I, Found<'_, T>) -> Limits + Send + Sync + 'static,
    ) -> Self
    where
        I: Clone + Eq + Hash + Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        self.add(Rule::Chosen(by_lookup(lookup, choose)))
    }

    /// Adds the limits of a configuration, which can be replaced while the service runs.
    ///
    /// All limits of the layer that apply to a request are decided in one call: all are charged, or none. A layer has at
    /// most one set.
    #[cfg(feature = "config")]
    pub fn limit_set(self, limits: &LimitSet) -> Self {
        self.add(Rule::Live(Live::new(limits.clone())))
    }

    /// Sets the limiter that grants the permits of the set's `concurrency_limits`. Default: none, and a configuration
    /// with such limits is an error.
    ///
    /// ```
    /// use tollgate::config::{Config, Format, LimitSet, Names};
    /// use tollgate::{ConcurrencyLimiter, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let text = r#"
    ///     limits = []
    ///     concurrency_limits = [{ name = "exports", limit = 3, key = "peer_ip", match = { path = "/export" } }]
    /// "#;
    /// let limits = LimitSet::new(Config::parse("limits.toml", text, Format::Toml)?, Names::new())?;
    /// let (limiter, permits) = (RateLimiter::in_memory(), ConcurrencyLimiter::in_memory());
    /// let layer = RateLimitLayer::builder(&limiter)
    ///     .limit_set(&limits)
    ///     .concurrency_limiter(&permits)
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "config")]
    pub fn concurrency_limiter(mut self, limiter: impl Into<ConcurrencyLimiter>) -> Self {
        self.concurrency_limiter = Some(limiter.into());
        self
    }

    /// Adds a limit of requests in flight, under a key of its own: at most so many of a key at once, on all replicas that
    /// share the limiter's store.
    ///
    /// A request acquires its permits first, that of the smallest limit before others, and then is charged under the rates of
    /// the layer. So a
    /// request without a permit is charged under none, and one that a rate denies gives its permits back. Otherwise it
    /// holds them until its response body ends: a stream of events counts for as long as it is sent. See
    /// [`insert_permits`](RateLimitLayer::insert_permits) for upgraded connections.
    ///
    /// A request without a permit is answered 429. With [`wait_up_to`](RateLimitLayer::wait_up_to) it waits for its permits,
    /// and after that for its units, until one deadline.
    ///
    /// ```
    /// use tollgate::key::Header;
    /// use tollgate::{ConcurrencyLimit, ConcurrencyLimiter, Limit, Quota, RateLimitLayer, RateLimiter};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (limiter, permits) = (RateLimiter::in_memory(), ConcurrencyLimiter::in_memory());
    /// let tenant = Header::new("x-tenant")?;
    /// let layer = RateLimitLayer::builder(&limiter)
    ///     .limit(Limit::token_bucket("exports-a-minute", Quota::per_minute(10))?, tenant.clone())
    ///     .concurrency_limit(&permits, ConcurrencyLimit::new("exports", 3)?, tenant)
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn concurrency_limit(
        self,
        limiter: impl Into<ConcurrencyLimiter>,
        limit: ConcurrencyLimit,
        key: impl KeyExtractor,
    ) -> Self {
        let key = watched(Arc::new(key), limit.name());
        self.add_concurrency(limiter.into(), Concurrency::Fixed(limit, key))
    }

    /// Adds a limit of requests in flight that a closure chooses for each request, such as by the plan of its account. `None`:
    /// the request needs no permit. Limits of one name and key share permits, whatever their numbers.
    ///
    /// ```
    /// use tollgate::{ConcurrencyLimit, ConcurrencyLimiter, Key, RateLimitLayer, RateLimiter};
    ///
    /// #[derive(Clone)]
    /// struct Account { id: u64, is_pro: bool } // inserted by your authentication
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// # let (limiter, permits) = (RateLimiter::in_memory(), ConcurrencyLimiter::in_memory());
    /// let (free, pro) = (ConcurrencyLimit::new("streams", 2)?, ConcurrencyLimit::new("streams", 10)?);
    /// let layer = RateLimitLayer::builder(&limiter)
    ///     .concurrency_limits(&permits, move |request| {
    ///         let account = request.extensions.get::<Account>()?;
    ///         let limit = if account.is_pro { &pro } else { &free };
    ///         Some((limit.clone(), Key::from(account.id)))
    ///     })
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok(())
    /// # }
    /// ```
    pub fn concurrency_limits(
        self,
        limiter: impl Into<ConcurrencyLimiter>,
        choose: impl Fn(&Parts) -> Option<(ConcurrencyLimit, Key)> + Send + Sync + 'static,
    ) -> Self {
        self.add_concurrency(limiter.into(), Concurrency::Chosen(Arc::new(choose)))
    }

    fn add_concurrency(mut self, limiter: ConcurrencyLimiter, limit: Concurrency) -> Self {
        self.concurrency.push(ConcurrencyRule { limiter, limit });
        self
    }

    fn add(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no limits or more than 255, if two limits have one name, or if
    /// this limiter has another quota of that name.
    pub fn build(self) -> Result<RateLimitLayer, ConfigError> {
        if self.rules.is_empty() && self.concurrency.is_empty() {
            return Err(ConfigError::new("the layer has no limit: add one with `.limit(...)`"));
        }
        let limits: Vec<_> = self.rules.iter().filter_map(Rule::limit).collect();
        check_names(limits.iter().map(|limit| limit.name()), ["limits", "budgets"])?;
        let concurrency: Vec<_> = self
            .concurrency
            .iter()
            .filter_map(|rule| Some((&rule.limiter, rule.fixed()?)))
            .collect();
        let names = concurrency.iter().map(|(_, limit)| limit.name());
        check_names(names, ["concurrency limits", "permits"])?;
        self.limiter.register_all(&limits)?;
        concurrency.iter().try_for_each(|(limiter, limit)| limiter.register(limit))?;
        #[cfg(feature = "config")]
        let built = self.attach_set()?;
        #[cfg(not(feature = "config"))]
        let built = self;
        let policy = Policy::new(built.rules, built.concurrency)?;
        Ok(RateLimitLayer::new(Settings::new(built.limiter, policy)))
    }

    #[cfg(feature = "config")]
    fn attach_set(mut self) -> Result<Self, ConfigError> {
        let limits = self.rules.iter().filter(|rule| rule.limit().is_some()).count();
        let mut sets = self.rules.iter_mut().filter_map(Rule::live_mut);
        let (only, another) = (sets.next(), sets.next());
        if another.is_some() {
            return Err(ConfigError::new(
                "the layer has two `LimitSet`s; use one, with the limits of both",
            ));
        }
        let limiter = self.concurrency_limiter.take();
        let Some(live) = only else {
            return match limiter {
                Some(_) => Err(ConfigError::new(
                    "the layer has a `concurrency_limiter` for the limits of a configuration, and none: add one \
                     with `.limit_set(...)`",
                )),
                None => Ok(self),
            };
        };
        if let Some(limiter) = limiter {
            live.set_concurrency_limiter(limiter);
        }
        live.attach(&self.limiter, MAX_GROUP.saturating_sub(limits))?;
        Ok(self)
    }
}

/// A layer has at most 255 limits of a kind, of different names.
fn check_names<'a>(
    names: impl ExactSizeIterator<Item = &'a str>,
    [what, shared]: [&str; 2],
) -> Result<(), ConfigError> {
    if names.len() > MAX_GROUP {
        let number = names.len();
        return Err(ConfigError::new(format!(
            "the layer has {number} {what}; use at most {MAX_GROUP}"
        )));
    }
    let mut known = HashSet::new();
    for name in names {
        if !known.insert(name) {
            return Err(ConfigError::new(format!(
                "the layer has two {what} of this name, which would share their {shared}; give each a \
                 name of its own"
            ))
            .of_limit(name));
        }
    }
    Ok(())
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let concurrency = self.concurrency.iter().map(ConcurrencyRule::name);
        f.debug_list().entries(self.rules.iter().map(Rule::name).chain(concurrency)).finish()
    }
}

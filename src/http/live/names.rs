//! The names that you give to what your configuration may use.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use http::request::Parts;

use super::plans::{LookedUp, PlanSource};
use crate::http::limits::{Lookup, LookupResult};
use crate::http::request_fn::RequestFn;
use crate::http::{Global, KeyExtractor, PeerIp};
use crate::units::ConfigError;

/// The names that you give to your key extractors, plans and costs, for a configuration
/// to use.
///
/// Three extractors have names from the start: `global`, [one key for all
/// requests](crate::key::Global); `peer_ip`, [the peer's address](crate::key::PeerIp); and with the
/// feature `axum`, `route`, [the matched route](crate::key::Route).
///
/// ```
/// use tollgate::config::Names;
/// use tollgate::key::{ClientIp, Extension};
///
/// #[derive(Clone)]
/// struct Account { id: u64, plan: &'static str }
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let names = Names::new()
///     .key("user", Extension::new(|account: &Account| account.id))
///     .key("client_ip", ClientIp::behind(["10.0.0.0/8"])?)
///     .plan("account", |request| Some(request.extensions.get::<Account>()?.plan))
///     .cost("items", |request| {
///         let items = request.headers.get("x-items");
///         let items = items.and_then(|items| items.to_str().ok()?.parse().ok());
///         items.unwrap_or(1).clamp(1, 100)
///     });
/// # let _ = names;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Names {
    keys: BTreeMap<String, Arc<dyn KeyExtractor>>,
    plans: BTreeMap<String, PlanSource>,
    costs: BTreeMap<String, RequestFn<u32>>,
}

impl Default for Names {
    fn default() -> Self {
        Self::new()
    }
}

impl Names {
    /// Creates the names that exist in every application.
    #[must_use]
    pub fn new() -> Self {
        let names = Self {
            keys: BTreeMap::new(),
            plans: BTreeMap::new(),
            costs: BTreeMap::new(),
        }
        .key("global", Global)
        .key("peer_ip", PeerIp);
        #[cfg(feature = "axum")]
        let names = names.key("route", crate::http::Route);
        names
    }

    /// Names a key extractor. A name that exists is replaced.
    #[must_use]
    pub fn key(mut self, name: impl Into<String>, extractor: impl KeyExtractor) -> Self {
        self.keys.insert(name.into(), Arc::new(extractor));
        self
    }

    /// Names a function that says the plan of a request, such as by the account that authentication
    /// has put into its extensions. Without a plan, a request has the quota of the limit itself.
    #[must_use]
    pub fn plan<P: Into<Cow<'static, str>>>(
        mut self,
        name: impl Into<String>,
        plan: impl Fn(&Parts) -> Option<P> + Send + Sync + 'static,
    ) -> Self {
        let plan_of = Arc::new(move |parts: &Parts| plan(parts).map(Into::into));
        self.plans.insert(name.into(), PlanSource::Request(plan_of));
        self
    }

    /// Names a look-up of the plan of a request, such as in a database. `plan` says the plan by the
    /// result. Without a plan, and without an id, a request has the quota of the limit itself.
    ///
    /// The look-up comes before all checks of the layer. If you want to protect your database from
    /// a client that sends many ids, put a limit by address into a layer outside.
    ///
    /// ```
    /// use tollgate::Key;
    /// use tollgate::config::Names;
    /// use tollgate::key::Header;
    /// use tollgate::layer::{Lookup, LookupResult};
    ///
    /// async fn plan_of(api_key: Key) -> Result<Option<String>, std::io::Error> {
    ///     // A query, in a real service.
    ///     Ok(Some("pro".to_owned()))
    /// }
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let api_key = Header::new("x-api-key")?;
    /// let plans = Lookup::by_key(api_key.clone(), plan_of);
    /// let names = Names::new()
    ///     .key("api_key", api_key)
    ///     .plan_lookup("account", plans, |plan| match plan {
    ///         LookupResult::Known(plan) => Some(plan.clone()),
    ///         // In the file: `plans.unknown.deny = "no such account"`. An invented id would
    ///         // otherwise be a client with a full budget.
    ///         LookupResult::Unknown => Some("unknown".to_owned()),
    ///         // While the database is away: a plan with the largest quota. With a smaller one, a
    ///         // client that has used more would be denied, because plans share a budget.
    ///         _ => Some("emergency".to_owned()),
    ///     });
    /// # let _ = names;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn plan_lookup<I, T, P>(
        mut self,
        name: impl Into<String>,
        lookup: Lookup<I, T>,
        plan: impl Fn(LookupResult<'_, T>) -> Option<P> + Send + Sync + 'static,
    ) -> Self
    where
        I: Clone + Eq + Hash + Send + Sync + 'static,
        T: Send + Sync + 'static,
        P: Into<Cow<'static, str>> + 'static,
    {
        let plan = Arc::new(plan);
        let look_up = move |parts: &Parts| {
            let Ok(id) = lookup.id_of(parts) else {
                return LookedUp::NoId;
            };
            if let Some(known) = lookup.known(&id) {
                return LookedUp::Known(plan(known.as_result()).map(Into::into));
            }
            let lookup = lookup.clone();
            let plan = Arc::clone(&plan);
            LookedUp::Pending(Box::pin(async move {
                let found = lookup.find(id).await;
                plan(found.as_result()).map(Into::into)
            }))
        };
        let source = PlanSource::Lookup(Arc::new(look_up));
        self.plans.insert(name.into(), source);
        self
    }

    /// Names a function that says the cost of a request, in units. Bound it, because you read what
    /// a client sent.
    #[must_use]
    pub fn cost(
        mut self,
        name: impl Into<String>,
        cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.costs.insert(name.into(), Arc::new(cost));
        self
    }

    pub(super) fn key_of(&self, name: &str) -> Result<Arc<dyn KeyExtractor>, ConfigError> {
        find(&self.keys, "key extractor", "`Names::key`", name)
    }

    pub(super) fn plan_source(&self, name: &str) -> Result<PlanSource, ConfigError> {
        find(
            &self.plans,
            "function for plans",
            "`Names::plan` or `Names::plan_lookup`",
            name,
        )
    }

    pub(super) fn cost_of(&self, name: &str) -> Result<RequestFn<u32>, ConfigError> {
        find(&self.costs, "function for costs", "`Names::cost`", name)
    }
}

fn find<T: Clone>(
    of: &BTreeMap<String, T>,
    what: &str,
    method: &str,
    name: &str,
) -> Result<T, ConfigError> {
    of.get(name).cloned().ok_or_else(|| {
        let known: Vec<_> = of.keys().map(String::as_str).collect();
        let known = match known.is_empty() {
            true => String::new(),
            false => format!("it has {}; use one of them, or ", known.join(", ")),
        };
        ConfigError::new(format!(
            "the application has no {what} named `{}`; {known}add it with {method}",
            name.escape_debug()
        ))
    })
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names")
            .field("keys", &self.keys.keys())
            .field("plans", &self.plans.keys())
            .field("costs", &self.costs.keys())
            .finish()
    }
}

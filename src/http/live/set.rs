//! The limits in force, and how they are replaced.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, Guard};
use http::request::Parts;
use tokio::task::{JoinSet, yield_now};

use super::plans::LookedUpPlans;
use super::version::{Asks, CompiledLimit};
use super::{Names, Version};
use crate::configuration::{Config, ConfigSource, Field, Misplaced};
use crate::limiter::{RateLimiter, WeakLimiter};
use crate::model::{Check, Error, Limit, MAX_GROUP, Usage};
use crate::telemetry::{self, GaugeLevel};
use crate::units::{ConfigError, Mutex};

/// The limits of a configuration that are in force, and can be replaced while requests are in
/// flight.
///
/// A set is a handle, which you can clone. Its clones have the same limits. A layer of
/// [`RateLimitLayer::from_config`](crate::RateLimitLayer::from_config) asks the limits of its set
/// for each request. A request in flight keeps the limits that it began with.
///
/// Units that were used stay used. See the guide about [live
/// configuration](crate::guide::live_configuration#what-a-change-does) for what a new version
/// changes.
///
/// While replicas have different versions, as in a rolling deployment, each decides by its own
/// quotas, over the same budgets.
///
/// ```
/// use tollgate::config::{Config, Format, LimitSet, Names};
/// use tollgate::{RateLimitLayer, RateLimiter};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
/// let text = r#"
///     limits = [{ name = "api", algorithm = "token_bucket", quota = "100/min", key = "peer_ip" }]
/// "#;
/// let limits = LimitSet::new(Config::parse("limits.toml", text, Format::Toml)?, Names::new())?;
/// let layer = RateLimitLayer::from_config(RateLimiter::in_memory(), &limits)?;
/// # let _ = layer;
///
/// limits.replace(Config::parse("limits.toml", &text.replace("100", "50"), Format::Toml)?)?;
/// assert_eq!(limits.version(), 2);
///
/// // A version with an error changes nothing.
/// let wrong = Config::parse("limits.toml", &text.replace("peer_ip", "pier_ip"), Format::Toml)?;
/// let error = limits.replace(wrong).unwrap_err();
/// assert!(error.to_string().starts_with(
///     "limits.toml:2: `limits[0].key`: the application has no key extractor named `pier_ip`"
/// ));
/// assert_eq!(limits.version(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LimitSet {
    shared: Arc<SharedSet>,
}

struct SharedSet {
    /// Identifies the set in the registries of limiters.
    id: Arc<()>,
    names: Names,
    current: ArcSwap<Version>,
    /// The layers with these limits. Locked while the limits are replaced.
    layers: Mutex<Vec<Attached>>,
    /// Tasks that follow sources. They end with the set.
    tasks: Mutex<Vec<JoinSet<()>>>,
    /// Why the newest version of a source is not in force, and its part in the metrics.
    rejected: Mutex<Option<(ConfigError, GaugeLevel)>>,
}

/// The outcome of a new version without an error.
enum Replaced {
    Nothing,
    /// After a rejected version, the source has the one in force again.
    ValidAgain(Arc<Version>),
    By {
        before: Arc<Version>,
        after: Arc<Version>,
    },
}

impl Replaced {
    fn report(&self) {
        match self {
            Self::Nothing => {}
            Self::ValidAgain(version) => telemetry::limits_valid_again(version.number),
            Self::By { before, after } => {
                let [added, removed, changed] = before.changes_to(after);
                telemetry::limits_replaced(after.number, &added, &removed, &changed);
                if after.limits.is_empty() {
                    telemetry::no_limits_left(after.number);
                }
                telemetry::limits_in_force(after.number, &**after);
            }
        }
    }
}

/// A layer that follows the limits.
struct Attached {
    limiter: WeakLimiter,
    /// The number of its fixed limits. Gone with the layer.
    fixed_limits: Weak<AtomicUsize>,
}

impl LimitSet {
    /// Creates a set with the limits of a configuration, which uses the names that the application
    /// gives.
    ///
    /// # Errors
    ///
    /// Returns an error if a limit is out of range, two limits have one name, or the configuration
    /// uses a name that the application did not give. It names the file, the line and the field.
    pub fn new(config: Config, names: Names) -> Result<Self, ConfigError> {
        let current = ArcSwap::from_pointee(Version::compile(config, &names, 1)?);
        let shared = SharedSet {
            id: Arc::default(),
            names,
            current,
            layers: Mutex::default(),
            tasks: Mutex::default(),
            rejected: Mutex::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Replaces all limits by a new version. Requests in flight keep their limits. A version that
    /// equals the one in force changes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error like [`new`](Self::new), or if a layer cannot have the new limits. Then the
    /// limits stay as they are.
    pub fn replace(&self, config: Config) -> Result<(), ConfigError> {
        let mut layers = self.shared.layers.lock();
        let replaced = self.replace_for(&mut layers, config)?;
        // A subscriber of events may replace the limits again.
        drop(layers);
        replaced.report();
        Ok(())
    }

    fn replace_for(
        &self,
        layers: &mut Vec<Attached>,
        config: Config,
    ) -> Result<Replaced, ConfigError> {
        let shared = &*self.shared;
        let before = shared.current.load_full();
        if *before.config == config {
            let was_rejected = shared.rejected.lock().take().is_some();
            return Ok(if was_rejected {
                Replaced::ValidAgain(before)
            } else {
                Replaced::Nothing
            });
        }
        let mut after = Version::compile(config, &shared.names, before.number.saturating_add(1))?;
        after.keep_applied(&before);
        layers.retain(Attached::exists);
        for (number, layer) in layers.iter().enumerate() {
            if let Err(error) = layer.register(&shared.id, &after) {
                // It and those before may have the new names.
                for layer in layers.iter().take(number.saturating_add(1)) {
                    drop(layer.register(&shared.id, &before));
                }
                return Err(error);
            }
        }
        let after = Arc::new(after);
        shared.current.store(Arc::clone(&after));
        *shared.rejected.lock() = None;
        Ok(Replaced::By { before, after })
    }

    /// Replaces the limits whenever a source has a new version, in a task that ends with the last
    /// handle of this set. A version with an error is reported, and leaves the limits as they are:
    /// see [`rejected`](Self::rejected).
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    #[track_caller]
    pub fn follow(&self, mut source: impl ConfigSource) {
        let following = Following(Arc::downgrade(&self.shared));
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Some(version) = source.next().await {
                let Some(set) = following.set() else { return };
                set.try_replace(version);
                // A source that always has a version must not keep the worker.
                yield_now().await;
            }
            following.report_end();
        });
        // The task is not spawned under the lock, because a runtime that shuts down drops the
        // source at once.
        self.shared.tasks.lock().push(task);
    }

    fn try_replace(&self, version: Result<Config, ConfigError>) {
        // The outcome is kept before another version can be put into force.
        let mut layers = self.shared.layers.lock();
        // A version that makes a panic, in a name of the application or in a subscriber, must not
        // end the task, because the next one may be well.
        let replacing = || version.and_then(|config| self.replace_for(&mut layers, config));
        let outcome = catch_unwind(AssertUnwindSafe(replacing)).unwrap_or_else(|_| {
            Err(ConfigError::new(
                "this version of the limits panicked; the limits stay as they are",
            ))
        });
        if let Err(error) = &outcome {
            *self.shared.rejected.lock() = Some((error.clone(), telemetry::limits_rejected()));
        }
        drop(layers);
        let reporting = || match outcome {
            Ok(replaced) => replaced.report(),
            Err(error) => telemetry::limits_not_replaced(self.version(), &error),
        };
        drop(catch_unwind(AssertUnwindSafe(reporting)));
    }

    /// Returns whether a source that was followed has not ended, for health endpoints. A source
    /// ends with the sender of a `watch`, and if it panics.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        let mut tasks = self.shared.tasks.lock();
        tasks.iter_mut().any(|task| {
            while task.try_join_next().is_some() {}
            !task.is_empty()
        })
    }

    /// The number of the version in force, from 1. It counts in this process. Replicas that started
    /// at other times have other numbers.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.current().number
    }

    /// The limit of this name, as it is in force, without its plans, to
    /// [block](crate::RateLimiter::block) a key under it, or to reset a budget. `None` if there is
    /// none.
    ///
    /// Do not peek it if it has plans, because a request has the quota of its plan. See
    /// [`limit_of_plan`](Self::limit_of_plan) and [`usage`](Self::usage).
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<Limit> {
        let version = self.shared.current.load();
        version.find(name).map(CompiledLimit::limit).cloned()
    }

    /// The limit of this name for the requests of a plan, as it is in force. A plan that the limit
    /// does not have gets the limit itself, as its requests do. `None` if there is no such limit,
    /// or if the plan is unlimited or denied, as an unknown one is with `unknown_plan = "deny"`.
    ///
    /// ```
    /// use tollgate::config::{Config, Format, LimitSet, Names};
    ///
    /// # fn main() -> Result<(), tollgate::ConfigError> {
    /// let text = r#"
    ///     [[limits]]
    ///     name = "api"
    ///     algorithm = "token_bucket"
    ///     quota = "5/min"
    ///     key = "peer_ip"
    ///     plan = "account"
    ///     plans = { pro = { quota = "50/min" }, internal = { unlimited = true } }
    /// "#;
    /// let config = Config::parse("limits.toml", text, Format::Toml)?;
    /// let limits = LimitSet::new(config, Names::new().plan("account", |_| None::<String>))?;
    /// let of_plan = |plan| limits.limit_of_plan("api", plan);
    /// assert_eq!(of_plan("pro").map(|limit| limit.quota().capacity()), Some(50));
    /// assert_eq!(of_plan("free").map(|limit| limit.quota().capacity()), Some(5));
    /// assert_eq!(of_plan("internal"), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn limit_of_plan(&self, name: &str, plan: &str) -> Option<Limit> {
        let version = self.shared.current.load();
        version.find(name)?.limit_of_plan(plan).cloned()
    }

    /// Returns what is left under each limit of the set, for the key and the plan of a request, in
    /// one call and without a charge. The route of the request does not matter, so a page for users
    /// can have a route of its own.
    ///
    /// A limit is left out if the request has no key for it, or if its plan is unlimited or denied.
    /// So are concurrency limits. While the store is unavailable, so are limits that fail open.
    ///
    /// If you want the limits of one request with its route, and all settings of a layer, use
    /// [`RateLimitLayer::usage`](crate::RateLimitLayer::usage).
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not decide.
    pub async fn usage(&self, limiter: &RateLimiter, request: &Parts) -> Result<Vec<Usage>, Error> {
        let version = self.shared.current.load_full();
        let mut looked_up = LookedUpPlans::default();
        if let Some(pending) = version.look_up_all_plans(request, &mut looked_up) {
            looked_up = pending.await;
        }
        let asked = version
            .limits
            .iter()
            .map(|applied| applied.check_for(limiter, request, &looked_up, None, false));
        let checks: Vec<Check> = asked
            .filter_map(|asks| match asks {
                Ok(Asks::Check(check)) if !check.limit().is_concurrency() => Some(check),
                Ok(Asks::Check(_) | Asks::Nothing | Asks::Reject(_)) | Err(_) => None,
            })
            .collect();
        match checks.is_empty() {
            true => Ok(Vec::new()),
            false => limiter.usage(checks).await,
        }
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> Config {
        (*self.current().config).clone()
    }

    /// Returns the error that keeps the newest version of the sources from being in force. `None`
    /// once a later version is in force.
    #[must_use]
    pub fn rejected(&self) -> Option<ConfigError> {
        self.shared
            .rejected
            .lock()
            .as_ref()
            .map(|(error, _)| error.clone())
    }

    pub(super) fn current(&self) -> Guard<Arc<Version>> {
        self.shared.current.load()
    }

    /// Adds a layer, whose limiter the limits are registered with.
    pub(super) fn attach(
        &self,
        limiter: &RateLimiter,
        fixed_limits: &Arc<AtomicUsize>,
    ) -> Result<(), ConfigError> {
        let mut layers = self.shared.layers.lock();
        let version = self.shared.current.load_full();
        let attached = Attached {
            limiter: limiter.downgrade(),
            fixed_limits: Arc::downgrade(fixed_limits),
        };
        attached.register(&self.shared.id, &version)?;
        layers.retain(Attached::exists);
        layers.push(attached);
        drop(layers);
        telemetry::limits_in_force(version.number, &*version);
        Ok(())
    }

    /// Leaves room for so many fixed limits in a layer.
    pub(super) fn reserve(
        &self,
        fixed_limits: &Arc<AtomicUsize>,
        fixed: usize,
    ) -> Result<(), ConfigError> {
        // While the limits are not replaced.
        let _layers = self.shared.layers.lock();
        let version = self.shared.current.load();
        check_room(&version, fixed)
            .map_err(|(field, error)| version.config.error_at(&field, &error))?;
        fixed_limits.fetch_max(fixed, Ordering::Relaxed);
        Ok(())
    }
}

/// A layer has at most 255 limits.
fn check_room(version: &Version, fixed: usize) -> Result<(), Misplaced> {
    let most = MAX_GROUP.saturating_sub(fixed);
    if version.limits.len() > most {
        let error = format!("the layer has room for {most} limits; remove the others");
        return Err((Field::of_limit(most), ConfigError::new(error)));
    }
    Ok(())
}

/// The set, for the task that follows its source. It reports that the source has ended, even by a
/// panic, unless the runtime was shut down.
struct Following(Weak<SharedSet>);

impl Following {
    fn set(&self) -> Option<LimitSet> {
        self.0.upgrade().map(|shared| LimitSet { shared })
    }

    fn report_end(&self) {
        if let Some(set) = self.set() {
            telemetry::unfollowed(set.version());
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        if let Some(set) = self.set() {
            let error = ConfigError::new("the source of limits panicked: it has no more versions");
            *set.shared.rejected.lock() = Some((error, telemetry::limits_rejected()));
        }
        self.report_end();
    }
}

impl Attached {
    fn exists(&self) -> bool {
        self.fixed_limits.strong_count() > 0
    }

    fn register(&self, set: &Arc<()>, version: &Version) -> Result<(), ConfigError> {
        let registered = self.register_limits(set, version);
        registered.map_err(|(field, error)| version.config.error_at(&field, &error))
    }

    fn register_limits(&self, set: &Arc<()>, version: &Version) -> Result<(), Misplaced> {
        let Some(limiter) = self.limiter.upgrade() else {
            return Ok(());
        };
        let Some(fixed) = self.fixed_limits.upgrade() else {
            return Ok(());
        };
        check_room(version, fixed.load(Ordering::Relaxed))?;
        let limits: Vec<&Limit> = version.all_limits().collect();
        let overrides = version.limits.iter().flat_map(CompiledLimit::overrides);
        let overrides: Vec<_> = overrides.cloned().collect();
        limiter
            .register_set(set, &limits)
            .map_err(|(name, error)| {
                let number = version.config.names().position(|known| known == name);
                (
                    Field::of_limit(number.unwrap_or_default()).name("name"),
                    error,
                )
            })?;
        limiter.replace_overrides(set, overrides);
        Ok(())
    }
}

/// A table of the limits that apply to each route.
impl fmt::Display for LimitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.current().fmt(f)
    }
}

impl fmt::Debug for LimitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.current();
        f.debug_struct("LimitSet")
            .field("version", &version.number)
            .field("limits", &version.config.names().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

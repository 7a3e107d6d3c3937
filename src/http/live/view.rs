//! The limits of a configuration as a layer asks them.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::{InForce, LimitSet};
use crate::limiter::{ConcurrencyLimiter, RateLimiter};
use crate::nouns::{ConfigError, Limit, OnStoreFailure};

/// A set of limits in a layer. What the layer sets for all of its rates is applied once for each version, and not for each
/// request.
#[derive(Clone)]
pub(in crate::http) struct Live {
    set: LimitSet,
    view: Arc<ArcSwapOption<InForce>>,
    /// Shared by the clones of a layer, whatever their settings.
    layer: Arc<()>,
    /// Grants the permits of its concurrency limits. Without it, the set can have none.
    concurrency_limiter: Option<ConcurrencyLimiter>,
}

impl Live {
    pub(in crate::http) fn new(set: LimitSet) -> Self {
        let (view, layer) = (Arc::default(), Arc::default());
        Self { set, view, layer, concurrency_limiter: None }
    }

    pub(in crate::http) fn set_concurrency_limiter(&mut self, limiter: ConcurrencyLimiter) {
        self.concurrency_limiter = Some(limiter);
    }

    pub(in crate::http) const fn concurrency_limiter(&self) -> Option<&ConcurrencyLimiter> {
        self.concurrency_limiter.as_ref()
    }

    /// Registers the limits with the limiters of the layer. It can have so many from here.
    pub(in crate::http) fn attach(
        &self,
        limiter: &RateLimiter,
        most: usize,
    ) -> Result<(), ConfigError> {
        self.set.attach(limiter, self.concurrency_limiter.as_ref(), &self.layer, most)
    }

    /// Whether each limit in force that has no failure policy can have this one.
    pub(in crate::http) fn check_policy(&self, policy: OnStoreFailure) -> Result<(), ConfigError> {
        let in_force = self.set.in_force();
        let mut limits = in_force.all_limits().filter(|limit| limit.failure_policy().is_none());
        limits.try_for_each(|limit| limit.clone().on_store_failure(policy).map(drop))
    }

    /// The settings of the layer have changed.
    pub(in crate::http) fn forget(&mut self) {
        self.view = Arc::default();
    }

    /// Calls `ask` with the limits in force, to which `of_layer` applies the settings of the layer.
    pub(in crate::http) fn in_force<T>(
        &self,
        of_layer: impl Fn(&Limit) -> Limit,
        ask: impl FnOnce(&InForce) -> T,
    ) -> T {
        let current = self.set.in_force();
        let view = self.view.load();
        match &*view {
            Some(view) if view.version == current.version => ask(view),
            _ => {
                let view = Arc::new(current.with_limits(&of_layer));
                self.view.store(Some(Arc::clone(&view)));
                ask(&view)
            }
        }
    }
}

//! The limits of a configuration as a layer asks them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwapOption;

use super::{LimitSet, Version};
use crate::limiter::RateLimiter;
use crate::model::{Limit, OnStoreFailure};
use crate::units::ConfigError;

/// A set of limits in a layer. What the layer sets for all of its rates is applied once for each
/// version, and not for each request.
#[derive(Clone)]
pub(in crate::http) struct LimitSetView {
    set: LimitSet,
    view: Arc<ArcSwapOption<Version>>,
    /// The number of fixed limits beside the set. Shared by the clones of a layer, whatever their
    /// settings.
    fixed_limits: Arc<AtomicUsize>,
}

impl LimitSetView {
    pub(in crate::http) fn new(set: LimitSet) -> Self {
        Self {
            set,
            view: Arc::default(),
            fixed_limits: Arc::default(),
        }
    }

    /// Registers the limits with the limiter of the layer.
    pub(in crate::http) fn attach(&self, limiter: &RateLimiter) -> Result<(), ConfigError> {
        self.set.attach(limiter, &self.fixed_limits)
    }

    /// Leaves room for so many fixed limits beside the set.
    pub(in crate::http) fn reserve(&self, fixed: usize) -> Result<(), ConfigError> {
        self.set.reserve(&self.fixed_limits, fixed)
    }

    /// Returns an error if a limit in force without a failure policy cannot have this one.
    pub(in crate::http) fn check_policy(&self, policy: OnStoreFailure) -> Result<(), ConfigError> {
        let version = self.set.current();
        let mut limits = version
            .all_limits()
            .filter(|limit| limit.on_store_failure().is_none());
        limits.try_for_each(|limit| limit.clone().with_on_store_failure(policy).map(drop))
    }

    /// The settings of the layer have changed.
    pub(in crate::http) fn forget(&mut self) {
        self.view = Arc::default();
    }

    /// Calls `ask` with the limits in force, to which `of_layer` applies the settings of the layer.
    pub(in crate::http) fn with_current<T>(
        &self,
        of_layer: impl Fn(&Limit) -> Limit,
        ask: impl FnOnce(&Version) -> T,
    ) -> T {
        let current = self.set.current();
        let view = self.view.load();
        match &*view {
            Some(view) if view.number == current.number => ask(view),
            _ => {
                let view = Arc::new(current.with_limits(&of_layer));
                self.view.store(Some(Arc::clone(&view)));
                ask(&view)
            }
        }
    }
}

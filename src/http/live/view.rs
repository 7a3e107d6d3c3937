//! The limits of a configuration as a layer asks them.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::{InForce, LimitSet};
use crate::nouns::Limit;

/// A set of limits in a layer. What the layer sets for all of its limits is applied once for each version, and not for each
/// request.
#[derive(Clone)]
pub(in crate::http) struct Live {
    pub(in crate::http) set: LimitSet,
    view: Arc<ArcSwapOption<InForce>>,
}

impl Live {
    pub(in crate::http) fn new(set: LimitSet) -> Self {
        Self { set, view: Arc::default() }
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

//! A limit that is the same for all requests of a layer.

use std::sync::Arc;

use crate::http::KeyExtractor;
use crate::http::copied_limit::CopiedLimit;
use crate::http::fallbacks::watched;
use crate::http::request_fn::RequestFn;
use crate::model::{Check, Key, Limit, OnStoreFailure};
use crate::units::ConfigError;

/// A limit, the key that it counts, and what a request costs under it.
#[derive(Clone)]
pub(in crate::http) struct KeyedLimit {
    limit: CopiedLimit,
    /// `true` if the limit came without a failure policy, so that it has the layer's.
    fails_as_layer: bool,
    pub(in crate::http) key: Arc<dyn KeyExtractor>,
    /// In place of the policy's cost.
    pub(in crate::http) cost: Option<RequestFn<u32>>,
}

impl KeyedLimit {
    pub(in crate::http) fn new(
        limit: Limit,
        key: impl KeyExtractor,
        cost: Option<RequestFn<u32>>,
    ) -> Self {
        let fails_as_layer = limit.on_store_failure().is_none();
        let key = watched(Arc::new(key), limit.name());
        Self {
            limit: CopiedLimit::new(&limit),
            fails_as_layer,
            key,
            cost,
        }
    }

    pub(in crate::http) const fn limit(&self) -> &Limit {
        self.limit.limit()
    }

    /// The check of a key.
    pub(in crate::http) fn check(&self, key: Key, cost: u32) -> Check {
        Check::new(self.limit.of_this_thread(), key).with_cost(cost)
    }

    pub(super) fn replace(&mut self, limit: &Limit) {
        self.limit = CopiedLimit::new(limit);
    }

    pub(super) fn fail_as_layer(&mut self, policy: OnStoreFailure) -> Result<(), ConfigError> {
        if self.fails_as_layer {
            self.replace(&self.limit().clone().with_on_store_failure(policy)?);
        }
        Ok(())
    }
}

//! Which extractor of a chain finds the keys of a limit.
//!
//! A chain that always falls back limits the wrong thing, and each of its answers looks right. With
//! authentication inside the layer, all users of an office share the budget of its address.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::request::Parts;

use super::{KeyExtractor, MissingKey};
use crate::model::Key;
use crate::telemetry;

/// The name of limits without one.
pub(super) const CHOSEN: &str = "(chosen for each request)";

/// After so many keys, the first extractor should have found one.
const ENOUGH: u32 = 1_000;

/// A chain of extractors under a limit.
struct WatchedChain {
    chain: Arc<dyn KeyExtractor>,
    limit: Box<str>,
    /// The keys that a fallback found, until the first extractor found one, and then [`ENOUGH`].
    found_by_fallbacks: AtomicU32,
}

/// Counts the keys of a limit by their extractor, if there is more than one, and reports a first
/// one that finds none.
pub(super) fn watched(key: Arc<dyn KeyExtractor>, limit: &str) -> Arc<dyn KeyExtractor> {
    if key.first_branches().is_empty() {
        return key;
    }
    Arc::new(WatchedChain {
        chain: key,
        limit: limit.into(),
        found_by_fallbacks: AtomicU32::new(0),
    })
}

impl WatchedChain {
    fn found(&self, fallbacks: usize, parts: &Parts) {
        telemetry::found_key(&self.limit, fallbacks);
        if self.found_by_fallbacks.load(Ordering::Relaxed) >= ENOUGH {
            return;
        }
        if fallbacks == 0 {
            self.found_by_fallbacks.store(ENOUGH, Ordering::Relaxed);
        } else if self.found_by_fallbacks.fetch_add(1, Ordering::Relaxed) + 1 == ENOUGH {
            let first = self.chain.first_branches();
            if let Some(missing) = first.iter().find_map(|first| first.extract(parts).err()) {
                telemetry::always_falls_back(&self.limit, ENOUGH, missing.logged());
            }
        }
    }
}

impl KeyExtractor for WatchedChain {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        let key = self.chain.extract(parts)?;
        self.found(key.fallbacks(), parts);
        Ok(key)
    }

    fn fallbacks(&self) -> u8 {
        self.chain.fallbacks()
    }

    fn first_branches(&self) -> Vec<&dyn KeyExtractor> {
        self.chain.first_branches()
    }
}

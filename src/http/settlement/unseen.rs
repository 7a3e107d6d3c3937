//! Names that many settlements miss, and that none has had.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::http::names::{add_name, has_name};
use crate::units::Mutex;

/// Counts the settlements that miss a name, until one has it.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// The names that a settlement has had.
    seen: ArcSwap<Vec<Box<str>>>,
    /// How many missed each other name.
    missed: Mutex<HashMap<Box<str>, u32>>,
}

impl Unseen {
    const MOST_NAMES: usize = 64;

    /// Counts a settlement that misses the name. Returns how many there are, or 0 if one had it.
    pub(super) fn count(&self, name: &str) -> u32 {
        let seen = self.seen.load();
        // With as many names as are kept, it is not known of others whether one was seen.
        if has_name(&seen, name) || seen.len() >= Self::MOST_NAMES {
            return 0;
        }
        let mut missed = self.missed.lock();
        if let Some(count) = missed.get_mut(name) {
            *count = count.saturating_add(1);
            return *count;
        }
        if missed.len() >= Self::MOST_NAMES {
            return 0;
        }
        missed.insert(name.into(), 1);
        1
    }

    /// A settlement has the name.
    pub(super) fn see(&self, name: &str) {
        if add_name(&self.seen, name, Self::MOST_NAMES) {
            self.missed.lock().remove(name);
        }
    }

    /// The names that a settlement has had.
    pub(super) fn seen(&self) -> Arc<Vec<Box<str>>> {
        self.seen.load_full()
    }
}

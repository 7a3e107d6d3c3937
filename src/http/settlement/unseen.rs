//! Names that many settlements miss, and that none has had.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

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
        if is_in(&seen, name) || seen.len() >= Self::MOST_NAMES {
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
        let seen = self.seen.load();
        if is_in(&seen, name) || seen.len() >= Self::MOST_NAMES {
            return;
        }
        self.missed.lock().remove(name);
        self.seen.rcu(|seen| {
            let mut more = (**seen).clone();
            if !is_in(&more, name) && more.len() < Self::MOST_NAMES {
                more.push(name.into());
            }
            more
        });
    }

    /// The names that a settlement has had.
    pub(super) fn seen(&self) -> Arc<Vec<Box<str>>> {
        self.seen.load_full()
    }
}

fn is_in(names: &[Box<str>], name: &str) -> bool {
    names.iter().any(|known| **known == *name)
}

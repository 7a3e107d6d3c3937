//! Names that many requests expect, and that none has had.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

/// Counts the requests that expect a name, until one has had it.
#[derive(Debug, Default)]
pub(super) struct Unseen {
    /// The names that a request has had.
    seen: ArcSwap<Vec<Box<str>>>,
    /// The requests for each other name.
    requests: Mutex<HashMap<Box<str>, u32>>,
    /// Whether a request was counted.
    has_counted: AtomicBool,
}

impl Unseen {
    const MOST_NAMES: usize = 64;

    /// Counts a request without the name. Returns how many there are, or 0 if the name was seen.
    pub(super) fn count(&self, name: &str) -> u32 {
        self.has_counted.store(true, Ordering::Relaxed);
        let seen = self.seen.load();
        // With as many names as are kept, it is not known of others whether one was seen.
        if is_in(&seen, name) || seen.len() >= Self::MOST_NAMES {
            return 0;
        }
        let mut names = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.contains_key(name) && names.len() >= Self::MOST_NAMES {
            return 0;
        }
        let requests = names.entry(name.into()).or_default();
        *requests = requests.saturating_add(1);
        *requests
    }

    /// A request has the name.
    pub(super) fn see(&self, name: &str) {
        if is_in(&self.seen.load(), name) {
            return;
        }
        self.seen.rcu(|seen| {
            let mut more = (**seen).clone();
            if !is_in(&more, name) && more.len() < Self::MOST_NAMES {
                more.push(name.into());
            }
            more
        });
    }

    /// The same, for a name that all requests have unless there is a mistake: costs next to nothing
    /// until a request was counted.
    pub(super) fn see_if_counted(&self, name: &str) {
        if self.has_counted.load(Ordering::Relaxed) {
            self.see(name);
        }
    }

    /// The names that a request has had.
    pub(super) fn seen(&self) -> Arc<Vec<Box<str>>> {
        self.seen.load_full()
    }
}

fn is_in(names: &[Box<str>], name: &str) -> bool {
    names.iter().any(|known| **known == *name)
}

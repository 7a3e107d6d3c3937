//! A store that can be cut off, as by an outage of Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::Error;
use tollgate::store::{Answer, Operation, Store};

/// The budgets, as one tab reaches them.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    budgets: Arc<dyn Store>,
    is_cut_off: Arc<AtomicBool>,
}

impl Reach {
    pub(crate) fn new(budgets: Arc<dyn Store>) -> Self {
        Self {
            budgets,
            is_cut_off: Arc::default(),
        }
    }

    pub(crate) fn cut_off(&self, is_cut_off: bool) {
        self.is_cut_off.store(is_cut_off, Ordering::Relaxed);
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed)
    }
}

impl Store for Reach {
    fn apply(&self, operation: Operation) -> Answer {
        match self.is_cut_off() {
            true => Answer::ready(Err(Error::unreachable("the outage of the playground"))),
            false => self.budgets.apply(operation),
        }
    }
}

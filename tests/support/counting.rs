//! A store that counts its calls, and can be unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tollgate::store::{Answer, Group, Op, Store};
use tollgate::{Check, Error, Key, Limit, MemoryStore};

/// An embedded store that counts its calls, and can be switched off. Clones share one store, as
/// replicas do.
#[derive(Clone, Debug, Default)]
pub struct Counting {
    store: Arc<MemoryStore>,
    asked: Arc<AtomicU32>,
    off: Arc<AtomicBool>,
}

impl Counting {
    /// The number of calls since this was last read.
    pub fn asked(&self) -> u32 {
        self.asked.swap(0, Ordering::SeqCst)
    }

    /// Makes the store unavailable, or available again.
    pub fn switch_off(&self, off: bool) {
        self.off.store(off, Ordering::SeqCst);
    }

    /// The units that the store has charged. This call is not counted.
    pub async fn used(&self, limit: &Limit, key: &Key) -> u64 {
        let left = self
            .store
            .apply(Op::Peek, Check::new(limit, key).with_cost(0).into())
            .await
            .unwrap();
        limit.quota().capacity() - left.remaining()
    }
}

impl Store for Counting {
    fn apply(&self, op: Op, group: Group) -> Answer {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.off.load(Ordering::SeqCst) {
            return Answer::ready(Err(Error::unreachable("it is switched off")));
        }
        self.store.apply(op, group)
    }
}

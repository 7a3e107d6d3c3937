//! The runtimes that use the permits of a limiter. The tasks of its agents can run in any of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::{Handle as Runtime, Id};

use crate::units::RwLock;

/// The most runtimes that are known.
const MOST_RUNTIMES: usize = 64;

/// The newest is first.
#[derive(Default)]
pub(super) struct Runtimes(RwLock<VecDeque<Runtime>>);

impl Runtimes {
    /// Adds a runtime. Returns whether it is new.
    pub(super) fn add(&self, runtime: &Runtime) -> bool {
        let is_known = |known: &VecDeque<Runtime>| known.iter().any(|it| it.id() == runtime.id());
        if is_known(&self.0.read()) {
            return false;
        }
        let mut known = self.0.write();
        if is_known(&known) {
            return false;
        }
        if known.len() >= MOST_RUNTIMES {
            known.retain(|runtime| !is_shut_down(runtime));
            known.truncate(MOST_RUNTIMES - 1);
        }
        known.push_front(runtime.clone());
        true
    }

    /// Removes a runtime that shuts down.
    pub(super) fn remove(&self, id: Id) {
        self.0.write().retain(|runtime| runtime.id() != id);
    }

    pub(super) fn newest(&self) -> Option<Runtime> {
        let known = self.0.read();
        known.front().cloned()
    }
}

/// Returns whether a runtime is shut down. It drops a new task at once, without a poll.
fn is_shut_down(runtime: &Runtime) -> bool {
    let was_polled = Arc::<AtomicBool>::default();
    let in_task = Arc::clone(&was_polled);
    runtime.spawn(async move { in_task.store(true, Ordering::Relaxed) });
    // `None` if the task still has it.
    let dropped = Arc::into_inner(was_polled);
    dropped.is_some_and(|was_polled| !was_polled.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap()
    }

    #[test]
    fn runtimes_that_shut_down_take_no_place_of_one_that_runs() {
        let runtimes = Runtimes::default();
        let running = runtime();
        assert!(runtimes.add(running.handle()));
        for _ in 0..3 * MOST_RUNTIMES {
            let shut_down = runtime();
            assert!(runtimes.add(shut_down.handle()));
        }
        assert!(!runtimes.add(running.handle()), "it is known");
        runtimes.remove(running.handle().id());
        assert!(runtimes.add(running.handle()));
        assert_eq!(
            runtimes.newest().map(|newest| newest.id()),
            Some(running.handle().id())
        );
    }
}

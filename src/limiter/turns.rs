//! Fair queues: the waiters of one process for one budget are served first come, first served.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::futures::Notified;
use tokio::sync::{Mutex as FairMutex, Notify, OwnedMutexGuard};

use crate::nouns::Check;

type Budget = (String, String);
type Queues = Arc<Mutex<HashMap<Budget, Arc<Queue>>>>;

fn budget(check: &Check) -> Budget {
    (check.limit().name().to_owned(), check.key().as_str().to_owned())
}

fn lock(queues: &Queues) -> MutexGuard<'_, HashMap<Budget, Arc<Queue>>> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The waiters for one budget. tokio's mutex is a fair queue.
#[derive(Default)]
struct Queue {
    front: Arc<FairMutex<()>>,
    replenished: Notify,
}

/// A queue for each budget that has waiters.
#[derive(Default)]
pub(super) struct Turns {
    queues: Queues,
}

/// The front of the queue for every budget of a group.
pub(super) struct Turn {
    places: Vec<Place>,
}

/// A place in one queue: at the front if `front` is set.
struct Place {
    budget: Budget,
    queue: Option<Arc<Queue>>,
    front: Option<OwnedMutexGuard<()>>,
    queues: Queues,
}

/// Budgets that have waiters.
pub(super) struct Awaited {
    budgets: Vec<Budget>,
    queues: Queues,
}

impl Turns {
    /// Waits for the front of the queue of every budget of the group.
    pub(super) async fn wait(&self, group: &[Check]) -> Turn {
        let mut budgets: Vec<Budget> = group.iter().map(budget).collect();
        // Always in the same order, so that two groups cannot deadlock.
        budgets.sort_unstable();
        let mut places = Vec::with_capacity(budgets.len());
        for budget in budgets {
            let (mut place, front) = self.enqueue(budget);
            place.front = Some(front.lock_owned().await);
            places.push(place);
        }
        Turn { places }
    }

    fn enqueue(&self, budget: Budget) -> (Place, Arc<FairMutex<()>>) {
        let queue = Arc::clone(lock(&self.queues).entry(budget.clone()).or_default());
        let front = Arc::clone(&queue.front);
        let queues = Arc::clone(&self.queues);
        (Place { budget, queue: Some(queue), front: None, queues }, front)
    }

    /// The budgets of a group that have waiters. `None` if there are no such budgets.
    pub(super) fn awaited(&self, group: &[Check]) -> Option<Awaited> {
        let budgets: Vec<Budget> = {
            let queues = lock(&self.queues);
            if queues.is_empty() {
                return None;
            }
            group.iter().map(budget).filter(|budget| queues.contains_key(budget)).collect()
        };
        (!budgets.is_empty()).then(|| Awaited { budgets, queues: Arc::clone(&self.queues) })
    }
}

impl Awaited {
    /// Wakes the waiters at the front: units may be available earlier than they expect.
    pub(super) fn replenished(&self) {
        let queues = lock(&self.queues);
        for queue in self.budgets.iter().filter_map(|budget| queues.get(budget)) {
            queue.replenished.notify_waiters();
        }
    }
}

impl Turn {
    /// Completes when one of the budgets is refunded or reset after this call.
    pub(super) fn replenished(&self) -> impl Future<Output = ()> {
        let queues = self.places.iter().filter_map(|place| place.queue.as_ref());
        let mut all: Vec<Pin<Box<Notified<'_>>>> =
            queues.map(|queue| Box::pin(queue.replenished.notified())).collect();
        for notified in &mut all {
            notified.as_mut().enable();
        }
        poll_fn(move |cx| {
            let any = all.iter_mut().any(|notified| notified.as_mut().poll(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues);
        // Released under the lock, so that the last of several concurrent drops removes the queue.
        self.front = None;
        self.queue = None;
        if queues.get(&self.budget).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&self.budget);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::nouns::{Key, Limit, Quota};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn queues_without_waiters_are_removed_after_turns_and_after_cancellations() {
        let turns = Arc::new(Turns::default());
        let limit = Limit::gcra("limit", Quota::per_second(1)).unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        for number in 0..600_u64 {
            let (turns, limit) = (Arc::clone(&turns), limit.clone());
            waiters.spawn(async move {
                let turn = turns.wait(&[Check::new(&limit, Key::from(number % 100))]).await;
                tokio::time::sleep(Duration::from_millis(number % 3)).await;
                drop(turn);
            });
        }
        tokio::task::yield_now().await;
        waiters.abort_all();
        while waiters.join_next().await.is_some() {}
        assert_eq!(turns.queues.lock().unwrap().len(), 0);
    }
}

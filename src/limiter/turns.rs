//! First come, first served, among those of one process who wait for one budget.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as FairMutex, Notify, OwnedMutexGuard};
use tokio::time::timeout;

use crate::Charge;

type Budget = (String, String);
type Queues = Arc<Mutex<HashMap<Budget, Arc<FairMutex<()>>>>>;

/// A queue for each budget that somebody waits for. tokio's mutex is a fair queue.
#[derive(Default)]
pub(super) struct Turns {
    queues: Queues,
    came_back: Notify,
}

/// The front of the queue for every budget of a batch.
pub(super) struct Turn {
    _places: Vec<Place>,
}

/// A place in one queue, in front or not.
struct Place {
    budget: Budget,
    queue: Option<Arc<FairMutex<()>>>,
    front: Option<OwnedMutexGuard<()>>,
    queues: Queues,
}

impl Turns {
    /// Waits until nobody is in front, for any budget of the batch.
    pub(super) async fn wait(&self, batch: &[Charge<'_>]) -> Turn {
        let mut budgets: Vec<Budget> = batch
            .iter()
            .map(|charge| (charge.limit.name().to_owned(), charge.key.as_str().to_owned()))
            .collect();
        // Always in the same order: two batches cannot wait for each other.
        budgets.sort_unstable();
        let mut places = Vec::with_capacity(budgets.len());
        for budget in budgets {
            let (mut place, queue) = self.line_up(budget);
            place.front = Some(queue.lock_owned().await);
            places.push(place);
        }
        Turn { _places: places }
    }

    fn line_up(&self, budget: Budget) -> (Place, Arc<FairMutex<()>>) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = Arc::clone(queues.entry(budget.clone()).or_default());
        let held = Some(Arc::clone(&queue));
        (Place { budget, queue: held, front: None, queues: Arc::clone(&self.queues) }, queue)
    }

    pub(super) fn somebody_waits(&self) -> bool {
        !self.queues.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Tells those in front that units may have come back before their time.
    pub(super) fn look_again(&self) {
        self.came_back.notify_waiters();
    }

    /// Waits for `wait`, or until units may have come back.
    pub(super) async fn pause(&self, wait: Duration) {
        // Either way there is something new to find.
        drop(timeout(wait, self.came_back.notified()).await);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        // Let go under the lock, so that of those who leave together the last one sees it.
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
    use crate::{Key, Limit, Quota};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn queues_are_forgotten_when_nobody_is_in_line_however_they_left() {
        let turns = Arc::new(Turns::default());
        let limit = Limit::gcra("limit", Quota::per_second(1)).unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        for number in 0..600_u64 {
            let (turns, limit) = (Arc::clone(&turns), limit.clone());
            waiters.spawn(async move {
                let turn = turns.wait(&[limit.charge(&Key::from(number % 100), 1)]).await;
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

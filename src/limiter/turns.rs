//! First come, first served, among those of one process who wait for one budget.

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

/// Those who wait for one budget. tokio's mutex is a fair queue.
#[derive(Default)]
struct Queue {
    front: Arc<FairMutex<()>>,
    came_back: Notify,
}

/// A queue for each budget that somebody waits for.
#[derive(Default)]
pub(super) struct Turns {
    queues: Queues,
}

/// The front of the queue for every budget of a group.
pub(super) struct Turn {
    places: Vec<Place>,
}

/// A place in one queue, in front or not.
struct Place {
    budget: Budget,
    queue: Option<Arc<Queue>>,
    front: Option<OwnedMutexGuard<()>>,
    queues: Queues,
}

/// Budgets that somebody waits for.
pub(super) struct Awaited {
    budgets: Vec<Budget>,
    queues: Queues,
}

impl Turns {
    /// Waits until nobody is in front, for any budget of the group.
    pub(super) async fn wait(&self, group: &[Check]) -> Turn {
        let mut budgets: Vec<Budget> = group.iter().map(budget).collect();
        // Always in the same order: two batches cannot wait for each other.
        budgets.sort_unstable();
        let mut places = Vec::with_capacity(budgets.len());
        for budget in budgets {
            let (mut place, front) = self.line_up(budget);
            place.front = Some(front.lock_owned().await);
            places.push(place);
        }
        Turn { places }
    }

    fn line_up(&self, budget: Budget) -> (Place, Arc<FairMutex<()>>) {
        let queue = Arc::clone(lock(&self.queues).entry(budget.clone()).or_default());
        let front = Arc::clone(&queue.front);
        let queues = Arc::clone(&self.queues);
        (Place { budget, queue: Some(queue), front: None, queues }, front)
    }

    /// The budgets of a group, if somebody waits for one of them.
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
    /// Tells those in front that units may have come back before their time.
    pub(super) fn came_back(&self) {
        let queues = lock(&self.queues);
        for queue in self.budgets.iter().filter_map(|budget| queues.get(budget)) {
            queue.came_back.notify_waiters();
        }
    }
}

impl Turn {
    /// Completes when units of one of the budgets may have come back, from now on.
    pub(super) fn came_back(&self) -> impl Future<Output = ()> {
        let queues = self.places.iter().filter_map(|place| place.queue.as_ref());
        let mut news: Vec<Pin<Box<Notified<'_>>>> =
            queues.map(|queue| Box::pin(queue.came_back.notified())).collect();
        for notified in &mut news {
            notified.as_mut().enable();
        }
        poll_fn(move |cx| {
            let any = news.iter_mut().any(|notified| notified.as_mut().poll(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues);
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
    use crate::nouns::{Key, Limit, Quota};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn queues_are_forgotten_when_nobody_is_in_line_however_they_left() {
        let turns = Arc::new(Turns::default());
        let limit = Limit::gcra("limit", Quota::per_second(1)).unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        for number in 0..600_u64 {
            let (turns, limit) = (Arc::clone(&turns), limit.clone());
            waiters.spawn(async move {
                let turn =
                    turns.wait(&[Check::new(&limit, &Key::from(number % 100)).cost(1)]).await;
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

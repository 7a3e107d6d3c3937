//! First come, first served, among those of one process who wait for one budget.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as FairMutex, OwnedMutexGuard};

use crate::Charge;

type Budget = (String, String);
type Queues = Arc<Mutex<HashMap<Budget, Arc<FairMutex<()>>>>>;

/// A queue for each budget that somebody waits for. tokio's mutex is a fair queue.
#[derive(Default)]
pub(super) struct Turns {
    queues: Queues,
}

/// The front of the queue for every budget of a batch.
pub(super) struct Turn {
    _places: Vec<Place>,
}

/// A place in one queue, in front or not.
struct Place {
    budget: Budget,
    queue: Arc<FairMutex<()>>,
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
            let mut place = self.line_up(budget);
            place.front = Some(Arc::clone(&place.queue).lock_owned().await);
            places.push(place);
        }
        Turn { _places: places }
    }

    fn line_up(&self, budget: Budget) -> Place {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = Arc::clone(queues.entry(budget.clone()).or_default());
        Place { budget, queue, front: None, queues: Arc::clone(&self.queues) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.front = None;
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's own handle and this one: nobody else is in line.
        if Arc::strong_count(&self.queue) == 2 {
            queues.remove(&self.budget);
        }
    }
}

//! Fair queues. The waiters of one process for one budget are served first come, first served.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::reservation::Reservation;
use super::width::{FrontPlace, UnitsFound, Width};
use crate::model::{Budget, Check, Group};
use crate::units::Mutex;

/// The waiters for one budget.
#[derive(Default)]
struct WaitingQueue {
    front: Arc<Width>,
    /// The waiters at the front that were denied there. They ask again in the order of their
    /// denials.
    repeats: Arc<Width>,
    waiting: AtomicUsize,
    /// The costs of all waiters.
    units: AtomicU64,
    /// How many waiters that reserve nothing have each cost. Of several costs, a small request that
    /// asks beside a large one might overtake it.
    costs: Mutex<BTreeMap<u64, usize>>,
    reserved: Mutex<Reserved>,
    replenished: Notify,
    reset: Notify,
    /// Counts resets, each of which voids the units that waiters have reserved.
    resets: AtomicU64,
    /// Units that waiters at the front gave up, for the next ones.
    handed_over: Mutex<Vec<Reservation>>,
}

/// The units that the waiters at the front have reserved.
#[derive(Default)]
struct Reserved {
    units: u64,
    /// How many of them may be used when.
    turns: BTreeMap<Instant, u64>,
}

impl WaitingQueue {
    /// Counts a waiter that reserves nothing. If waiters have different costs, only one of them
    /// asks at a time.
    fn add_cost(&self, cost: u64) {
        let mut costs = self.costs.lock();
        *costs.entry(cost).or_default() += 1;
        if costs.len() > 1 {
            self.front.adapt(UnitsFound::Missing, Duration::ZERO, 1);
        }
    }

    fn remove_cost(&self, cost: u64) {
        let mut costs = self.costs.lock();
        if let Some(waiters) = costs.get_mut(&cost) {
            *waiters -= 1;
            if *waiters == 0 {
                costs.remove(&cost);
            }
        }
    }
}

/// A queue for each budget that has waiters.
#[derive(Default)]
pub(in crate::limiter) struct Turns {
    queues: Mutex<HashMap<Budget, Arc<WaitingQueue>>>,
    /// The number of places in all queues, so that a check that need not wait takes no lock.
    places: AtomicUsize,
    /// How often budgets were refunded, settled, reset or blocked, by a hash of the budget.
    changes: [AtomicU64; 32],
}

/// A place at the front of the queue for every budget of a group.
pub(super) struct Turn<'a> {
    places: Vec<Place<'a>>,
}

/// A place in one queue, at the front if `front` is set. When it is dropped, the fields are dropped
/// without the lock of the queues, because that wakes the next waiter, and gives back units that
/// were handed over.
struct Place<'a> {
    turns: &'a Turns,
    budget: Budget,
    queue: Arc<WaitingQueue>,
    units: u64,
    /// `true` if its cost is counted, because it reserves nothing.
    has_cost: bool,
    front: Option<FrontPlace>,
}

impl Turns {
    /// Waits for the front of the queue of every budget of the group. `None` if one of the queues
    /// has `most` waiters.
    pub(super) async fn wait(&self, group: &[Check], most: usize) -> Option<Turn<'_>> {
        let costs = group.iter().map(|check| u64::from(check.cost()));
        let mut budgets: Vec<(Budget, u64)> = group
            .iter()
            .map(Check::budget)
            .cloned()
            .zip(costs)
            .collect();
        // Always in the same order, so that two groups cannot deadlock.
        budgets.sort_unstable();
        let mut places = Vec::with_capacity(budgets.len());
        // Reservations keep the order in the store.
        let reserves = matches!(group, [check] if check.limit().reserves());
        for (budget, units) in budgets {
            let mut place = self.enqueue(budget, units, most)?;
            if !reserves {
                place.queue.add_cost(units);
                place.has_cost = true;
            }
            place.front = place.queue.front.take_place().await;
            places.push(place);
        }
        Some(Turn { places })
    }

    fn enqueue(&self, budget: Budget, units: u64, most: usize) -> Option<Place<'_>> {
        let mut queues = self.queues.lock();
        let queue = Arc::clone(queues.entry(budget.clone()).or_default());
        // Counted under the lock, so that the last waiter before does not remove the queue.
        let before = queue.waiting.fetch_add(1, Ordering::AcqRel);
        drop(queues);
        queue.units.fetch_add(units, Ordering::AcqRel);
        self.places.fetch_add(1, Ordering::SeqCst);
        let place = Place {
            turns: self,
            budget,
            queue,
            units,
            has_cost: false,
            front: None,
        };
        (before < most).then_some(place)
    }

    /// The least time until the turn of a check behind the waiters of this process. `None` if it is
    /// not known, for groups, and for algorithms that reserve no units.
    pub(super) fn least_wait(&self, group: &[Check]) -> Option<Duration> {
        let [check] = group else { return None };
        let limit = check.limit();
        if !limit.reserves() || self.places.load(Ordering::Acquire) == 0 {
            return None;
        }
        let queues = self.queues.lock();
        let queue = queues.get(check.budget())?;
        let units = queue
            .units
            .load(Ordering::Acquire)
            .saturating_add(check.cost().into());
        let reserved = queue.reserved.lock();
        Some(match reserved.turns.last_key_value() {
            // Then the bucket is empty.
            Some((turn, _)) => {
                let after_front = limit.refill_time(units.saturating_sub(reserved.units));
                turn.saturating_duration_since(Instant::now())
                    .saturating_add(after_front)
            }
            None => limit.refill_time(units.saturating_sub(limit.quota().capacity())),
        })
    }

    /// The checks of a group whose budgets have waiters.
    pub(super) fn contested(&self, group: &[Check]) -> Vec<Check> {
        if self.places.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let queues = self.queues.lock();
        let contested = group
            .iter()
            .filter(|check| queues.contains_key(check.budget()));
        contested.cloned().collect()
    }

    /// The number of changes of the budgets of a group. Changes of others may count with them. A
    /// caller that compares two of these numbers asks the store too often then, and never too
    /// rarely.
    pub(super) fn changes(&self, group: &[Check]) -> u64 {
        let changes = group.iter().map(|check| self.changes_of(check.budget()));
        changes.fold(0, |sum, changes| {
            sum.wrapping_add(changes.load(Ordering::SeqCst))
        })
    }

    fn changes_of(&self, budget: &Budget) -> &AtomicU64 {
        let mut hasher = DefaultHasher::new();
        budget.hash(&mut hasher);
        &self.changes[hasher.finish() as usize % self.changes.len()]
    }

    /// Wakes the waiters at the front of a budget that was changed, because units may be available
    /// earlier than they expect. Callers that have no place yet see it in the number of
    /// [`changes`](Self::changes). A reset voids units that waiters reserved.
    pub(in crate::limiter) fn changed(&self, budget: &Budget, is_reset: bool) {
        self.changes_of(budget).fetch_add(1, Ordering::SeqCst);
        // A caller takes its place before it compares the numbers. So either it sees this change,
        // or its place is seen here.
        if self.places.load(Ordering::SeqCst) == 0 {
            return;
        }
        // Without the lock, because a waker may drop its waiter at once, which takes the lock
        // again.
        let queue = self.queues.lock().get(budget).cloned();
        let Some(queue) = queue else { return };
        queue.replenished.notify_waiters();
        if is_reset {
            queue.resets.fetch_add(1, Ordering::SeqCst);
            queue.reset.notify_waiters();
            let void = mem::take(&mut *queue.handed_over.lock());
            void.into_iter().for_each(Reservation::close);
        }
    }
}

impl Turn<'_> {
    /// Completes when one of the budgets is refunded, settled or reset after this call.
    pub(super) fn replenished(&self) -> impl Future<Output = ()> {
        self.notified(|queue| &queue.replenished)
    }

    /// Completes when one of the budgets is reset after this call.
    pub(super) fn reset(&self) -> impl Future<Output = ()> {
        self.notified(|queue| &queue.reset)
    }

    /// The number of resets so far. Units that were reserved after it was read are void if it has
    /// changed.
    pub(super) fn resets(&self) -> u64 {
        let places = self.places.iter();
        places.fold(0, |sum, place| {
            sum.wrapping_add(place.queue.resets.load(Ordering::SeqCst))
        })
    }

    /// Notes when a waiter at the front may use its units, for those that come later.
    pub(super) fn note_reserved(&self, turn: Instant) {
        let [place] = &*self.places else { return };
        let mut reserved = place.queue.reserved.lock();
        reserved.units += place.units;
        *reserved.turns.entry(turn).or_default() += place.units;
    }

    /// The units that were noted with this turn are used or given up.
    pub(super) fn note_unreserved(&self, turn: Instant) {
        let [place] = &*self.places else { return };
        let mut reserved = place.queue.reserved.lock();
        reserved.units = reserved.units.saturating_sub(place.units);
        if let Some(units) = reserved.turns.get_mut(&turn) {
            *units = units.saturating_sub(place.units);
            if *units == 0 {
                reserved.turns.remove(&turn);
            }
        }
    }

    /// Adapts to an answer of the store how many waiters for these checks ask at once. Waiters that
    /// were denied and ask again have a width of their own, because new waiters go on only after
    /// them.
    pub(super) fn adapt(
        &self,
        checks: &[Check],
        found: UnitsFound,
        round_trip: Duration,
        is_repeat: bool,
    ) {
        let is_checked =
            |place: &&Place<'_>| checks.iter().any(|check| *check.budget() == place.budget);
        for place in self.places.iter().filter(is_checked) {
            let queue = &place.queue;
            let keeps_order = found != UnitsFound::Free || queue.costs.lock().len() <= 1;
            if keeps_order {
                let width = if is_repeat {
                    &queue.repeats
                } else {
                    &queue.front
                };
                width.adapt(found, round_trip, queue.waiting.load(Ordering::Acquire));
            }
        }
    }

    /// Waits until the waiters that were denied before have asked again.
    pub(super) async fn wait_to_repeat(&self) -> Vec<FrontPlace> {
        let mut repeat = Vec::with_capacity(self.places.len());
        for place in &self.places {
            repeat.extend(place.queue.repeats.take_place().await);
        }
        repeat
    }

    /// Hands units over to a waiter that has none. Without one, they are given back. They are void
    /// if there were other `resets` since they were reserved.
    pub(super) fn hand_over(&self, reservation: Reservation, resets: u64) {
        let [place] = &*self.places else { return };
        let queue = &place.queue;
        // A reset is counted before it voids what is handed over. So it is seen here, or it voids
        // these units.
        let mut handed_over = queue.handed_over.lock();
        if self.resets() != resets {
            return reservation.close();
        }
        let with_units = queue.reserved.lock().units + place.units * (handed_over.len() as u64 + 1);
        if queue.units.load(Ordering::Acquire) > with_units {
            handed_over.push(reservation);
        }
    }

    /// Takes all units that waiters handed over, of each budget.
    pub(super) fn take_handed_over(&self) -> Vec<Reservation> {
        let places = self.places.iter();
        places
            .flat_map(|place| mem::take(&mut *place.queue.handed_over.lock()))
            .collect()
    }

    /// Takes the units that suit a group best, of those that waiters handed over. Those whose time
    /// is over are given back.
    pub(super) fn take_suiting(&self, group: &Group, deadline: Instant) -> Option<Reservation> {
        let resets = self.resets();
        let mut all = self.take_handed_over();
        all.retain(|reservation| !reservation.is_late_for(Instant::now()));
        all.sort_by_key(Reservation::turn);
        let suiting = all
            .iter()
            .position(|reservation| reservation.suits(group, deadline));
        let suiting = suiting.map(|index| all.remove(index));
        all.into_iter()
            .for_each(|reservation| self.hand_over(reservation, resets));
        suiting
    }

    fn notified(&self, of: impl Fn(&WaitingQueue) -> &Notify) -> impl Future<Output = ()> {
        let places = self.places.iter();
        let mut all: Vec<Pin<Box<Notified<'_>>>> = places
            .map(|place| Box::pin(of(&place.queue).notified()))
            .collect();
        for notified in &mut all {
            notified.as_mut().enable();
        }
        poll_fn(move |cx| {
            let any = all
                .iter_mut()
                .any(|notified| notified.as_mut().poll(cx).is_ready());
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let queue = &self.queue;
        let mut queues = self.turns.queues.lock();
        // Counted under the lock, so that the last of several concurrent drops removes the queue.
        let is_last = queue.waiting.fetch_sub(1, Ordering::AcqRel) == 1;
        queue.units.fetch_sub(self.units, Ordering::AcqRel);
        if self.has_cost {
            queue.remove_cost(self.units);
        }
        if is_last {
            // This place still has the queue.
            queues.remove(&self.budget);
        }
        drop(queues);
        self.turns.places.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Key, Limit};
    use crate::units::Quota;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn queues_without_waiters_are_removed_after_turns_and_after_cancellations() {
        let turns = Arc::new(Turns::default());
        let limit = Limit::gcra("limit", Quota::per_second(1)).unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        for number in 0..600_u64 {
            let turns = Arc::clone(&turns);
            let limit = limit.clone();
            waiters.spawn(async move {
                let check = Check::new(&limit, Key::from(number % 100));
                let turn = turns.wait(&[check], usize::MAX).await;
                tokio::time::sleep(Duration::from_millis(number % 3)).await;
                drop(turn);
            });
        }
        tokio::task::yield_now().await;
        waiters.abort_all();
        while waiters.join_next().await.is_some() {}
        assert_eq!(turns.queues.lock().len(), 0);
    }
}

//! The slots of an agent, the queues in which they wait to be claimed, and the claims in flight: a state without I/O.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tokio::runtime::Handle as Runtime;
use tokio::time::Instant;

use super::AGENTS;
use super::permit::SlotKey;
use super::slot::{ClaimQueue, Slot};
use crate::nouns::Check;
use crate::store::Answer;
use crate::store::heartbeat::Heartbeat;

/// The memory for so many slots is kept.
const KEPT_CAPACITY: usize = 1_024;

/// The most runtimes to which a task can move.
const MOST_RUNTIMES: usize = 8;

/// The most claims of changed slots in flight. A thousand of all agents are four calls to Redis, so checks do not wait long
/// behind them.
const MOST_URGENT: usize = 1_024 / AGENTS;

/// The most renewals in flight, and claims of slots without callers that are repeated after a failure.
const MOST_RENEWALS: usize = 512 / AGENTS;

#[derive(Default)]
pub(super) struct Slots {
    pub(super) slots: HashMap<SlotKey, Slot>,
    pub(super) queues: Queues,
    /// The slots that may have waiters, or a claim that an embedded store has not answered.
    pub(super) watched: HashSet<SlotKey>,
    /// The slots that hold nothing, and whose last claim failed.
    pub(super) unconfirmed: HashSet<SlotKey>,
    /// The time of the last scan of all slots.
    pub(super) scanned: Option<Instant>,
    /// The number of the task that runs.
    pub(super) task: Option<u64>,
    /// Counts tasks.
    pub(super) tasks: u64,
    /// The task's last round.
    pub(super) rounds: Heartbeat,
    /// The last runtimes with callers. The task moves to another one when its runtime shuts down.
    pub(super) runtimes: VecDeque<Runtime>,
    /// Counts holders.
    pub(super) holders: u64,
}

/// The slots that the task has to claim, and the claims in flight.
#[derive(Default)]
pub(super) struct Queues {
    /// Slots with changes or callers.
    urgent: VecDeque<SlotKey>,
    /// Slots whose leases are to be renewed.
    renewals: VecDeque<SlotKey>,
    /// The claims in flight, by number.
    sent: BTreeMap<u64, SentClaim>,
    /// How many of them are renewals.
    sent_renewals: usize,
    /// The answers of claims that were sent, and that no task awaits yet.
    unawaited: Vec<(u64, Answer)>,
    /// Counts claims.
    claims: u64,
}

/// A claim in flight.
struct SentClaim {
    key: SlotKey,
    at: Instant,
    queue: ClaimQueue,
}

impl Queues {
    pub(super) fn queue(&mut self, key: &SlotKey, slot: &mut Slot) {
        match slot.enter_queue() {
            Some(ClaimQueue::Urgent) => self.urgent.push_back(key.clone()),
            Some(ClaimQueue::Renewals) => self.renewals.push_back(key.clone()),
            None => {}
        }
    }

    /// Takes out the next slots, and makes their claims, with their numbers. Neither queue takes the places of the other: leases
    /// expire, and callers wait.
    fn take(&mut self, slots: &mut HashMap<SlotKey, Slot>, lease: Duration) -> Vec<(u64, Check)> {
        let mut taken = Vec::new();
        let now = Instant::now();
        for queue in [ClaimQueue::Renewals, ClaimQueue::Urgent] {
            while self.has_place(queue)
                && let Some(key) = self.pop(queue)
            {
                // The slot may be gone, or claimed since.
                let Some(slot) = slots.get_mut(&key).filter(|slot| slot.is_in(queue)) else {
                    continue;
                };
                let check = slot.claim(&key, lease, now);
                let number = self.depart(key, slot, now, queue);
                taken.push((number, check));
            }
        }
        taken
    }

    /// Counts a claim in flight. Returns its number.
    fn depart(&mut self, key: SlotKey, slot: &mut Slot, at: Instant, queue: ClaimQueue) -> u64 {
        slot.depart();
        self.claims += 1;
        self.sent_renewals += usize::from(queue == ClaimQueue::Renewals);
        self.sent.insert(self.claims, SentClaim { key, at, queue });
        self.claims
    }

    /// Keeps the answer of a claim that was sent at once.
    pub(super) fn keep_answer(&mut self, key: &SlotKey, slot: &mut Slot, answer: Answer) {
        let number = self.depart(key.clone(), slot, Instant::now(), ClaimQueue::Urgent);
        self.unawaited.push((number, answer));
    }

    /// Takes the answers that no task awaits yet.
    pub(super) fn take_unawaited(&mut self) -> Vec<(u64, Answer)> {
        mem::take(&mut self.unawaited)
    }

    fn has_place(&self, queue: ClaimQueue) -> bool {
        match queue {
            ClaimQueue::Urgent => self.sent.len() - self.sent_renewals < MOST_URGENT,
            ClaimQueue::Renewals => self.sent_renewals < MOST_RENEWALS,
        }
    }

    fn pop(&mut self, queue: ClaimQueue) -> Option<SlotKey> {
        match queue {
            ClaimQueue::Urgent => self.urgent.pop_front(),
            ClaimQueue::Renewals => self.renewals.pop_front(),
        }
    }

    /// The key of a claim that has landed. `None` if it was given up.
    fn land(&mut self, number: u64) -> Option<SlotKey> {
        let sent = self.sent.remove(&number)?;
        self.sent_renewals -= usize::from(sent.queue == ClaimQueue::Renewals);
        Some(sent.key)
    }

    /// The claims that were sent at least so long ago.
    pub(super) fn sent_before(&self, age: Duration) -> Vec<u64> {
        let is_late = |sent: &SentClaim| sent.at.elapsed() >= age;
        let late = self.sent.iter().filter(|(_, sent)| is_late(sent));
        late.map(|(number, _)| *number).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.renewals.is_empty() && self.sent.is_empty()
    }
}

impl Slots {
    /// Notes a runtime to which the task can move.
    pub(super) fn note_runtime(&mut self, runtime: &Runtime) {
        if self.runtimes.iter().all(|known| known.id() != runtime.id()) {
            self.runtimes.truncate(MOST_RUNTIMES - 1);
            self.runtimes.push_front(runtime.clone());
        }
    }

    /// The claims to be sent, with their numbers.
    pub(super) fn take(&mut self, lease: Duration) -> Vec<(u64, Check)> {
        self.queues.take(&mut self.slots, lease)
    }

    /// The slot of a claim that has landed. `None` if the claim was given up.
    pub(super) fn land(&mut self, number: u64) -> Option<(SlotKey, &mut Slot)> {
        let key = self.queues.land(number)?;
        let slot = self.slots.get_mut(&key)?;
        Some((key, slot))
    }

    /// Removes a slot. Frees unused memory.
    pub(super) fn remove(&mut self, key: &SlotKey) {
        let Self {
            slots,
            queues,
            watched,
            unconfirmed,
            ..
        } = self;
        slots.remove(key);
        watched.remove(key);
        unconfirmed.remove(key);
        if slots.capacity() > KEPT_CAPACITY && slots.len() < slots.capacity() / 8 {
            slots.shrink_to(slots.len() * 2);
            queues.urgent.shrink_to(slots.len());
            queues.renewals.shrink_to(slots.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::super::agent::Agent;
    use super::*;
    use crate::nouns::{Key, Limit};
    use crate::store::MemoryStore;

    const LEASE: Duration = Duration::from_secs(10);

    fn exports() -> Limit {
        Limit::concurrency("exports", 1).unwrap()
    }

    fn key(number: usize) -> SlotKey {
        SlotKey::new(&Check::new(&exports(), Key::from(number as u64)))
    }

    /// Slots in the queues: the first ones are urgent, the others are renewals.
    fn queued(urgent: usize, all: usize) -> Slots {
        let mut state = Slots::default();
        for number in 0..all {
            let mut slot = Slot::new([0; 8], 1);
            if number < urgent {
                slot.release();
            }
            slot.mark_due();
            state.queues.queue(&key(number), &mut slot);
            state.slots.insert(key(number), slot);
        }
        state
    }

    fn is_renewal(check: &Check) -> bool {
        check.claim().is_some_and(|claim| claim.released == 0)
    }

    #[test]
    fn neither_callers_nor_renewals_take_the_places_of_the_others() {
        let mut state = queued(1_000, 2_000);
        for _ in 0..3 {
            let taken = state.take(LEASE);
            let renewals = taken.iter().filter(|(_, check)| is_renewal(check)).count();
            assert_eq!(
                (taken.len(), renewals),
                (MOST_URGENT + MOST_RENEWALS, MOST_RENEWALS)
            );
            assert!(state.take(LEASE).is_empty(), "all are in flight");
            for (number, check) in taken {
                let (_, slot) = state.land(number).expect("it is in flight");
                slot.answered(0, Instant::now(), &mut Vec::new());
                assert!(slot.is_confirmed(), "{check:?}");
            }
        }
        assert_eq!(queued(0, 1_000).take(LEASE).len(), MOST_RENEWALS);
        assert_eq!(queued(1_000, 1_000).take(LEASE).len(), MOST_URGENT);
    }

    #[test]
    fn renewal_that_becomes_urgent_is_claimed_once_and_soon() {
        let mut state = queued(0, 1_000);
        let last = state.slots.get_mut(&key(999)).unwrap();
        last.release();
        state.queues.queue(&key(999), last);
        state.queues.queue(&key(999), last);
        let mut claimed = Vec::new();
        while !state.queues.is_empty() {
            for (number, check) in state.take(LEASE) {
                state
                    .land(number)
                    .unwrap()
                    .1
                    .answered(0, Instant::now(), &mut Vec::new());
                claimed.push(check);
            }
        }
        let last = |check: &Check| check.key() == key(999).key();
        assert_eq!(claimed.len(), 1_000);
        assert_eq!(
            claimed.iter().position(last),
            Some(MOST_RENEWALS),
            "after the renewals of one turn"
        );
    }

    #[test]
    fn claim_that_was_given_up_is_not_answered() {
        let mut state = queued(1, 1);
        let [(first, _)] = state.take(LEASE).try_into().unwrap();
        state.land(first).unwrap().1.lost();
        assert!(state.land(first).is_none());
    }

    #[tokio::test]
    async fn memory_is_freed_after_many_keys() {
        let agent = Arc::new(Agent::new(
            Arc::new(MemoryStore::new()),
            LEASE,
            Arc::default(),
        ));
        let mut held = Vec::new();
        for number in 0..50_000 {
            let (caller, outcome) = oneshot::channel();
            agent.request(&key(number), 1, caller);
            held.push(outcome.await.unwrap().unwrap());
        }
        assert!(agent.lock().slots.capacity() >= 50_000);
        drop(held);
        assert_eq!(agent.keys(), 0);
        assert!(agent.lock().slots.capacity() <= KEPT_CAPACITY);
    }
}

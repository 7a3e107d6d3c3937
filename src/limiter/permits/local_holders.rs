//! The holders of an agent, the queues in which they wait to be claimed, and the claims in flight.
//! It sends nothing itself.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;

use super::AGENTS;
use super::hashed_budget::HashedBudget;
use super::local_holder::{ClaimKind, LocalHolder};
use crate::model::Operation;
use crate::store::Answer;
use crate::store::heartbeat::Heartbeat;

/// The memory for so many holders is kept.
const KEPT_CAPACITY: usize = 1_024;

/// The most holders with callers that wait to be claimed. As many checks wait for a Redis by
/// default.
pub(super) const MOST_QUEUED: usize = 16_384 / AGENTS;

/// The most claims of each kind in flight. A thousand claims of all agents are four calls to Redis,
/// so checks do not wait long behind them.
const fn most_in_flight(kind: ClaimKind) -> usize {
    match kind {
        ClaimKind::Caller => 1_024 / AGENTS,
        ClaimKind::Release | ClaimKind::Poll | ClaimKind::Renewal => 512 / AGENTS,
    }
}

#[derive(Default)]
pub(super) struct LocalHolders {
    pub(super) holders: HashMap<Arc<HashedBudget>, LocalHolder>,
    pub(super) queues: ClaimQueues,
    /// The holders that may have waiters, or a change that is not claimed.
    pub(super) watched: HashSet<Arc<HashedBudget>>,
    /// The holders that hold nothing, and whose last claim failed.
    pub(super) unconfirmed: HashSet<Arc<HashedBudget>>,
    /// The time of the last scan of all holders.
    pub(super) scanned: Option<Instant>,
    /// The number of the task that runs.
    pub(super) running: Option<u64>,
    /// Counts tasks.
    pub(super) started: u64,
    /// The task's last round.
    pub(super) rounds: Heartbeat,
    /// When the store last answered a claim.
    pub(super) answered_at: Option<Instant>,
    /// Counts the holders so far, for their ids.
    pub(super) created: u64,
    /// Counts the places of waiters, because a holder may be gone when its waiter leaves, and
    /// another may have other waiters.
    pub(super) places: u64,
}

/// The holders that the task has to claim, and the claims in flight.
#[derive(Default)]
pub(super) struct ClaimQueues {
    /// The holders to be claimed, by the kind of their claim.
    queued: [VecDeque<Arc<HashedBudget>>; ClaimKind::ALL.len()],
    /// How many claims of each kind are in flight.
    in_flight: [usize; ClaimKind::ALL.len()],
    /// The claims in flight, by number.
    sent: BTreeMap<u64, SentClaim>,
    /// The answers of claims that were sent, and that no task awaits yet.
    unawaited: Vec<(u64, Answer)>,
    /// Counts claims.
    claims: u64,
}

/// A claim in flight.
struct SentClaim {
    budget: Arc<HashedBudget>,
    at: Instant,
    kind: ClaimKind,
}

impl ClaimQueues {
    /// Queues a holder, if it has to be claimed.
    pub(super) fn enqueue(&mut self, budget: &Arc<HashedBudget>, holder: &mut LocalHolder) {
        if let Some(kind) = holder.enter_queue() {
            self.queued[kind as usize].push_back(budget.clone());
        }
    }

    /// Takes out the next holders, and makes their claims, with their numbers.
    fn take(
        &mut self,
        holders: &mut HashMap<Arc<HashedBudget>, LocalHolder>,
        lease: Duration,
    ) -> Vec<(u64, Operation)> {
        let mut taken = Vec::new();
        let now = Instant::now();
        for kind in ClaimKind::ALL {
            while self.in_flight[kind as usize] < most_in_flight(kind)
                && let Some(budget) = self.queued[kind as usize].pop_front()
            {
                // The holder may be gone, or claimed since.
                let Some(holder) = holders
                    .get_mut(&budget)
                    .filter(|holder| holder.is_queued_for(kind))
                else {
                    continue;
                };
                let claim = holder.claim(&budget, lease, now);
                let number = self.depart(budget, holder, now, kind);
                taken.push((number, claim));
            }
        }
        taken
    }

    /// Counts a claim in flight. Returns its number.
    fn depart(
        &mut self,
        budget: Arc<HashedBudget>,
        holder: &mut LocalHolder,
        at: Instant,
        kind: ClaimKind,
    ) -> u64 {
        holder.depart();
        self.claims += 1;
        self.in_flight[kind as usize] += 1;
        self.sent
            .insert(self.claims, SentClaim { budget, at, kind });
        self.claims
    }

    /// Keeps the answer of a claim that was sent at once.
    pub(super) fn keep_answer(
        &mut self,
        budget: &Arc<HashedBudget>,
        holder: &mut LocalHolder,
        answer: Answer,
    ) {
        let number = self.depart(budget.clone(), holder, Instant::now(), ClaimKind::Caller);
        self.unawaited.push((number, answer));
    }

    /// Takes the answers that no task awaits yet.
    pub(super) fn take_unawaited(&mut self) -> Vec<(u64, Answer)> {
        mem::take(&mut self.unawaited)
    }

    /// The budget of a claim that has landed. `None` if it was given up.
    fn land(&mut self, number: u64) -> Option<Arc<HashedBudget>> {
        let sent = self.sent.remove(&number)?;
        self.in_flight[sent.kind as usize] -= 1;
        Some(sent.budget)
    }

    /// The claims in flight.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.sent.keys().copied().collect()
    }

    /// The claims that were sent at least so long ago.
    pub(super) fn sent_before(&self, age: Duration) -> Vec<u64> {
        let is_late = |sent: &SentClaim| sent.at.elapsed() >= age;
        let late = self.sent.iter().filter(|(_, sent)| is_late(sent));
        late.map(|(number, _)| *number).collect()
    }

    /// Returns whether changed holders are queued.
    fn has_changes(&self) -> bool {
        let kinds = [ClaimKind::Caller, ClaimKind::Release];
        kinds
            .iter()
            .any(|kind| !self.queued[*kind as usize].is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queued.iter().all(VecDeque::is_empty) && self.sent.is_empty()
    }
}

impl LocalHolders {
    /// The claims to be sent, with their numbers.
    pub(super) fn take(&mut self, lease: Duration) -> Vec<(u64, Operation)> {
        self.queues.take(&mut self.holders, lease)
    }

    /// The holder of a claim that has landed. `None` if the claim was given up.
    pub(super) fn land(&mut self, number: u64) -> Option<(Arc<HashedBudget>, &mut LocalHolder)> {
        let budget = self.queues.land(number)?;
        let holder = self.holders.get_mut(&budget)?;
        Some((budget, holder))
    }

    /// Returns whether a caller of this budget would be one too many, because the holders with
    /// callers that wait to be claimed are as many as may be.
    pub(super) fn is_overloaded_for(&self, budget: &Arc<HashedBudget>) -> bool {
        self.queues.queued[ClaimKind::Caller as usize].len() >= MOST_QUEUED
            && !self
                .holders
                .get(budget)
                .is_some_and(LocalHolder::has_callers)
    }

    /// Returns whether the store has confirmed all changes. All holders are looked at only if no
    /// changed holder is queued.
    pub(super) fn are_confirmed(&self) -> bool {
        !self.queues.has_changes() && self.holders.values().all(LocalHolder::is_confirmed)
    }

    /// The task has ended.
    pub(super) const fn end_task(&mut self) {
        self.running = None;
        self.rounds.end();
    }

    /// Removes a holder. Frees unused memory.
    pub(super) fn remove(&mut self, budget: &Arc<HashedBudget>) {
        let Self {
            holders,
            queues,
            watched,
            unconfirmed,
            ..
        } = self;
        holders.remove(budget);
        watched.remove(budget);
        unconfirmed.remove(budget);
        if holders.capacity() > KEPT_CAPACITY && holders.len() < holders.capacity() / 8 {
            holders.shrink_to(holders.len() * 2);
            for queue in &mut queues.queued {
                queue.shrink_to(holders.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};
    use std::iter;

    use tokio::sync::oneshot;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::super::agent::Agent;
    use super::super::callers::PermitCaller;
    use super::super::pace::Paces;
    use super::*;
    use crate::model::{Budget, Change, Error, Limit};
    use crate::store::MemoryStore;

    const LEASE: Duration = Duration::from_secs(10);

    fn exports() -> Limit {
        Limit::concurrency("exports", 1).unwrap()
    }

    fn key(number: usize) -> Arc<HashedBudget> {
        let budget = Budget::new(&exports(), number as u64);
        Arc::new(HashedBudget::new(
            &budget,
            &BuildHasherDefault::<DefaultHasher>::default(),
        ))
    }

    fn caller() -> PermitCaller {
        let (outcome, receiver) = oneshot::channel();
        // It is not gone while the test runs.
        std::mem::forget(receiver);
        PermitCaller { outcome, limit: 1 }
    }

    const NOW: Paces = Paces {
        poll: Duration::ZERO,
        recent: Duration::ZERO,
        renew: Duration::ZERO,
        retry: Duration::ZERO,
        lost: LEASE,
    };

    /// It was claimed and answered, and the time for the next claim has come.
    fn make_due(holder: &mut LocalHolder) {
        let now = Instant::now();
        holder.claim(&key(0), LEASE, now);
        holder.apply_answer(0, now, &mut Vec::new());
        assert!(holder.mark_if_due(now, &NOW));
    }

    /// A holder whose next claim is of this kind.
    fn holder(kind: ClaimKind) -> LocalHolder {
        let mut holder = LocalHolder::new([0; 8], 1);
        match kind {
            ClaimKind::Caller => holder.add_at_once(caller()),
            ClaimKind::Release => holder.release(),
            ClaimKind::Poll => {
                holder.add_waiter(1, caller());
                make_due(&mut holder);
            }
            ClaimKind::Renewal => make_due(&mut holder),
        }
        holder
    }

    /// So many holders of each kind, queued.
    fn queued(counts: &[(ClaimKind, usize)]) -> LocalHolders {
        let mut state = LocalHolders::default();
        let kinds = counts
            .iter()
            .flat_map(|(kind, count)| iter::repeat_n(*kind, *count));
        for (number, kind) in kinds.enumerate() {
            let mut holder = holder(kind);
            state.queues.enqueue(&key(number), &mut holder);
            state.holders.insert(key(number), holder);
        }
        state
    }

    fn kind(claim: &Operation) -> ClaimKind {
        let Operation::Change(_, Change::Claim(claim)) = claim else {
            panic!("{claim:?} is no claim");
        };
        match (claim.released, claim.waiting, claim.at_once) {
            (0, 0, 0) => ClaimKind::Renewal,
            (0, 0, _) => ClaimKind::Caller,
            (0, ..) => ClaimKind::Poll,
            _ => ClaimKind::Release,
        }
    }

    fn answer_all(state: &mut LocalHolders, claims: Vec<(u64, Operation)>) {
        for (number, claim) in claims {
            let (_, holder) = state.land(number).expect("it is in flight");
            holder.apply_answer(0, Instant::now(), &mut Vec::new());
            assert!(holder.is_confirmed(), "{claim:?}");
        }
    }

    #[test]
    fn no_kind_of_claim_takes_the_places_of_another() {
        let mut state = queued(&ClaimKind::ALL.map(|kind| (kind, 1_000)));
        for _ in 0..3 {
            let taken = state.take(LEASE);
            for of_kind in ClaimKind::ALL {
                let count = taken
                    .iter()
                    .filter(|(_, claim)| kind(claim) == of_kind)
                    .count();
                assert_eq!(count, most_in_flight(of_kind));
            }
            assert!(state.take(LEASE).is_empty(), "all are in flight");
            answer_all(&mut state, taken);
        }
        for of_kind in ClaimKind::ALL {
            let taken = queued(&[(of_kind, 1_000)]).take(LEASE);
            assert_eq!(taken.len(), most_in_flight(of_kind));
        }
    }

    #[test]
    fn renewal_of_a_slot_that_releases_is_claimed_once_and_soon() {
        let mut state = queued(&[(ClaimKind::Renewal, 1_000)]);
        let last = state.holders.get_mut(&key(999)).unwrap();
        last.release();
        state.queues.enqueue(&key(999), last);
        state.queues.enqueue(&key(999), last);
        let mut claimed = Vec::new();
        while !state.queues.is_empty() {
            let taken = state.take(LEASE);
            let budgets = taken.iter().flat_map(|(_, claim)| claim.budgets());
            claimed.extend(budgets.map(|budget| budget.key().clone()));
            answer_all(&mut state, taken);
        }
        assert_eq!(claimed.len(), 1_000);
        assert_eq!(claimed[0], *key(999).key());
    }

    #[test]
    fn holder_with_callers_stays_in_their_queue() {
        let mut holder = LocalHolder::new([0; 8], 1);
        let (outcome, receiver) = oneshot::channel();
        holder.add_at_once(PermitCaller { outcome, limit: 1 });
        holder.claim(&key(0), LEASE, Instant::now());
        holder.depart();
        let failure = Error::store("down");
        holder.apply_failure(&failure, Instant::now(), &mut Vec::new());
        drop(receiver);
        assert_eq!(holder.enter_queue(), None, "it is repeated after a pause");
        holder.add_waiter(1, caller());
        assert_eq!(holder.enter_queue(), Some(ClaimKind::Caller));
        assert!(!holder.mark_if_due(Instant::now(), &NOW));
        assert_eq!(holder.enter_queue(), None);
        assert!(holder.is_queued_for(ClaimKind::Caller));
    }

    #[test]
    fn claim_that_was_given_up_is_not_answered() {
        let mut state = queued(&[(ClaimKind::Release, 1)]);
        let [(first, _)] = state.take(LEASE).try_into().unwrap();
        state.land(first).unwrap().1.apply_loss(Instant::now());
        assert!(state.land(first).is_none());
    }

    fn agent() -> Arc<Agent> {
        let store = Arc::new(MemoryStore::new());
        Arc::new(Agent::new(store, LEASE, Arc::default(), Arc::default()))
    }

    #[tokio::test]
    async fn waiter_of_a_holder_that_is_gone_takes_no_place_of_a_later_waiter() {
        let agent = agent();
        let key = key(0);
        let mut first = agent.add_caller(&key, 1, None).unwrap().unwrap();
        let permit = (&mut first.outcome).await.unwrap().unwrap();
        let before = agent.add_caller(&key, 1, Some(9)).unwrap().unwrap();
        // As after a failure, when nothing of the holder is left.
        agent.lock().remove(&key);
        let mut later = agent.add_caller(&key, 1, Some(9)).unwrap().unwrap();
        drop(before);
        assert_eq!(later.outcome.try_recv().err(), Some(TryRecvError::Empty));
        // The holder that granted it is gone.
        std::mem::forget(permit);
    }

    #[tokio::test]
    async fn memory_is_freed_after_many_keys() {
        let agent = agent();
        let mut held = Vec::new();
        for number in 0..50_000 {
            let key = key(number);
            let mut caller = agent.add_caller(&key, 1, None).unwrap().unwrap();
            held.push((&mut caller.outcome).await.unwrap().unwrap());
        }
        assert!(agent.lock().holders.capacity() >= 50_000);
        drop(held);
        assert_eq!(agent.keys(), 0);
        assert!(agent.lock().holders.capacity() <= KEPT_CAPACITY);
    }
}

//! The denials that this process remembers, and when each expires.
//!
//! A denied check stays denied until its `retry_after` is over, unless a refund, a reset or another
//! quota replenishes its budgets. This store notices another quota when the identical check comes
//! under it. A denial is remembered for the identical check: same limits with the same numbers,
//! same keys, costs and waits. So it is exactly the store's answer.
//!
//! Another replica's refund or reset is not seen while a denial stands. An [asynchronous] limit has
//! replicas that ask the store seldom, so its denials stand for longer each time that the store
//! repeats them.
//!
//! [asynchronous]: crate::Limit::asynchronous
//!
//! # Which denials count
//!
//! Changes (refunds, resets) that the store confirmed are numbered, in one sequence for all
//! budgets. Each budget has the number of its last one. A check notes the last number of all when
//! it is asked. A denial of that check counts while no budget of it has a later number:
//!
//! - A denial that the store decided before a change was asked before the change was confirmed, so
//!   its number is earlier. The change gets its number before its caller gets the answer. So a
//!   caller that knows of the change never gets that denial.
//! - A check that is asked after the change was confirmed notes its number or a later one. Its
//!   denial counts.
//!
//! A change whose answer was lost may happen until the longest deadline of a store is over. Until
//! then, earlier denials of that budget are not answered from memory, and the store is asked. While
//! the store is unavailable, they still stand.
//!
//! # Blocked keys
//!
//! The denial of a blocked key is also remembered for the key under its limit. It denies every
//! group that has this key under this limit, whatever else is in the group. So a client does not
//! reach the store by varying its requests. Other denials under a limit that counts them always ask
//! the store.
//!
//! # Cost
//!
//! A check is not hashed while no denial is remembered, unless it is queued behind a full batch. If
//! a check just misses the remembered denial, the store decides it, which is always correct.

mod blocked;
mod budget_changes;
#[cfg(feature = "test-util")]
mod wrapper;

#[cfg(feature = "test-util")]
pub use self::wrapper::WithDenyCache;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use self::budget_changes::{BudgetChanges, PLACES};
use super::Answer;
use crate::model::{Budget, Check, Decision, Error, Group, Source};
use crate::telemetry;
use crate::units::later;

/// The longest time for which another replica's refund or reset is not seen, except under an
/// asynchronous limit.
pub(super) const DEFAULT_DENY_FOR: Duration = Duration::from_secs(1);

/// The longest time for which the end of a block by another replica is not seen.
pub(super) const DEFAULT_DENY_BLOCKED_FOR: Duration = Duration::from_secs(10);

/// About 40 MB, if all are in use: 27 to 42 MB were measured.
pub(super) const DEFAULT_CAPACITY: usize = 100_000;

/// A denial of four more limits takes about as many bytes as a denial of one limit.
const VERDICTS_PER_WEIGHT: usize = 4;

/// A denial of an asynchronous limit that the store repeats stands for twice as long, up to this
/// time.
const LONGEST_DOUBLED: Duration = Duration::from_secs(8);

/// The most doublings that are counted.
const MOST_DOUBLINGS: u32 = 16;

/// The longest time for which a denial is remembered.
const MAX_AGE: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The time for which it is remembered that a cost exceeds the capacity. Such a denial has no
/// `retry_after`.
const EXCEEDS_FOR: Duration = Duration::from_secs(1);

/// The longest time that a refund or a reset can take after its caller was dropped or its answer
/// was lost, the longest deadline of a store.
const UNCERTAIN_FOR: Duration = Duration::from_secs(60);

pub(super) struct DenyCache {
    cache: Cache<u128, Denial, ByVerdicts>,
    max_age: Duration,
    /// The longest time for a blocked key.
    blocked_max_age: Duration,
    /// Two, each with its own seed, so that a check is identified by 128 bits that no client can
    /// foresee.
    hashers: [DefaultHashBuilder; 2],
    changes: BudgetChanges,
    /// Until then a change of a budget of this place may still happen, in microseconds since the
    /// start.
    uncertain_until: Box<[AtomicU64]>,
    started: Instant,
    /// The time when the last denial expires, in microseconds since the start.
    last_expires: AtomicU64,
}

#[derive(Clone)]
struct Denial {
    asked: AskedAt,
    /// The hash of its limits' numbers.
    quota: u64,
    decision: Decision,
    decided: Instant,
    /// Until then it is the answer without asking the store.
    answers_until: Instant,
    /// Until then it stands in for a store that is unavailable, the end of its `retry_after`.
    falls_back_until: Instant,
    /// The number of times that `answers_until` was doubled.
    doublings: u32,
}

/// The times for which a denial stands.
#[derive(Clone, Copy)]
struct DenialTimes {
    /// As the answer, without asking the store.
    answers_for: Duration,
    /// In place of a store that is unavailable.
    falls_back_for: Duration,
    doublings: u32,
}

/// The time of a check.
#[derive(Clone, Copy)]
pub(super) struct AskedAt {
    at: Instant,
    /// The number of the last change that was confirmed then.
    confirmed: u64,
}

/// The identity of a check.
#[derive(Clone, Copy)]
pub(super) struct CheckId {
    /// The hash of its budgets and costs.
    hash: u128,
    /// The hash of its limits' numbers.
    quota: u64,
}

#[derive(Clone)]
struct ByVerdicts;

impl Weighter<u128, Denial> for ByVerdicts {
    fn weight(&self, _: &u128, denial: &Denial) -> u64 {
        1 + (denial.decision.verdicts().len() / VERDICTS_PER_WEIGHT) as u64
    }
}

impl DenyCache {
    /// Creates a cache of about `capacity` denials under a single limit.
    ///
    /// A denial is the answer for at most `max_age`, and the denial of a blocked key for at most
    /// `blocked_max_age`. While the store is unavailable, a denial stands until its `retry_after`
    /// is over.
    pub(super) fn new([max_age, blocked_max_age]: [Duration; 2], capacity: usize) -> Self {
        Self {
            cache: Cache::with_weighter(capacity, capacity as u64, ByVerdicts),
            max_age: max_age.min(MAX_AGE),
            blocked_max_age: blocked_max_age.min(MAX_AGE),
            hashers: [DefaultHashBuilder::default(), DefaultHashBuilder::default()],
            changes: BudgetChanges::new(),
            uncertain_until: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            started: Instant::now(),
            last_expires: AtomicU64::new(0),
        }
    }

    /// Answers a charge with its remembered denial, or asks the store. If the store does not
    /// decide, the denial is the answer until its `retry_after` is over.
    pub(super) fn answer_or_ask(
        self: &Arc<Self>,
        group: Group,
        ask: impl FnOnce(Group) -> Answer,
    ) -> Answer {
        let now = Instant::now();
        if self.last_expires.load(Ordering::Acquire) <= self.micros(now) {
            return ask(group);
        }
        let Some((denial, is_fresh)) = self.remembered(&group, now) else {
            return ask(group);
        };
        if is_fresh {
            telemetry::denied_from_cache();
            return Answer::ready(Ok(denial.again_at(now)));
        }
        let ids = self.ids_of(&group);
        let deny_cache = Arc::clone(self);
        ask(group).resolved(move |answer| deny_cache.stand_in(&ids, &denial, answer))
    }

    /// The answer of a charge that is queued behind others. A denial of the same check that is
    /// recorded meanwhile stands in for a store that is unavailable.
    pub(super) fn with_fallback(self: &Arc<Self>, group: &[Check], answer: Answer) -> Answer {
        let id = self.id_of(group);
        let asked = self.asked(Instant::now());
        let deny_cache = Arc::clone(self);
        answer.resolved(move |answer| {
            if !is_undecided(&answer) {
                return answer;
            }
            // A denial from before a change may be older than this check.
            let denial = deny_cache.cache.get(&id.hash);
            let denial = denial.filter(|denial| {
                denial.quota == id.quota && denial.asked.confirmed >= asked.confirmed
            });
            denial
                .and_then(|denial| denial.standing_at(Instant::now()))
                .map_or(answer, Ok)
        })
    }

    /// The store's answer, or the denial that stands in for it.
    fn stand_in(
        &self,
        ids: &[CheckId],
        denial: &Denial,
        answer: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        if is_undecided(&answer) {
            return denial.standing_at(Instant::now()).map_or(answer, Ok);
        }
        if answer.as_ref().is_ok_and(Decision::allowed) {
            // The budget was replenished meanwhile, or the block is over.
            for id in ids {
                self.cache.remove(&id.hash);
            }
        }
        answer
    }

    /// The denial of a group, and whether it is the answer without asking the store. The denial of
    /// the identical group comes before the denial of its blocked keys.
    fn remembered(&self, group: &[Check], now: Instant) -> Option<(Denial, bool)> {
        let identical = self.standing(self.id_of(group), group, now);
        let identical = identical.map(|denial| {
            let is_fresh = self.is_fresh(&denial, group, now);
            (denial, is_fresh)
        });
        if identical.as_ref().is_some_and(|(_, is_fresh)| *is_fresh) {
            return identical;
        }
        self.of_blocked_keys(group, now).or(identical)
    }

    /// The denial that stands in for a store that is unavailable. An unconfirmed refund or reset
    /// does not void it.
    fn standing(&self, id: CheckId, group: &[Check], now: Instant) -> Option<Denial> {
        let denial = self.cache.get(&id.hash)?;
        if denial.quota != id.quota {
            // Under another quota the budgets are replenished in another way.
            self.cache.remove(&id.hash);
            for check in group {
                self.changes.confirm(self.changes.place(check.budget()));
            }
            return None;
        }
        let stands = now < denial.falls_back_until && self.is_unchanged_since(denial.asked, group);
        stands.then_some(denial)
    }

    /// Returns whether a denial is the answer without asking the store.
    fn is_fresh(&self, denial: &Denial, group: &[Check], now: Instant) -> bool {
        let asked = self.micros(denial.asked.at);
        let is_certain = |check: &Check| {
            let place = self.changes.place(check.budget());
            self.uncertain_until[place].load(Ordering::Acquire) <= asked
        };
        now < denial.answers_until
            && self.is_unchanged_since(denial.asked, group)
            && group.iter().all(is_certain)
    }

    /// Returns whether no change of these budgets was confirmed since a check was asked.
    fn is_unchanged_since(&self, asked: AskedAt, group: &[Check]) -> bool {
        self.changes.is_unchanged_since(asked.confirmed, group)
    }

    /// The time of a check, to be taken before it is sent.
    pub(super) fn asked(&self, at: Instant) -> AskedAt {
        AskedAt {
            at,
            confirmed: self.changes.last(),
        }
    }

    /// A check that was asked earlier, as one that is asked now, if no change of its budgets was
    /// confirmed meanwhile. It is of the earlier time.
    pub(super) fn still_asked(&self, asked: AskedAt, group: &[Check]) -> Option<AskedAt> {
        let now = self.asked(asked.at);
        self.is_unchanged_since(asked, group).then_some(now)
    }

    /// The identity of a group.
    pub(super) fn id_of(&self, group: &[Check]) -> CheckId {
        let [mut high, mut low] = [0, 1].map(|half| self.hashers[half].build_hasher());
        let mut quota = self.hashers[0].build_hasher();
        for check in group {
            let limit = check.limit();
            let cost = check.asked();
            // Another policy of blocks changes no budget.
            let identity = (check.budget(), limit.kind(), cost, limit.blocking());
            identity.hash(&mut high);
            identity.hash(&mut low);
            (limit.quota(), limit.rule(), limit.shadow_percent()).hash(&mut quota);
        }
        CheckId {
            hash: u128::from(high.finish()) << 64 | u128::from(low.finish()),
            quota: quota.finish(),
        }
    }

    /// Remembers the denial of a group, and of its blocked keys.
    pub(super) fn record(&self, group: &[Check], asked: AskedAt, denial: &Decision) {
        let mut is_counted = false;
        for (check, verdict) in group.iter().zip(denial.verdicts()) {
            match verdict.blocked_for() {
                _ if verdict.allowed() => {}
                Some(left) => {
                    let blocked = Decision::from(verdict.clone().of_blocked_key());
                    let blocked = blocked.with_timestamp(denial.timestamp());
                    let id = self.blocked_id(check.budget());
                    self.insert(id, asked, blocked, self.times_of_block(left));
                }
                None => is_counted |= check.limit().counts_denials(),
            }
        }
        // A cost that exceeds the capacity now also exceeds it later.
        let wait = denial.retry_after().unwrap_or(EXCEEDS_FOR);
        let id = self.id_of(group);
        let doublings = match denial.limit().is_asynchronous() {
            true => self.doublings(id, asked, group),
            false => 0,
        };
        let (answers_for, falls_back_for) = match denial.deciding().blocked_for() {
            // The block itself stands in, so that its end is noticed whatever is asked.
            Some(left) => (
                left.min(self.blocked_max_age),
                left.min(self.blocked_max_age),
            ),
            // The store is asked again, and counts the denial.
            None if is_counted => (Duration::ZERO, wait),
            None => (wait.min(self.doubled(doublings)), wait),
        };
        let times = DenialTimes {
            answers_for,
            falls_back_for,
            doublings,
        };
        self.insert(id, asked, denial.clone(), times);
    }

    fn times_of_block(&self, left: Duration) -> DenialTimes {
        DenialTimes {
            answers_for: left.min(self.blocked_max_age),
            falls_back_for: left,
            doublings: 0,
        }
    }

    fn doubled(&self, doublings: u32) -> Duration {
        let longest = self.max_age.max(LONGEST_DOUBLED);
        self.max_age.saturating_mul(1 << doublings).min(longest)
    }

    /// The number of times that the time of a new denial is doubled. A denied replica would ask
    /// once a second until a long window ends, which is more often than for the window's units.
    fn doublings(&self, id: CheckId, asked: AskedAt, group: &[Check]) -> u32 {
        let earlier = self.cache.get(&id.hash).filter(|earlier| {
            let stood = asked.at < earlier.falls_back_until;
            stood && earlier.quota == id.quota && self.is_unchanged_since(earlier.asked, group)
        });
        match earlier {
            // Checks that were asked together are denied together.
            Some(earlier) if asked.at < earlier.answers_until => earlier.doublings,
            Some(earlier) => MOST_DOUBLINGS.min(earlier.doublings + 1),
            None => 0,
        }
    }

    /// Remembers a denial.
    fn insert(&self, id: CheckId, asked: AskedAt, denial: Decision, times: DenialTimes) {
        // Counted from the time of the check. The store decided later, so this is never too long.
        let after = |wait: Duration| asked.at.checked_add(wait.min(MAX_AGE)).unwrap_or(asked.at);
        let decided = Instant::now();
        let falls_back_until = after(times.falls_back_for);
        if decided < falls_back_until {
            let decision = denial.repeated_after(Duration::ZERO);
            let answers_until = after(times.answers_for);
            let quota = id.quota;
            let denial = Denial {
                asked,
                quota,
                decision,
                decided,
                answers_until,
                falls_back_until,
                doublings: times.doublings,
            };
            self.cache.insert(id.hash, denial);
            self.last_expires
                .fetch_max(self.micros(falls_back_until), Ordering::AcqRel);
        }
    }

    /// A change of a budget starts. Denials of checks from before its end will not count.
    pub(super) fn begin_change(self: &Arc<Self>, budget: &Budget) -> ChangeUnderWay {
        ChangeUnderWay {
            deny_cache: Arc::clone(self),
            place: self.changes.place(budget),
            key: budget.blocking().map(|_| self.blocked_id(budget)),
            blocked: None,
            end: ChangeEnd::DidNotHappen,
        }
    }

    fn micros(&self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.started);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Returns whether the store did not decide, and a denial stands in for it.
fn is_undecided(answer: &Result<Decision, Error>) -> bool {
    answer
        .as_ref()
        .is_err_and(|error| error.is_unavailable() || error.is_overloaded())
}

impl Denial {
    fn standing_at(&self, now: Instant) -> Option<Decision> {
        (now < self.falls_back_until).then(|| self.again_at(now))
    }

    fn again_at(&self, now: Instant) -> Decision {
        let elapsed = now.saturating_duration_since(self.decided);
        self.decision
            .clone()
            .repeated_after(elapsed)
            .with_source(Source::DenyCache)
    }
}

/// A change of a budget under way. It is over when this is dropped.
pub(super) struct ChangeUnderWay {
    deny_cache: Arc<DenyCache>,
    /// The place of its budget.
    place: usize,
    /// Its key, if that may be blocked.
    key: Option<CheckId>,
    /// The denial of the key, if the change blocked it.
    blocked: Option<(CheckId, Decision)>,
    end: ChangeEnd,
}

/// How a change ended.
enum ChangeEnd {
    Confirmed,
    /// It was not sent, or was declined.
    DidNotHappen,
    /// It may have happened, or may happen yet.
    Unknown,
}

impl ChangeUnderWay {
    /// Learns whether it is about to be sent.
    pub(super) fn set_sent(&mut self, is_sent: bool) {
        self.end = match is_sent {
            true => ChangeEnd::Unknown,
            false => ChangeEnd::DidNotHappen,
        };
    }

    /// Learns the answer, whether its caller still waits for it or not.
    pub(super) fn answered(&mut self, answer: &Result<Decision, Error>) {
        self.end = match answer {
            Ok(decision) => {
                self.blocked = self.key.filter(|_| decision.is_blocked()).map(|id| {
                    let denial = Decision::from(decision.deciding().clone().of_blocked_key());
                    (id, denial.with_timestamp(decision.timestamp()))
                });
                ChangeEnd::Confirmed
            }
            Err(error) if error.may_have_charged() => ChangeEnd::Unknown,
            Err(_) => ChangeEnd::DidNotHappen,
        };
    }
}

impl Drop for ChangeUnderWay {
    fn drop(&mut self) {
        let deny_cache = &self.deny_cache;
        match self.end {
            ChangeEnd::DidNotHappen => return,
            ChangeEnd::Confirmed => deny_cache.changes.confirm(self.place),
            ChangeEnd::Unknown => {
                let until = later(Instant::now(), UNCERTAIN_FOR);
                deny_cache.uncertain_until[self.place]
                    .fetch_max(deny_cache.micros(until), Ordering::AcqRel);
            }
        }
        // A denial from before the change would not count.
        let asked = deny_cache.asked(Instant::now());
        if let Some((id, denial)) = self.blocked.take() {
            let left = denial.deciding().blocked_for().unwrap_or_default();
            let times = deny_cache.times_of_block(left);
            deny_cache.insert(id, asked, denial, times);
        }
    }
}

#[cfg(all(test, tollgate_loom))]
mod tests {
    mod interleavings;
}

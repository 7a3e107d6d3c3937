//! A batch: the groups of checks that one call carries.
//!
//! Identical groups that follow one another, with no other check of their budgets between them, are
//! one *run*: the script gets it once, with a count. So a hot key costs one key, one charge and one
//! number, however many checks charge it.

mod answers;

use std::mem;
use std::sync::Arc;

use tokio::time::Instant;

use super::keys::{Keys, OFFENCES};
use super::wire::{self, Op, WireCheck};
use crate::algorithm::Rule;
use crate::algorithm::offences::Blocking;
use crate::model::{Budget, Change, Decision, Error, Limit, Operation};
use crate::store::deny_cache::{AskedAt, ChangeUnderWay, DenyCache};
use crate::store::promise::{Promise, Promised};
use crate::telemetry::Trace;
use crate::units::{Micros, Timestamp};

/// The most charges in one call. It bounds for how long Redis serves no other client: 3 to 4 ms for
/// buckets, 8 ms for windows of ten sub-windows and logs, 20 ms for windows of a hundred. A run of
/// single charges counts as one.
pub(super) const MAX_CHARGES: usize = 1024;

/// A claim of permits counts as so many charges, because it may write all holders and the queue of
/// its key.
const WORK_OF_A_CLAIM: usize = 4;

/// The most bytes of keys in one call.
const MAX_KEY_BYTES: usize = 128 * 1024;

/// The most limits that are compared with a new one. Limits that are made for each request are not
/// worth a longer search.
const LIMITS_COMPARED: usize = 16;

#[derive(Default)]
pub(super) struct Batch {
    pub(super) keys: Keys,
    limits: Vec<SentLimit>,
    charges: Vec<WireCheck>,
    /// The number of charges that the script decides one by one.
    work: usize,
    runs: Vec<Run>,
    /// In the order of arrival.
    callers: Vec<BatchCaller>,
    /// The number of callers, from the first, whose deadline is over.
    expired: usize,
    /// The reason why the server does not write at the moment. Only peeks are sent then.
    read_only: Option<Arc<str>>,
}

/// A limit, as the script gets it.
struct SentLimit {
    limit: Limit,
    /// `true` if it blocks keys.
    blocks: bool,
    /// In a queue, the longest delay of an allowed check.
    longest_delay: Micros,
}

/// Identical operations.
struct Run {
    operation: Operation,
    /// The operation that is sent, because a charge may be sent as a peek.
    op: Op,
    /// The index of its first charge, and the number of its charges.
    first: usize,
    size: usize,
    /// The number of its groups that are sent.
    times: u16,
    /// `true` if its denial is remembered.
    is_remembered: bool,
}

/// The caller of one group, and its answer.
pub(super) struct BatchCaller {
    run: usize,
    /// `true` if its group is sent.
    sent: bool,
    deadline: Instant,
    /// The time of the question, if a denial is remembered.
    asked: Option<AskedAt>,
    /// Voids denials, before the caller gets the answer. In a box, because most operations are
    /// charges.
    change: Option<Box<ChangeUnderWay>>,
    /// The answer to be delivered.
    answer: Option<Result<Decision, Error>>,
    /// `None` after the answer was delivered.
    promise: Option<Promise>,
    trace: Trace,
}

impl Batch {
    /// Returns whether one more operation fits.
    pub(super) fn has_room_for(&self, operation: &Operation) -> bool {
        self.callers.is_empty()
            || (self.callers.len() < MAX_CHARGES
                && self.work + operation.size() <= MAX_CHARGES
                && self.keys.bytes() < MAX_KEY_BYTES)
    }

    pub(super) fn len(&self) -> usize {
        self.callers.len()
    }

    /// How many groups are sent, and their spans.
    pub(super) fn traces(&self) -> (usize, impl Iterator<Item = &Trace>) {
        let sent = || self.callers.iter().filter(|caller| caller.sent);
        (sent().count(), sent().map(|caller| &caller.trace))
    }

    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.callers[self.expired..]
            .first()
            .map(|caller| caller.deadline)
    }

    /// Adds an operation.
    pub(super) fn push(&mut self, prefix: &str, operation: &Operation, caller: BatchCaller) {
        let op = Op::for_operation(operation);
        let size = operation.size();
        let first = self.charges.len();
        match operation {
            Operation::Charge(group) | Operation::Peek(group) => {
                for check in group {
                    let blocks = check.blocking().is_some();
                    let longest_delay = wire::longest_delay(check);
                    let charge =
                        self.numbered(prefix, check.budget(), check.cost(), blocks, longest_delay);
                    self.charges.push(charge.with_terms(op, check, size == 1));
                }
            }
            Operation::Change(budget, change) => {
                let blocks = reaches_offences(budget, change);
                let cost = match change {
                    Change::Settle { cost, .. } => *cost,
                    Change::Pay(payment) => payment.units,
                    _ => 0,
                };
                let mut changed = self.numbered(prefix, budget, cost, blocks, 0);
                if let Change::Pay(payment) = change {
                    let record = self.keys.number_of_payer(prefix, budget, payment.payer);
                    changed.paid = Some(record);
                }
                self.charges.push(changed);
            }
        }
        let same = self.same_run(op, operation, first);
        let run = same.unwrap_or(self.runs.len());
        for charge in &self.charges[first..] {
            let key = &mut self.keys.all[usize::from(charge.key)];
            key.last_run = run;
            key.checks += 1;
            key.runs += usize::from(same.is_none());
        }
        if op == Op::Claim {
            self.work += WORK_OF_A_CLAIM;
        } else if same.is_none() || size > 1 {
            self.work += size;
        }
        match same {
            Some(_) => self.charges.truncate(first),
            None => self.runs.push(Run {
                operation: operation.clone(),
                op,
                first,
                size,
                times: 0,
                is_remembered: false,
            }),
        }
        self.callers.push(BatchCaller { run, ..caller });
    }

    /// The numbers of a budget, and its cost. `blocks` says whether the offences of its
    /// key matter.
    fn numbered(
        &mut self,
        prefix: &str,
        budget: &Budget,
        cost: u32,
        blocks: bool,
        longest_delay: Micros,
    ) -> WireCheck {
        let key = self.keys.number(prefix, budget, "");
        let offences = blocks.then(|| self.keys.number(prefix, budget, OFFENCES));
        let limit = self.limit_number(budget.limit(), blocks, longest_delay);
        WireCheck::new(key, limit, offences, cost)
    }

    /// The run that the charges from `first` on continue. It is identical, with no later check of
    /// any of its budgets.
    fn same_run(&self, op: Op, operation: &Operation, first: usize) -> Option<usize> {
        // Two claims of one key may have different holders, and a payment counts once.
        if matches!(op, Op::Claim | Op::Pay) {
            return None;
        }
        let new = &self.charges[first..];
        let last_run = |charge: &WireCheck| self.keys.all[usize::from(charge.key)].last_run;
        let candidate = new.first().map(last_run)?;
        let run = self.runs.get(candidate)?;
        let is_same_change = match (&run.operation, operation) {
            (Operation::Change(_, known), Operation::Change(_, new)) => known == new,
            _ => true,
        };
        let alike = run.op == op && is_same_change && self.charges[run.first..][..run.size] == *new;
        (alike && new.iter().all(|charge| last_run(charge) == candidate)).then_some(candidate)
    }

    fn limit_number(&mut self, limit: &Limit, blocks: bool, longest_delay: Micros) -> u16 {
        let known = self.limits.iter().enumerate().rev().take(LIMITS_COMPARED);
        let mut same = known.filter(|(_, known)| {
            known.blocks == blocks && known.longest_delay == longest_delay && known.limit == *limit
        });
        let number = same.next().map_or(self.limits.len(), |(number, _)| number);
        if number == self.limits.len() {
            self.limits.push(SentLimit {
                limit: limit.clone(),
                blocks,
                longest_delay,
            });
        }
        // A batch has fewer checks than that.
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// Marks the checks that are sent, not those that were cancelled, or that have expired, which
    /// are answered. Returns how many have expired.
    pub(super) fn mark_sent(&mut self, now: Instant, server: &str) -> usize {
        let late = self.answer_expired(now, || Error::timeout_unsent().at_server(server));
        self.runs.iter_mut().for_each(|run| run.times = 0);
        for caller in &mut self.callers {
            caller.sent = caller.promise.as_ref().is_some_and(Promise::mark_sent);
            self.runs[caller.run].times += u16::from(caller.sent);
            if let Some(change) = &mut caller.change {
                change.set_sent(caller.sent);
            }
        }
        late
    }

    /// The checks of two batches, with about as many distinct groups each. `None` if there is only
    /// one group. Identical groups stay together.
    pub(super) fn halves(&mut self, prefix: &str) -> Option<[Box<Self>; 2]> {
        let border = self.runs.len().div_ceil(2);
        if border == self.runs.len() {
            return None;
        }
        let mut halves = <[Box<Self>; 2]>::default();
        for caller in self.callers.drain(..) {
            let run = &self.runs[caller.run];
            let half = usize::from(caller.run >= border);
            let unsent = BatchCaller {
                sent: false,
                answer: None,
                ..caller
            };
            halves[half].push(prefix, &run.operation, unsent);
        }
        Some(halves)
    }

    /// Prepares to ask again a server that does not write at the moment. Charges become peeks,
    /// because a denial needs no write, and changes fail. If the server still `deletes` keys,
    /// because it is only out of memory, it may have made a change. Returns how many failed.
    pub(super) fn make_read_only(&mut self, reason: Arc<str>, deletes: bool) -> usize {
        let mut failed = 0;
        for run in &mut self.runs {
            match run.op {
                Op::Charge => run.op = Op::Peek,
                Op::Peek => {
                    let charges = &mut self.charges[run.first..][..run.size];
                    charges.iter_mut().for_each(WireCheck::count_nothing);
                }
                Op::Settle | Op::Reset | Op::Block | Op::Claim | Op::Pay => run.times = 0,
            }
        }
        for caller in &mut self.callers {
            if caller.sent && self.runs[caller.run].times == 0 {
                caller.sent = false;
                failed += usize::from(caller.promise.is_some());
                let reason = reason.to_string();
                caller.answer = Some(Err(match deletes {
                    true => Error::store(reason),
                    false => Error::declined(reason),
                }));
            }
        }
        self.read_only = Some(reason);
        failed
    }

    pub(super) const fn is_read_only(&self) -> bool {
        self.read_only.is_some()
    }

    /// Returns whether no group is left to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.iter().all(|run| run.times == 0)
    }

    /// Answers the checks whose deadline is over. Returns how many.
    pub(super) fn answer_expired(
        &mut self,
        now: Instant,
        mut error: impl FnMut() -> Error,
    ) -> usize {
        let before = self.expired;
        while self
            .first_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            let caller = &mut self.callers[self.expired];
            caller.fulfil(Err(error()));
            self.expired += 1;
        }
        self.expired - before
    }

    /// Sets the answer of all checks without one, to be delivered. Returns how many.
    pub(super) fn set_failure(&mut self, mut error: impl FnMut() -> Error) -> usize {
        let mut failed = 0;
        for caller in &mut self.callers {
            failed += usize::from(caller.answer.is_none() && caller.promise.is_some());
            caller.answer.get_or_insert_with(|| Err(error()));
        }
        failed
    }

    /// The key and the request of a call, if the batch is one charge of one budget, or one claim.
    pub(super) fn lone_request(
        &self,
        call: u16,
        time: Option<Timestamp>,
    ) -> Option<(&str, Vec<u8>)> {
        let run = self.only_sent_run()?;
        let charge = &self.charges[run.first];
        let rule = self.rule(charge);
        let longest_delay = self.limits[usize::from(charge.limit)].longest_delay;
        let request = match &run.operation {
            Operation::Change(_, Change::Claim(claim)) => wire::single_claim(call, rule, claim),
            _ if self.is_plain_charge(run) => {
                wire::single_charge(call, (rule, longest_delay), charge.cost, time)
            }
            _ => return None,
        };
        Some((self.keys.get(charge.key.into()), request))
    }

    /// Returns whether the script makes one write at most. A log is written in two parts, and so
    /// may permits be.
    pub(super) fn makes_one_write(&self) -> bool {
        self.only_sent_run().is_some_and(|run| {
            let rule = self.rule(&self.charges[run.first]);
            self.is_plain_charge(run) && !matches!(rule, Rule::SlidingLog(_))
        })
    }

    /// The run that is sent, if it is only one.
    fn only_sent_run(&self) -> Option<&Run> {
        let mut sent = self.runs.iter().filter(|run| run.times > 0);
        let run = sent.next()?;
        sent.next().is_none().then_some(run)
    }

    /// Returns whether the run is one charge of one budget, and no offences of its key matter.
    fn is_plain_charge(&self, run: &Run) -> bool {
        self.is_only_charge_of_its_key(run) && self.charges[run.first].offences.is_none()
    }

    fn rule(&self, charge: &WireCheck) -> &Rule {
        self.limits[usize::from(charge.limit)].limit.rule()
    }

    /// The request for the script, with the number of its call. `time` is the time of a manual
    /// clock.
    pub(super) fn body(&self, call: u16, time: Option<Timestamp>) -> Vec<u8> {
        let limits = self.limits.iter().map(|sent| {
            let blocking = || sent.limit.blocking().unwrap_or(&Blocking::NONE);
            let blocking = sent.blocks.then(blocking);
            (sent.limit.rule(), blocking, sent.longest_delay)
        });
        let mut body = wire::Body::new(call, limits, time);
        let mut runs = self.runs.iter().filter(|run| run.times > 0).peekable();
        while let Some(run) = runs.next() {
            if !self.is_only_charge_of_its_key(run) {
                let charges = &self.charges[run.first..][..run.size];
                body.push_run(run.op, run.times, charges, &run.operation);
                continue;
            }
            let first = &self.charges[run.first];
            let mut keys = 1;
            let mut next = first.next();
            while runs
                .next_if(|it| self.is_only_charge_of_its_key(it) && self.charges[it.first] == next)
                .is_some()
            {
                (keys, next) = (keys + 1, next.next());
            }
            body.push_each(keys, first);
        }
        body.into_bytes()
    }

    /// Returns whether the run is one charge, once, of a budget that no other run touches.
    fn is_only_charge_of_its_key(&self, run: &Run) -> bool {
        let charge = &self.charges[run.first];
        let key = &self.keys.all[usize::from(charge.key)];
        let is_charge = run.op == Op::Charge && charge.cost > 0 && !charge.has_terms();
        is_charge && run.size == 1 && run.times == 1 && key.runs == 1
    }

    /// Returns whether its only group is the one with this answer.
    pub(super) fn holds_only(&self, answer: &Promised) -> bool {
        let [caller] = &*self.callers else {
            return false;
        };
        caller
            .promise
            .as_ref()
            .is_some_and(|promise| answer.is_of(promise))
    }

    /// Returns whether the deadline of some check is not over.
    pub(super) const fn is_in_time(&self) -> bool {
        self.expired < self.callers.len()
    }

    /// Delivers the answers. A denial is remembered before its caller learns of it.
    pub(super) fn deliver(&mut self, deny_cache: Option<&DenyCache>) {
        if let Some(deny_cache) = deny_cache {
            self.remember(deny_cache);
        }
        for caller in &mut self.callers {
            let Some(answer) = caller.answer.take() else {
                continue;
            };
            if let Some(mut change) = caller.change.take() {
                change.answered(&answer);
            }
            caller.fulfil(answer);
        }
    }

    /// Remembers the last denial of each run, even if its caller is gone.
    fn remember(&mut self, deny_cache: &DenyCache) {
        for caller in self.callers.iter().rev() {
            let run = &mut self.runs[caller.run];
            let Some(asked) = caller.asked else {
                continue;
            };
            if let (Operation::Charge(group), Some(Ok(decision))) = (&run.operation, &caller.answer)
                && !decision.allowed()
                && !mem::replace(&mut run.is_remembered, true)
            {
                deny_cache.record(group, asked, decision);
            }
        }
    }

    /// Empties the batch. Its memory is kept for the next checks.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.limits.clear();
        self.charges.clear();
        self.work = 0;
        self.runs.clear();
        self.callers.clear();
        self.expired = 0;
        self.read_only = None;
    }
}

/// Returns whether a change reads or writes the offences of the key.
fn reaches_offences(budget: &Budget, change: &Change) -> bool {
    match change {
        Change::Settle { .. } | Change::Pay(_) => budget.blocking().is_some(),
        // A block ends whatever the policy of the limit that ends it.
        Change::Reset => true,
        Change::Block(length) => budget.limit().blocking().is_some() || length.is_zero(),
        Change::Claim(_) => false,
    }
}

impl Run {
    /// Returns whether a charge is sent as a peek.
    const fn is_peeked(&self) -> bool {
        matches!((&self.operation, self.op), (Operation::Charge(_), Op::Peek))
    }
}

impl BatchCaller {
    pub(super) fn new(
        deadline: Instant,
        promise: Promise,
        asked: Option<AskedAt>,
        change: Option<ChangeUnderWay>,
    ) -> Self {
        Self {
            run: 0,
            sent: false,
            deadline,
            asked,
            change: change.map(Box::new),
            answer: None,
            promise: Some(promise),
            trace: Trace::current(),
        }
    }

    /// Answers the caller, once. Its span ends then, and not with a call that may still hang.
    fn fulfil(&mut self, answer: Result<Decision, Error>) {
        drop(mem::take(&mut self.trace));
        if let Some(promise) = self.promise.take() {
            promise.answer(answer);
        }
    }
}

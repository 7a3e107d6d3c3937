//! Denials that are counted for each key, and the block that follows too many of them.
//!
//! - **Counting.** Denials are counted in a window that starts with the first one, as in a fixed
//!   window. The one that reaches the number of the policy begins a block. It is already answered
//!   as blocked.
//! - **While a key is blocked,** all its checks are denied, except checks of cost 0. They are not
//!   counted, so a client that goes on is not blocked for ever. They consume nothing. The budget
//!   refills or leaves its window as it would.
//! - **A check of cost 0** passes and changes nothing. It reports the block, with no units left.
//! - **Growth.** A block that begins within `longest` of the end of the last one is longer by the
//!   factor. A later one has the first length again.
//! - **In a group** with a blocked key, no denial counts.
//! - **A clock that steps back** prolongs a block by at most its own length.
//! - A check of a limit in shadow mode is neither counted nor blocked, because its caller got no
//!   denial.
//! - **A block by an operator** stands under any limit, whether that blocks keys or not.
//!
//! The twin is `scripts/offences.lua`.

use super::{Cost, Effect, Kind, Rule, State};
use crate::units::{Micros, Outcome, Timestamp};

/// When a key is blocked, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Blocking {
    /// The number of denials that begins a block. 0: only an operator blocks.
    pub(crate) denials: u32,
    pub(crate) within: Micros,
    pub(crate) length: Micros,
    pub(crate) factor: u32,
    pub(crate) longest: Micros,
}

impl Blocking {
    /// The policy of a limit that does not block keys.
    pub(crate) const NONE: Self = Self {
        denials: 0,
        within: 0,
        length: 0,
        factor: 1,
        longest: 0,
    };
}

/// The record of a key's offences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offences {
    denials: u32,
    /// The time of the first of them.
    since: Timestamp,
    /// The end of the last block, and its length.
    ends_at: Timestamp,
    length: Micros,
    /// The length of the last block that denials began, if blocks grow. 0: none did lately.
    grown: Micros,
    /// The time from which these equal none.
    expires_at: Timestamp,
    /// The earliest such time when they are saved.
    kept_at_least: Timestamp,
}

/// A block that an operator began. The twin is `scripts/operator_block.lua`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OperatorBlock {
    ends_at: Timestamp,
    length: Micros,
}

/// A budget whose key has offences, or is blocked by an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offender {
    pub(super) budget: Option<State>,
    offences: Offences,
    operator_block: OperatorBlock,
}

impl Offender {
    /// The time from which the key has neither offences nor a block.
    pub(super) fn expires_at(&self) -> Timestamp {
        self.offences.expires_at.max(self.operator_block.ends_at)
    }

    /// The time when the last block ends.
    pub(super) fn block_ends_at(&self) -> Timestamp {
        self.offences.ends_at.max(self.operator_block.ends_at)
    }

    /// Takes the budget and the rest out of a slot.
    fn take(slot: &mut Option<State>) -> Self {
        match slot.take() {
            Some(State(Kind::Offender(offender))) => *offender,
            budget => Self {
                budget,
                offences: Offences::default(),
                operator_block: OperatorBlock::default(),
            },
        }
    }

    fn put(self, slot: &mut Option<State>) {
        let is_innocent =
            self.offences == Offences::default() && self.operator_block == OperatorBlock::default();
        *slot = match is_innocent {
            true => self.budget,
            false => Some(State(Kind::Offender(Box::new(self)))),
        };
    }
}

/// Returns whether an operator blocked the key, and the block may stand.
pub(crate) fn has_operator_block(slot: &Option<State>) -> bool {
    match slot {
        Some(State(Kind::Offender(offender))) => {
            offender.operator_block != OperatorBlock::default()
        }
        _ => false,
    }
}

/// The budget in a slot, whether its key has offences or not.
pub(crate) const fn budget(slot: &mut Option<State>) -> &mut Option<State> {
    match slot {
        Some(State(Kind::Offender(offender))) => &mut offender.budget,
        budget => budget,
    }
}

/// Decides a check of a key that may be blocked. See [`Rule::decide`]. Without an effect, no block
/// begins. Without a policy, only an operator blocks the key.
pub(crate) fn decide(
    policy: Option<&Blocking>,
    rule: &Rule,
    slot: &mut Option<State>,
    now: Timestamp,
    cost: Cost,
    effect: Effect,
) -> Outcome {
    let is_free = cost.units == 0;
    let (mut offences, was_set_back) = match policy {
        Some(_) => Offences::load(slot, now),
        None => (Offences::default(), false),
    };
    let (operator_block, operator_block_changed) = OperatorBlock::load(slot, now);
    let mut left = offences.left(now).max(operator_block.left(now));
    let on_budget = match effect {
        Effect::Commit if left > 0 && !is_free => Effect::Adopt,
        Effect::Count => Effect::Dry,
        effect => effect,
    };
    let outcome = rule.decide(slot, now, cost, on_budget);
    // A caller that waits for its units is not an offender.
    let is_denied = outcome.retry_after.is_some_and(|wait| wait > cost.patience);
    let counting = policy.filter(|policy| policy.denials > 0 && left == 0 && is_denied);
    let saves = effect != Effect::Dry && !is_free;
    let counting = counting.filter(|_| saves);
    let begins = counting.is_some_and(|policy| offences.count(policy, now));
    if let Some(policy) = policy.filter(|_| saves)
        && (counting.is_some() || was_set_back)
    {
        offences.save(policy, slot, now);
    }
    if saves && operator_block_changed {
        operator_block.save(slot);
    }
    left = left.max(offences.left(now));
    if left == 0 || outcome.exceeds_capacity {
        return outcome;
    }
    let reset_after = match outcome.allowed {
        true => rule.decide(slot, now, Cost::NONE, Effect::Dry).reset_after,
        false => outcome.reset_after,
    };
    let denied_for = left.max(outcome.retry_after.unwrap_or(0));
    Outcome {
        allowed: is_free,
        exceeds_capacity: false,
        remaining: 0,
        retry_after: (!is_free).then_some(denied_for),
        reset_after: left.max(reset_after),
        delay: 0,
        drains_after: 0,
        blocked_for: left,
        begins_block: begins,
        is_undecided: false,
    }
}

/// Blocks a key for `length`, in place of a block that it may have. A length of 0 ends the block,
/// and forgets the offences.
pub(crate) fn block(
    policy: Option<&Blocking>,
    slot: &mut Option<State>,
    now: Timestamp,
    length: Micros,
) {
    let operator_block = match length {
        0 => OperatorBlock::default(),
        _ => OperatorBlock {
            ends_at: now.saturating_add(length),
            length,
        },
    };
    operator_block.save(slot);
    if length == 0 {
        *slot = Offender::take(slot).budget;
        return;
    }
    let Some(policy) = policy else { return };
    let (mut offences, _) = Offences::load(slot, now);
    (offences.denials, offences.ends_at, offences.length) = (0, now.saturating_add(length), length);
    // The operator's tool may have another policy, which remembers for a shorter time.
    offences.kept_at_least = offences.expires_at;
    offences.save(policy, slot, now);
}

impl OperatorBlock {
    /// The block in a slot, and whether it has changed since it was saved, because it is over, or
    /// the clock was set back behind it.
    fn load(slot: &Option<State>, now: Timestamp) -> (Self, bool) {
        let saved = match slot {
            Some(State(Kind::Offender(offender))) => offender.operator_block,
            _ => Self::default(),
        };
        let block = match saved.ends_at > now {
            true => Self {
                ends_at: saved.ends_at.min(now.saturating_add(saved.length)),
                ..saved
            },
            false => Self::default(),
        };
        (block, block != saved)
    }

    fn save(self, slot: &mut Option<State>) {
        Offender {
            operator_block: self,
            ..Offender::take(slot)
        }
        .put(slot);
    }

    /// The time until it ends.
    const fn left(&self, now: Timestamp) -> Micros {
        self.ends_at.saturating_since(now)
    }
}

impl Offences {
    /// The offences in a slot, and whether the clock was set back behind a block.
    fn load(slot: &Option<State>, now: Timestamp) -> (Self, bool) {
        let mut offences = match slot {
            Some(State(Kind::Offender(offender))) if offender.offences.expires_at > now => Self {
                kept_at_least: Timestamp::EPOCH,
                ..offender.offences
            },
            _ => Self::default(),
        };
        let latest = now.saturating_add(offences.length);
        let was_set_back = offences.ends_at > latest;
        if was_set_back {
            offences.ends_at = latest;
        }
        (offences, was_set_back)
    }

    fn save(mut self, policy: &Blocking, slot: &mut Option<State>, now: Timestamp) {
        let remembered = if self.grown > 0 { policy.longest } else { 0 };
        let counted_until = if self.denials > 0 {
            self.since.saturating_add(policy.within)
        } else {
            Timestamp::EPOCH
        };
        let until = counted_until.max(self.ends_at.saturating_add(remembered));
        self.expires_at = until.max(self.kept_at_least);
        let offences = if self.expires_at > now {
            self
        } else {
            Self::default()
        };
        Offender {
            offences,
            ..Offender::take(slot)
        }
        .put(slot);
    }

    /// The time until the block ends.
    const fn left(&self, now: Timestamp) -> Micros {
        self.ends_at.saturating_since(now)
    }

    /// Counts a denial. Returns whether a block begins with it.
    fn count(&mut self, policy: &Blocking, now: Timestamp) -> bool {
        if self.denials == 0 || now >= self.since.saturating_add(policy.within) {
            (self.denials, self.since) = (0, now);
        }
        self.since = self.since.min(now);
        self.denials += 1;
        if self.denials < policy.denials {
            return false;
        }
        let is_repeated = self.grown > 0 && now < self.ends_at.saturating_add(policy.longest);
        let grown = if is_repeated { self.grown } else { 0 };
        // Compares before it multiplies, because the product may not be exact.
        let longer = match grown > policy.longest / Micros::from(policy.factor) {
            true => policy.longest,
            false => grown * Micros::from(policy.factor),
        };
        self.length = longer.max(policy.length);
        (self.denials, self.ends_at) = (0, now.saturating_add(self.length));
        self.grown = if policy.factor > 1 { self.length } else { 0 };
        true
    }
}

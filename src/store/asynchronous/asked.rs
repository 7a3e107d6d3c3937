//! The answer of the store to a check, and what this process knows beside it.

use std::sync::Arc;

use super::Asynchronous;
use super::credit::account::{CreditTerms, LevelReport};
use super::prepaid::account::WindowReport;
use crate::model::{Budget, Check, Operation, Source, Verdict};
use crate::store::{Answer, Store};
use crate::units::CompactInstant;

/// When a check was sent to the store.
#[derive(Clone, Copy)]
pub(super) struct SentAt {
    /// By the clock of this process.
    pub(super) time: CompactInstant,
    /// The growths of the share of the overshoot by then.
    pub(super) growths: u64,
}

impl<S: Store> Asynchronous<S> {
    /// Asks the store for the whole cost of a check. The first checks of each key end here, so this
    /// does without all that units of this process would need.
    pub(super) fn ask(self: &Arc<Self>, check: Check) -> Answer {
        let asynchronous = Arc::clone(self);
        let budget = check.budget().clone();
        let sent = self.sent_now();
        let answer = self.store.apply(Operation::Charge(check.into()));
        answer.resolved(move |answer| {
            let decision = answer?;
            let source = decision.source();
            Ok(decision.map_only(|verdict| asynchronous.note(&budget, verdict, source, sent)))
        })
    }

    pub(super) fn sent_now(&self) -> SentAt {
        SentAt {
            growths: self.credit.growths(),
            time: CompactInstant::now(),
        }
    }

    /// Notes the verdict on a check that was charged. Returns it with the units that are here, and
    /// without those that are not charged yet.
    pub(super) fn note(
        self: &Arc<Self>,
        budget: &Budget,
        verdict: Verdict,
        source: Source,
        sent: SentAt,
    ) -> Verdict {
        let limit = budget.limit();
        if let Some(rule) = limit.charged_ahead() {
            let Some(report) = WindowReport::of_verdict(&verdict, source, sent.time) else {
                return self.with_account(budget, verdict);
            };
            let left = self.note_window(budget, rule, &report);
            return verdict.with_remaining(left);
        }
        match LevelReport::of_verdict(&verdict, source, sent) {
            Some(report) if limit.is_asynchronous() => {
                let unpaid = self.note_level(budget, &report);
                with_unpaid(budget, verdict, unpaid)
            }
            _ => self.with_account(budget, verdict),
        }
    }

    /// The verdict of the store, with the units that are here, and without those that are not
    /// charged yet.
    pub(super) fn with_account(&self, budget: &Budget, verdict: Verdict) -> Verdict {
        let limit = budget.limit();
        if limit.charged_ahead().is_some() {
            let ahead = self.prepaid.with(budget.parts(), |_, it| it.ahead());
            return verdict.with_more_remaining(ahead.unwrap_or(0));
        }
        match limit.is_asynchronous() {
            true => with_unpaid(budget, verdict, self.credit.unpaid(budget)),
            false => verdict,
        }
    }
}

fn with_unpaid(budget: &Budget, verdict: Verdict, unpaid: u64) -> Verdict {
    let terms = CreditTerms::of_limit(budget.limit());
    let free_after = terms.map_or(0, |terms| terms.drains_after(unpaid));
    verdict.with_unpaid(unpaid, free_after)
}

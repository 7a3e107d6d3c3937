//! A group for which the store is asked, and the units of it that are here.

use std::sync::Arc;

use tokio::time::Instant;

use super::account::{Account, Spent};
use super::{Asynchronous, rule};
use crate::model::{Check, Decision, Error, Group, Operation, Source};
use crate::store::{Answer, Store};
use crate::units::later;

/// A group of which some units may be here. They are put back when this is dropped, unless the
/// group was allowed.
pub(super) struct Pending<S: Store> {
    local: Arc<Asynchronous<S>>,
    group: Group,
    is_charge: bool,
    /// The units of each check that are here.
    here: Vec<Option<Spent>>,
    asked: Instant,
}

impl<S: Store> Pending<S> {
    /// Takes the units of a group that are here.
    pub(super) fn take(local: &Arc<Asynchronous<S>>, group: Group) -> Self {
        Self::new(local, group, true, |account, units| {
            account.take_up_to(units, Instant::now)
        })
    }

    /// Looks which units of a group are here.
    pub(super) fn look(local: &Arc<Asynchronous<S>>, group: Group) -> Self {
        let now = Instant::now();
        Self::new(local, group, false, |account, units| {
            account.look(units, now)
        })
    }

    fn new(
        local: &Arc<Asynchronous<S>>,
        group: Group,
        is_charge: bool,
        find: impl Fn(&mut Account, u64) -> Option<Spent>,
    ) -> Self {
        let find_for = |check: &Check| {
            // Only the store knows the answer to a cost above the capacity.
            let units = u64::from(check.cost());
            let rule = rule(check).filter(|rule| units <= rule.limit)?;
            let of = (check.limit(), check.key());
            local.accounts.with(of, rule, |it| find(it, units))?
        };
        let here = group.iter().map(find_for).collect();
        Self {
            local: Arc::clone(local),
            group,
            is_charge,
            here,
            asked: Instant::now(),
        }
    }

    /// Asks the store for what is not here.
    pub(super) fn ask(mut self) -> Answer {
        let mut checks = self.group.iter().zip(&self.here);
        if checks.any(|(check, here)| !here.is_some_and(|it| it.is_all_of(check))) {
            self.put_back_short_lived();
        }
        let checks = self.group.iter().zip(&self.here);
        let missing = checks.filter_map(|(check, here)| match here {
            None => Some(check.clone()),
            Some(spent) => {
                let missing = u32::try_from(u64::from(check.cost()) - spent.units).ok()?;
                (missing > 0).then(|| check.clone().with_cost(missing))
            }
        });
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() {
            return Answer::ready(self.conclude(None));
        }
        let missing = Group::of_distinct(missing);
        let answer = self.local.store.apply(match self.is_charge {
            true => Operation::Charge(missing),
            false => Operation::Peek(missing),
        });
        answer.resolved(move |answer| self.conclude(Some(answer?)))
    }

    /// The decision, from what is here and what the store decided.
    fn conclude(mut self, asked: Option<Decision>) -> Result<Decision, Error> {
        let is_charged = self.is_charge && asked.as_ref().is_none_or(Decision::allowed);
        let mut timestamp = asked.as_ref().map(Decision::timestamp);
        let mut answers = asked
            .iter()
            .flat_map(|asked| (0..asked.verdicts().len()).map(move |index| (asked, index)));
        let mut verdicts = Vec::with_capacity(self.group.len());
        for (check, here) in self.group.iter().zip(&mut self.here) {
            let verdict = match here.filter(|spent| spent.is_all_of(check)) {
                Some(spent) => {
                    timestamp.get_or_insert(spent.now);
                    spent.verdict(check, 0)
                }
                None => {
                    let next = answers.next();
                    let (asked, index) =
                        next.ok_or_else(|| Error::store("a verdict is missing"))?;
                    let ahead = self.local.hear(check, asked, index, self.asked);
                    asked.verdicts()[index].clone().with_more_remaining(ahead)
                }
            };
            // In shadow mode, a group can be allowed and a check of it not charged.
            let is_spent = is_charged && verdict.outcome().allowed;
            verdicts.push(match (is_spent, *here) {
                (true, Some(spent)) => {
                    *here = None;
                    verdict.charged(check.cost(), spent.charged_at)
                }
                (false, Some(spent)) => verdict.with_more_remaining(spent.units),
                (_, None) => verdict,
            });
        }
        let source = asked
            .as_ref()
            .map_or(Source::Asynchronous, Decision::source);
        // Always a decision: a group is not empty.
        Decision::of_parts(verdicts, timestamp.unwrap_or_default())
            .map(|decision| decision.with_source(source))
            .ok_or_else(|| Error::misuse("the group is empty"))
    }
}

impl<S: Store> Pending<S> {
    /// Puts back units whose window may be over when the store decides. It is asked for them, too.
    fn put_back_short_lived(&mut self) {
        let latest = later(self.asked, self.local.deadline);
        self.put_back(|spent| spent.closes <= latest);
    }

    fn put_back(&mut self, which: impl Fn(&Spent) -> bool) {
        for (check, here) in self.group.iter().zip(&mut self.here) {
            let Some(spent) = here.take_if(|spent| which(spent)) else {
                continue;
            };
            if let Some(rule) = rule(check).filter(|_| self.is_charge) {
                let of = (check.limit(), check.key());
                self.local.accounts.with(of, rule, |it| it.put_back(&spent));
            }
        }
    }
}

impl<S: Store> Drop for Pending<S> {
    fn drop(&mut self) {
        self.put_back(|_| true);
    }
}

impl Spent {
    fn is_all_of(&self, check: &Check) -> bool {
        self.units == u64::from(check.cost())
    }
}

//! A group for which the store is asked, and the units of it that are here.

use std::sync::Arc;

use tokio::time::Instant;

use super::account::{Account, Spent, WindowReport};
use super::{Asynchronous, rule};
use crate::model::{Check, Decision, Error, Group, Operation, Source, Verdict};
use crate::store::{Answer, Store};
use crate::units::later;

/// A group, and its units that are here. They are put back when this is dropped, unless the group
/// was charged.
pub(super) struct HeldUnits<S: Store> {
    asynchronous: Arc<Asynchronous<S>>,
    group: Group,
    /// Whether the units were taken. They stay in their accounts if the operation is a peek.
    are_taken: bool,
    /// The units of each check.
    here: Vec<Option<Spent>>,
    sent: Instant,
}

impl<S: Store> HeldUnits<S> {
    /// Takes the units of a group that are here.
    pub(super) fn take(asynchronous: &Arc<Asynchronous<S>>, group: Group) -> Self {
        Self::new(asynchronous, group, true, |account, units| {
            account.take_up_to(units, Instant::now)
        })
    }

    /// Finds the units of a group that are here, and leaves them there.
    pub(super) fn look(asynchronous: &Arc<Asynchronous<S>>, group: Group) -> Self {
        let now = Instant::now();
        Self::new(asynchronous, group, false, |account, units| {
            account.look(units, now)
        })
    }

    fn new(
        asynchronous: &Arc<Asynchronous<S>>,
        group: Group,
        are_taken: bool,
        find: impl Fn(&mut Account, u64) -> Option<Spent>,
    ) -> Self {
        let find_for = |check: &Check| {
            // Only the store knows the answer to a cost above the capacity.
            let units = u64::from(check.cost());
            let rule = rule(check).filter(|rule| units <= rule.limit)?;
            let of = (check.limit(), check.key());
            asynchronous.accounts.with(of, rule, |it| find(it, units))?
        };
        let here = group.iter().map(find_for).collect();
        Self {
            asynchronous: Arc::clone(asynchronous),
            group,
            are_taken,
            here,
            sent: Instant::now(),
        }
    }

    /// Asks the store for what is not here.
    pub(super) fn ask(mut self) -> Answer {
        if self.missing().next().is_none() {
            return Answer::ready(self.conclude(None));
        }
        // The windows of some units may be over when the store decides. It is asked for the whole
        // cost instead.
        let latest = later(self.sent, self.asynchronous.deadline);
        self.put_back(|spent| spent.closes <= latest);
        let missing = Group::of_distinct(self.missing().collect());
        let answer = self.asynchronous.store.apply(match self.are_taken {
            true => Operation::Charge(missing),
            false => Operation::Peek(missing),
        });
        answer.resolved(move |answer| self.conclude(Some(answer?)))
    }

    /// The checks for which the store is asked, with the cost that is not here.
    fn missing(&self) -> impl Iterator<Item = Check> {
        let checks = self.group.iter().zip(&self.here);
        checks.filter_map(|(check, here)| match here {
            Some(spent) if spent.is_all_of(check) => None,
            Some(spent) => {
                // Less than the cost is here.
                let here = u32::try_from(spent.units).unwrap_or(u32::MAX);
                let missing = check.cost().saturating_sub(here);
                Some(check.clone().with_cost(missing))
            }
            None => Some(check.clone()),
        })
    }

    /// The decision, from what is here and what the store decided.
    fn conclude(mut self, asked: Option<Decision>) -> Result<Decision, Error> {
        let is_allowed = asked.as_ref().is_none_or(Decision::allowed);
        let mut timestamp = asked.as_ref().map(Decision::timestamp);
        let is_late = |spent: &Spent| timestamp.is_some_and(|decided| decided >= spent.ends);
        if is_allowed && self.here.iter().flatten().any(is_late) {
            // The caller was stopped, and the answer came after its deadline.
            return Err(Error::timeout());
        }
        let mut verdicts = Vec::with_capacity(self.group.len());
        let mut asked_checks = 0..;
        for (index, check) in self.group.iter().enumerate() {
            let here = self.here[index];
            let verdict = match (here, &asked) {
                (Some(spent), _) if spent.is_all_of(check) => {
                    timestamp.get_or_insert(spent.now);
                    spent.verdict(check)
                }
                (_, Some(asked)) => {
                    let place = asked_checks.next().unwrap_or_default();
                    self.verdict_of_both(index, asked, place)?
                }
                (_, None) => return Err(Error::store("a verdict is missing")),
            };
            // In shadow mode, a group can be allowed and a check of it not charged.
            let is_spent = is_allowed && verdict.outcome().allowed;
            verdicts.push(match here {
                Some(spent) if is_spent && self.are_taken => {
                    self.here[index] = None;
                    verdict.charged(check.cost(), spent.charged_at)
                }
                Some(spent) if !is_spent => verdict.with_more_remaining(spent.units),
                _ => verdict,
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

    /// The verdict of the store on a check, with the units that stay here if it is allowed.
    fn verdict_of_both(
        &self,
        index: usize,
        asked: &Decision,
        place: usize,
    ) -> Result<Verdict, Error> {
        let verdict = asked.verdicts().get(place);
        let verdict = verdict.ok_or_else(|| Error::store("a verdict is missing"))?;
        let check = &self.group[index];
        let Some(rule) = rule(check) else {
            return Ok(verdict.clone());
        };
        let report = WindowReport::of(asked, place, self.sent).filter(|_| self.are_taken);
        let ahead = match report {
            Some(report) => self.asynchronous.note(check, &report),
            None => {
                let of = (check.limit(), check.key());
                let ahead = self.asynchronous.accounts.with(of, rule, |it| it.ahead());
                // A peek leaves its units in the account.
                let seen = self.here[index].filter(|_| !self.are_taken);
                ahead
                    .unwrap_or(0)
                    .saturating_sub(seen.map_or(0, |spent| spent.units))
            }
        };
        Ok(verdict.clone().with_more_remaining(ahead))
    }

    /// Puts back units.
    fn put_back(&mut self, which: impl Fn(&Spent) -> bool) {
        for (check, here) in self.group.iter().zip(&mut self.here) {
            let Some(spent) = here.take_if(|spent| which(spent)) else {
                continue;
            };
            if let (Some(rule), true) = (rule(check), self.are_taken) {
                let of = (check.limit(), check.key());
                self.asynchronous
                    .accounts
                    .with(of, rule, |it| it.put_back(&spent));
            }
        }
    }
}

impl<S: Store> Drop for HeldUnits<S> {
    fn drop(&mut self) {
        self.put_back(|_| true);
    }
}

impl Spent {
    fn is_all_of(&self, check: &Check) -> bool {
        self.units == u64::from(check.cost())
    }
}

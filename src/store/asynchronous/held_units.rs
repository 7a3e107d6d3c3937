//! A group for which the store is asked, and the units of it that are here.

use std::sync::Arc;

use super::Asynchronous;
use super::asked::SentAt;
use super::decided::DecidedHere;
use super::prepaid::account::PrepaidAccount;
use crate::algorithm::FixedWindow;
use crate::model::{Check, Decision, Error, Group, Operation, Source, Verdict};
use crate::store::{Answer, Store};
use crate::units::CompactInstant;

/// A group, and its units that are here. They are put back when this is dropped, unless the group
/// was charged.
pub(super) struct HeldUnits<S: Store> {
    asynchronous: Arc<Asynchronous<S>>,
    group: Group,
    /// Set if the units were taken. They stay in their accounts if the operation is a peek.
    are_taken: bool,
    /// The units of each check.
    here: Vec<Option<DecidedHere>>,
    sent: SentAt,
}

impl<S: Store> HeldUnits<S> {
    /// Takes the units of a group that are here.
    pub(super) fn take(asynchronous: &Arc<Asynchronous<S>>, group: Group) -> Self {
        Self::new(asynchronous, group, true, |check| {
            if check.limit().charged_ahead().is_none() {
                return asynchronous.hold(check);
            }
            asynchronous.find_units(check, |rule, account, units| {
                account.take_up_to(rule, units, CompactInstant::now)
            })
        })
    }

    /// The units of a lone check that were taken already.
    pub(super) fn of_one(
        asynchronous: &Arc<Asynchronous<S>>,
        check: Check,
        here: DecidedHere,
    ) -> Self {
        Self::new(asynchronous, check.into(), true, |_| Some(here))
    }

    /// Finds the units of a group that are here, and leaves them there.
    pub(super) fn look(asynchronous: &Arc<Asynchronous<S>>, group: Group) -> Self {
        let now = CompactInstant::now();
        Self::new(asynchronous, group, false, |check| {
            asynchronous.find_units(check, |rule, account, units| account.look(rule, units, now))
        })
    }

    fn new(
        asynchronous: &Arc<Asynchronous<S>>,
        group: Group,
        are_taken: bool,
        find: impl Fn(&Check) -> Option<DecidedHere>,
    ) -> Self {
        // First this, so that the share had grown no more when a unit was held.
        let growths = asynchronous.credit.growths();
        let here = group.iter().map(find).collect();
        Self {
            asynchronous: Arc::clone(asynchronous),
            group,
            are_taken,
            here,
            sent: SentAt {
                growths,
                time: CompactInstant::now(),
            },
        }
    }

    /// Asks the store for what is not here.
    pub(super) fn ask_for_rest(mut self) -> Answer {
        if self.missing().next().is_none() {
            return Answer::ready(self.conclude(None));
        }
        // The windows of some units may be over when the store decides. It is asked for the whole
        // cost instead.
        let latest = self.sent.time + self.asynchronous.deadline;
        self.put_back(|here| here.window.is_some_and(|window| window.closes <= latest));
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
            Some(here) if here.is_all_of(check) => None,
            Some(here) => {
                // Less than the cost is here.
                let here = u32::try_from(here.units).unwrap_or(u32::MAX);
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
        let is_late = |here: &DecidedHere| match here.window {
            Some(window) => timestamp.is_some_and(|decided| decided >= window.ends),
            None => self.asynchronous.credit.is_late(here, self.sent.growths),
        };
        if is_allowed && self.here.iter().flatten().any(is_late) {
            // The caller was stopped, and the answer came after the end of the window or the lease.
            return Err(Error::timeout());
        }
        let mut verdicts = Vec::with_capacity(self.group.len());
        let mut asked_checks = 0..;
        for (index, check) in self.group.iter().enumerate() {
            let here = self.here[index];
            let verdict = match (here, &asked) {
                (Some(here), _) if here.is_all_of(check) => {
                    timestamp.get_or_insert(here.now);
                    here.verdict(check)
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
                Some(here) if is_spent && self.are_taken => {
                    self.here[index] = None;
                    if here.is_on_credit() {
                        self.asynchronous.end_hold(check, &here, true);
                    }
                    verdict.charged(check.cost(), here.charged_at)
                }
                Some(here) if !is_spent => verdict.with_more_remaining(here.units),
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

    /// The verdict of the store on a check, with the units that stay here, and without those that
    /// are not charged yet.
    fn verdict_of_both(
        &self,
        index: usize,
        asked: &Decision,
        place: usize,
    ) -> Result<Verdict, Error> {
        let verdict = asked.verdicts().get(place);
        let verdict = verdict.ok_or_else(|| Error::store("a verdict is missing"))?;
        let verdict = verdict.clone();
        let budget = self.group[index].budget();
        if self.are_taken {
            let source = asked.source();
            return Ok(self.asynchronous.note(budget, verdict, source, self.sent));
        }
        // A peek leaves its units in the account.
        let seen = self.here[index].map_or(0, |here| here.units);
        let verdict = self.asynchronous.with_account(budget, verdict);
        Ok(verdict.with_less_remaining(seen))
    }

    /// Puts back units.
    fn put_back(&mut self, which: impl Fn(&DecidedHere) -> bool) {
        for (check, here) in self.group.iter().zip(&mut self.here) {
            let Some(here) = here.take_if(|here| which(here)) else {
                continue;
            };
            if here.is_on_credit() {
                self.asynchronous.end_hold(check, &here, false);
            } else if self.are_taken {
                self.asynchronous.put_back(check, &here);
            }
        }
    }
}

impl<S: Store> Asynchronous<S> {
    /// Finds prepaid units for a check.
    fn find_units(
        &self,
        check: &Check,
        find: impl Fn(&FixedWindow, &mut PrepaidAccount, u64) -> Option<DecidedHere>,
    ) -> Option<DecidedHere> {
        // Only the store knows the answer to a cost above the capacity.
        let units = u64::from(check.cost());
        let budget = check.budget().parts();
        self.prepaid
            .with(budget, |rule, account| match units <= rule.limit {
                true => find(rule, account, units),
                false => None,
            })?
    }

    /// Puts prepaid units back into their account.
    fn put_back(&self, check: &Check, spent: &DecidedHere) {
        let budget = check.budget().parts();
        self.prepaid
            .with(budget, |_, account| account.put_back(spent));
    }
}

impl<S: Store> Drop for HeldUnits<S> {
    fn drop(&mut self) {
        self.put_back(|_| true);
    }
}

//! Checks that need no names of your application.

use std::collections::HashMap;

use super::{Config, CostConfig, Field, LimitConfig, Match, OneOrMany, PlanConfig};
use crate::model::{Algorithm, Key, Limit, LimitFields, MAX_GROUP, Override, Written};
use crate::units::{ConfigError, Quota};

/// The most plans of all limits. Each is kept for each thread.
const MAX_PLANS: usize = 1_000;

/// The most overrides of all limits. More belong in Redis.
const MAX_OVERRIDES_OF_FILE: usize = 10_000;

/// The most patterns of all limits, in `match` and in `except`. Each request is compared with them.
const MAX_PATTERNS: usize = 1_000;

/// An error, and where it is.
pub(crate) type Misplaced = (Field, ConfigError);

/// The limit of a plan.
pub(crate) enum PlanRule<'a> {
    Limit(Limit),
    Unlimited,
    Deny(&'a str),
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let checked = self.check_sizes().and_then(|()| self.check_limits());
        checked.map_err(|(field, error)| self.error_at(&field, &error))
    }

    fn check_sizes(&self) -> Result<(), Misplaced> {
        let number = self.limits.len();
        if number > MAX_GROUP {
            let many = format!("there are {number} limits; use at most {MAX_GROUP}");
            return Err((Field::of_limit(MAX_GROUP), ConfigError::new(many)));
        }
        let mut plans = 0_usize;
        let mut overrides = 0_usize;
        let mut patterns = 0_usize;
        for (number, limit) in self.limits.iter().enumerate() {
            let at = Field::of_limit(number);
            plans = plans.saturating_add(limit.plans.len());
            check_sum("plans", plans, MAX_PLANS, at.clone().name("plans"))?;
            overrides = overrides.saturating_add(limit.overrides.len());
            let at_overrides = at.clone().name("overrides");
            check_sum("overrides", overrides, MAX_OVERRIDES_OF_FILE, at_overrides)?;
            add_patterns(&mut patterns, [&limit.matches, &limit.except], at)?;
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), Misplaced> {
        self.check_names()?;
        for (number, limit) in self.limits.iter().enumerate() {
            let at = Field::of_limit(number);
            limit.overrides_of(&limit.limit(&at)?, &at)?;
            check_applies(limit, &at)?;
            for (name, plan) in &limit.plans {
                plan.rule(limit, &at.clone().name("plans").name(name))?;
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), Misplaced> {
        let mut known = HashMap::new();
        for (number, limit) in self.limits.iter().enumerate() {
            if let Some(first) = known.insert(&limit.name, number) {
                let twice = format!(
                    "`{}` is also the name of {}, and headers and metrics could not tell the two \
                     apart; use another name",
                    limit.name.escape_debug(),
                    Field::of_limit(first),
                );
                return Err((
                    Field::of_limit(number).name("name"),
                    ConfigError::new(twice),
                ));
            }
        }
        Ok(())
    }
}

/// A limit whose `except` has all that its `match` has applies to no request.
fn check_applies(limit: &LimitConfig, at: &Field) -> Result<(), Misplaced> {
    let matches = limit.matches.as_slice();
    let except = limit.except.as_slice();
    if !matches.is_empty() && matches.iter().all(|one| except.contains(one)) {
        let error = "it has all of `match`, so the limit applies to no request; remove it, or \
                     `match`";
        return Err((at.clone().name("except"), ConfigError::new(error)));
    }
    Ok(())
}

fn add_patterns(
    sum: &mut usize,
    of_limit: [&OneOrMany<Match>; 2],
    at: Field,
) -> Result<(), Misplaced> {
    for patterns in of_limit {
        *sum = sum.saturating_add(patterns.as_slice().len());
    }
    check_sum(
        "entries in `match` and `except`",
        *sum,
        MAX_PATTERNS,
        at.name("match"),
    )
}

fn check_sum(what: &str, sum: usize, most: usize, at: Field) -> Result<(), Misplaced> {
    if sum > most {
        let many = format!("the limits up to here have {sum} {what}; use at most {most}");
        return Err((at, ConfigError::new(many)));
    }
    Ok(())
}

impl LimitConfig {
    pub(crate) fn limit(&self, at: &Field) -> Result<Limit, Misplaced> {
        if self.algorithm == Algorithm::Concurrency && self.cost.is_some() {
            let error =
                "a request holds one permit of a concurrency limit, whatever it costs; remove it";
            return Err((at.clone().name("cost"), ConfigError::new(error)));
        }
        let limit = build(self.fields(), at)?;
        self.check_cost(&limit, at.clone().name("cost"))?;
        Ok(limit)
    }

    /// The overrides of the limit's keys.
    pub(crate) fn overrides_of(
        &self,
        limit: &Limit,
        at: &Field,
    ) -> Result<Vec<Override>, Misplaced> {
        let parsed = self.overrides.iter().map(|(key, config)| {
            let at = at.clone().name("overrides").name(key);
            let parsed = Key::from_encoded(key).and_then(|key| {
                let parsed = config.parse(&self.name, key)?;
                self.check_cost(&limit.overridden(parsed.effect())?, at.clone())
                    .map_err(|(_, error)| error)?;
                Ok(parsed)
            });
            parsed.map_err(|error| (error.field().map_or(at.clone(), |it| at.name(it)), error))
        });
        parsed.collect()
    }

    /// A cost above the capacity would deny every request, and a cost of 0 none.
    fn check_cost(&self, limit: &Limit, at: Field) -> Result<(), Misplaced> {
        match self.cost {
            Some(CostConfig::Units(cost)) if u64::from(cost) > limit.quota().capacity() => {
                let error = format!(
                    "the cost is {cost}, and `{limit}` has a capacity of {}, so no request is ever \
                     allowed; use a lower cost, or a larger quota",
                    limit.quota().capacity()
                );
                Err((at, ConfigError::new(error)))
            }
            Some(CostConfig::Units(0)) => {
                let error = "a request of cost 0 charges nothing and is always allowed; use at \
                             least 1, or remove the limit";
                Err((at, ConfigError::new(error)))
            }
            _ => Ok(()),
        }
    }
}

impl PlanConfig {
    pub(crate) fn rule(&self, limit: &LimitConfig, at: &Field) -> Result<PlanRule<'_>, Misplaced> {
        let wrong = |error: &str| Err((at.clone(), ConfigError::new(error)));
        match self {
            Self {
                quota: None,
                starts: None,
                time_zone: None,
                burst: None,
                limit: None,
                unlimited: true,
                deny: None,
            } => Ok(PlanRule::Unlimited),
            Self {
                quota: None,
                starts: None,
                time_zone: None,
                burst: None,
                limit: None,
                unlimited: false,
                deny: Some(reason),
            } => Ok(PlanRule::Deny(reason)),
            Self {
                quota: None,
                starts: None,
                time_zone: None,
                burst: None,
                limit: Some(_),
                unlimited: false,
                deny: None,
            } if limit.algorithm == Algorithm::Concurrency => {
                let fields = LimitFields {
                    limit: self.limit,
                    ..limit.fields()
                };
                build(fields, at).map(PlanRule::Limit)
            }
            _ if limit.algorithm == Algorithm::Concurrency => {
                wrong("a plan has one of `limit`, `unlimited = true` and `deny`; write one")
            }
            Self {
                quota: Some(quota),
                starts,
                time_zone,
                burst,
                limit: None,
                unlimited: false,
                deny: None,
            } => {
                // A plan with another period does not have the calendar of the limit.
                let unit_of = |quota: &Written| {
                    let quota = quota.0.parse::<Quota>().ok()?;
                    quota.calendar_unit()
                };
                let is_same = limit.quota.as_ref().and_then(unit_of) == unit_of(quota);
                let of_limit = Some(limit).filter(|_| is_same);
                let starts = starts
                    .as_ref()
                    .or(of_limit.and_then(|it| it.starts.as_ref()));
                let zone = time_zone.as_ref();
                let zone = zone.or(of_limit.and_then(|it| it.time_zone.as_ref()));
                let fields = LimitFields {
                    quota: Some(quota.clone()),
                    starts: starts.cloned(),
                    time_zone: zone.cloned(),
                    burst: *burst,
                    overshoot_percent: None,
                    warn_at_percent: None,
                    ..limit.fields()
                };
                let rate = build(fields, at)?;
                let rate = match limit.overshoot_percent {
                    Some(percent) => rate.with_overshoot_if_enough(percent),
                    None => rate,
                };
                let rate = match limit.warn_at_percent {
                    Some(percent) => rate.with_warning_if_enough(percent),
                    None => rate,
                };
                limit.check_cost(&rate, at.clone())?;
                Ok(PlanRule::Limit(rate))
            }
            _ => wrong(
                "a plan has one of `quota` (with or without `burst`, `starts` and `time_zone`), \
                 `unlimited = true` and `deny`; write one",
            ),
        }
    }
}

/// Builds a limit. An error names its field.
fn build(fields: LimitFields, at: &Field) -> Result<Limit, Misplaced> {
    Limit::try_from(fields).map_err(|error| {
        let steps = error.field().into_iter().flat_map(|field| field.split('.'));
        (steps.fold(at.clone(), Field::name), error)
    })
}

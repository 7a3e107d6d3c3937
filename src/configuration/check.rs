//! What can be checked without the names that an application gives.

use std::collections::HashMap;

use super::config::Named;
use super::{
    ConcurrencyLimitConfig, ConcurrencyPlanConfig, Config, CostConfig, Field, LimitConfig, Match,
    OneOrMany, PlanConfig,
};
use crate::nouns::quota::period;
use crate::nouns::{
    ConcurrencyLimit, ConfigError, Limit, LimitFields, MAX_GROUP, Replace, enforced,
};

/// The most plans of all limits. Each is kept for each thread.
const MAX_PLANS: usize = 1_000;

/// The most patterns of all limits, in `match` and in `except`. Each request is compared with them.
const MAX_PATTERNS: usize = 1_000;

/// An error, and where it is.
pub(crate) type Misplaced = (Field, ConfigError);

/// What the requests of a plan are limited to.
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
        check_number(self.limits.len(), Field::of_limit)?;
        check_number(self.concurrency_limits.len(), Field::of_concurrency_limit)?;
        let (mut plans, mut patterns) = (0_usize, 0_usize);
        for (number, limit) in self.limits.iter().enumerate() {
            let at = Field::of_limit(number);
            plans = plans.saturating_add(limit.plans.len());
            check_sum("plans", plans, MAX_PLANS, at.clone().name("plans"))?;
            add_patterns(&mut patterns, [&limit.matches, &limit.except], at)?;
        }
        for (number, limit) in self.concurrency_limits.iter().enumerate() {
            let at = Field::of_concurrency_limit(number);
            plans = plans.saturating_add(limit.plans.len());
            check_sum("plans", plans, MAX_PLANS, at.clone().name("plans"))?;
            add_patterns(&mut patterns, [&limit.matches, &limit.except], at)?;
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), Misplaced> {
        check_names(&self.limits, "budgets", Field::of_limit)?;
        check_names(&self.concurrency_limits, "permits", Field::of_concurrency_limit)?;
        for (number, limit) in self.limits.iter().enumerate() {
            let at = Field::of_limit(number);
            limit.limit(&at)?;
            for (name, plan) in &limit.plans {
                plan.rule(limit, &at.clone().name("plans").name(name))?;
            }
        }
        for (number, limit) in self.concurrency_limits.iter().enumerate() {
            let at = Field::of_concurrency_limit(number);
            limit.limit(&at)?;
            for (name, plan) in &limit.plans {
                plan.limit(limit, &at.clone().name("plans").name(name))?;
            }
        }
        Ok(())
    }
}

fn check_number(number: usize, field: fn(usize) -> Field) -> Result<(), Misplaced> {
    if number > MAX_GROUP {
        let many = format!("there are {number} limits; use at most {MAX_GROUP}");
        return Err((field(MAX_GROUP), ConfigError::new(many)));
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
    check_sum("entries in `match` and `except`", *sum, MAX_PATTERNS, at.name("match"))
}

fn check_sum(what: &str, sum: usize, most: usize, at: Field) -> Result<(), Misplaced> {
    if sum > most {
        let many = format!("the limits up to here have {sum} {what}; use at most {most}");
        return Err((at, ConfigError::new(many)));
    }
    Ok(())
}

fn check_names<T: Named>(
    limits: &[T],
    shared: &str,
    field: fn(usize) -> Field,
) -> Result<(), Misplaced> {
    let mut known = HashMap::new();
    for (number, limit) in limits.iter().enumerate() {
        if let Some(first) = known.insert(limit.name(), number) {
            let twice = format!(
                "`{}` is the name of {}, too, and limits of one name share {shared}; use another name",
                limit.name().escape_debug(),
                field(first),
            );
            return Err((field(number).name("name"), ConfigError::new(twice)));
        }
    }
    Ok(())
}

impl ConcurrencyLimitConfig {
    pub(crate) fn limit(&self, at: &Field) -> Result<ConcurrencyLimit, Misplaced> {
        self.limit_of(self.limit, at, &at.clone().name("limit"))
    }

    /// The limit with another number, which is in a field of its own.
    fn limit_of(
        &self,
        number: u32,
        at: &Field,
        of_number: &Field,
    ) -> Result<ConcurrencyLimit, Misplaced> {
        let at = |field: &'static str| move |error| (at.clone().name(field), error);
        drop(ConcurrencyLimit::new(&self.name, 1).map_err(at("name"))?);
        let limit = ConcurrencyLimit::new(&self.name, number);
        let limit = limit.map_err(|error| (of_number.clone(), error))?;
        let limit = match self.on_store_failure {
            Some(policy) => limit.on_store_failure(policy).map_err(at("on_store_failure"))?,
            None => limit,
        };
        let limit = match &self.retry_after {
            Some(wait) => period::parse(&wait.0)
                .and_then(|wait| limit.retry_after(wait))
                .map_err(at("retry_after"))?,
            None => limit,
        };
        enforced(self.shadow, self.enforce)
            .and_then(|percent| limit.enforce(percent))
            .map_err(at("enforce"))
    }
}

impl ConcurrencyPlanConfig {
    /// The limit of the plan. `None`: it has none.
    pub(crate) fn limit(
        &self,
        of: &ConcurrencyLimitConfig,
        at: &Field,
    ) -> Result<Option<ConcurrencyLimit>, Misplaced> {
        match self {
            Self { limit: Some(number), unlimited: false } => {
                of.limit_of(*number, at, &at.clone().name("limit")).map(Some)
            }
            Self { limit: None, unlimited: true } => Ok(None),
            _ => {
                let error = "a plan has one of `limit` and `unlimited = true`; write one";
                Err((at.clone(), ConfigError::new(error)))
            }
        }
    }
}

impl LimitConfig {
    pub(crate) fn limit(&self, at: &Field) -> Result<Limit, Misplaced> {
        let limit = build(&self.with_quota(&self.quota, self.burst), at)?;
        self.check_cost(&limit, at.clone().name("cost"))?;
        Ok(limit)
    }

    /// A cost above the capacity would deny every request.
    fn check_cost(&self, limit: &Limit, at: Field) -> Result<(), Misplaced> {
        match self.cost {
            Some(CostConfig::Units(cost)) if u64::from(cost) > limit.quota().capacity() => {
                let error = format!(
                    "the cost is {cost}, and `{limit}` has a capacity of {}, so no request is ever allowed; use a \
                     lower cost, or a larger quota",
                    limit.quota().capacity()
                );
                Err((at, ConfigError::new(error)))
            }
            _ => Ok(()),
        }
    }
}

impl PlanConfig {
    pub(crate) fn rule(&self, of: &LimitConfig, at: &Field) -> Result<PlanRule<'_>, Misplaced> {
        match self {
            Self { quota: Some(quota), burst, unlimited: false, deny: None } => {
                let limit = build(&of.with_quota(quota, *burst), at)?;
                of.check_cost(&limit, at.clone())?;
                Ok(PlanRule::Limit(limit))
            }
            Self { quota: None, burst: None, unlimited: true, deny: None } => {
                Ok(PlanRule::Unlimited)
            }
            Self { quota: None, burst: None, unlimited: false, deny: Some(reason) } => {
                Ok(PlanRule::Deny(reason))
            }
            _ => {
                let error = "a plan has one of `quota` (with or without `burst`), `unlimited = true` and `deny`; write one";
                Err((at.clone(), ConfigError::new(error)))
            }
        }
    }
}

/// Builds a limit. The error is that of the first field whose replacement changes it.
fn build(fields: &LimitFields, at: &Field) -> Result<Limit, Misplaced> {
    Limit::try_from(fields.clone()).map_err(|error| {
        let is_at_fault = |(name, replace): &&(&str, Replace)| {
            let mut replaced = fields.clone();
            replace(&mut replaced);
            // Every error names the limit.
            let differs =
                |other: ConfigError| *name != "name" && other.to_string() != error.to_string();
            Limit::try_from(replaced).err().is_none_or(differs)
        };
        let field = LimitFields::REPLACEABLE.iter().find(is_at_fault);
        let steps = field.into_iter().flat_map(|(name, _)| name.split('.'));
        (steps.fold(at.clone(), Field::name), error)
    })
}

//! What can be checked without the names that an application gives.

use std::collections::HashMap;

use super::{Config, CostConfig, Field, LimitConfig, PlanConfig};
use crate::nouns::{ConfigError, Limit, LimitFields, MAX_GROUP, Replace};

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
        let checked = check_sizes(&self.limits).and_then(|()| check_limits(&self.limits));
        checked.map_err(|(field, error)| self.error_at(&field, &error))
    }
}

fn check_sizes(limits: &[LimitConfig]) -> Result<(), Misplaced> {
    if limits.len() > MAX_GROUP {
        let many = format!("there are {} limits; use at most {MAX_GROUP}", limits.len());
        return Err((Field::of_limit(MAX_GROUP), ConfigError::new(many)));
    }
    let (mut plans, mut patterns) = (0_usize, 0_usize);
    for (number, limit) in limits.iter().enumerate() {
        plans = plans.saturating_add(limit.plans.len());
        let of_limit = [&limit.matches, &limit.except].map(|patterns| patterns.as_slice().len());
        patterns = of_limit.iter().fold(patterns, |all, some| all.saturating_add(*some));
        for (what, field, all, most) in [
            ("plans", "plans", plans, MAX_PLANS),
            ("entries in `match` and `except`", "match", patterns, MAX_PATTERNS),
        ] {
            if all > most {
                let many = format!("the limits up to here have {all} {what}; use at most {most}");
                return Err((Field::of_limit(number).name(field), ConfigError::new(many)));
            }
        }
    }
    Ok(())
}

fn check_limits(limits: &[LimitConfig]) -> Result<(), Misplaced> {
    let mut known = HashMap::new();
    for (number, limit) in limits.iter().enumerate() {
        let at = Field::of_limit(number);
        if let Some(first) = known.insert(&limit.name, number) {
            let twice = format!(
                "`{}` is the name of limits[{first}], too, and limits of one name share budgets; use another name",
                limit.name.escape_debug()
            );
            return Err((at.name("name"), ConfigError::new(twice)));
        }
        limit.limit(&at)?;
        for (name, plan) in &limit.plans {
            plan.rule(limit, &at.clone().name("plans").name(name))?;
        }
    }
    Ok(())
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

//! From a configuration to limits that can be asked.

use std::collections::HashMap;
use std::sync::Arc;

use super::Names;
use super::in_force::{Applied, CostOf, InForce, OfPlan, Planned, Plans};
use super::pattern::Pattern;
use crate::configuration::{
    Config, CostConfig, Field, KeyConfig, LimitConfig, Match, OneOrMany, PlanConfig,
};
use crate::http::limits::Reject;
use crate::http::{KeyExtractor, Or};
use crate::nouns::{ConfigError, Limit, LimitFields, MAX_GROUP, Replace};

/// An error, and where it is.
type Misplaced = (Field, ConfigError);

impl InForce {
    pub(super) fn compile(
        config: Config,
        names: &Names,
        version: u64,
    ) -> Result<Self, ConfigError> {
        let limits =
            compile(&config, names).map_err(|(field, error)| config.error_at(&field, &error))?;
        Ok(Self { version, config: Arc::new(config), limits })
    }
}

fn compile(config: &Config, names: &Names) -> Result<Vec<Applied>, Misplaced> {
    let limits = &config.limits;
    if limits.len() > MAX_GROUP {
        let many = format!("there are {} limits; use at most {MAX_GROUP}", limits.len());
        return Err((Field::of_limit(MAX_GROUP), ConfigError::new(many)));
    }
    let mut known = HashMap::new();
    let mut compiled = Vec::with_capacity(limits.len());
    for (number, limit) in limits.iter().enumerate() {
        let at = Field::of_limit(number);
        if let Some(first) = known.insert(&limit.name, number) {
            let twice = format!(
                "`{}` is the name of limits[{first}], too, and limits of one name share budgets; use another name",
                limit.name.escape_debug()
            );
            return Err((at.name("name"), ConfigError::new(twice)));
        }
        compiled.push(applied(limit, names, &at)?);
    }
    Ok(compiled)
}

fn applied(config: &LimitConfig, names: &Names, at: &Field) -> Result<Applied, Misplaced> {
    let field = |name: &str| at.clone().name(name);
    let limit = build(&config.with_quota(&config.quota, config.burst), at)?;
    let (key, key_name) = key(&config.key, names).map_err(|error| (field("key"), error))?;
    let cost = match &config.cost {
        None => CostOf::Layer,
        Some(CostConfig::Units(units)) => CostOf::Units(*units),
        Some(CostConfig::Named(name)) => {
            CostOf::Request(names.cost_of(name).map_err(|error| (field("cost"), error))?)
        }
    };
    Ok(Applied {
        matches: patterns(&config.matches, &field("match"))?,
        except: patterns(&config.except, &field("except"))?,
        key,
        key_name,
        cost,
        limit: Planned::new(limit),
        plans: plans(config, names, at)?,
    })
}

/// Builds a limit. An error is that of the field without which there is none.
fn build(fields: &LimitFields, at: &Field) -> Result<Limit, Misplaced> {
    Limit::try_from(fields.clone()).map_err(|error| {
        let is_at_fault = |(_, replace): &&(&str, Replace)| {
            let mut without = fields.clone();
            replace(&mut without);
            Limit::try_from(without).is_ok()
        };
        let field = LimitFields::REPLACEABLE.iter().find(is_at_fault);
        (field.map_or_else(|| at.clone(), |(name, _)| at.clone().name(name)), error)
    })
}

fn key(config: &KeyConfig, names: &Names) -> Result<(Arc<dyn KeyExtractor>, String), ConfigError> {
    match config {
        KeyConfig::Joined(joined) => self::joined(joined, names),
        KeyConfig::FirstOf(first_of) => {
            let mut keys = first_of.first_of.iter().map(|keys| joined(keys, names));
            let Some(first) = keys.next() else {
                return Err(ConfigError::new("`first_of` is empty; name an extractor"));
            };
            keys.try_fold(first?, |(first, name), next| {
                let (next, next_name) = next?;
                let either: Arc<dyn KeyExtractor> = Arc::new(Or::new(first, next));
                Ok((either, format!("{name} or {next_name}")))
            })
        }
    }
}

fn joined(
    keys: &OneOrMany<String>,
    names: &Names,
) -> Result<(Arc<dyn KeyExtractor>, String), ConfigError> {
    let mut extractors = keys.as_slice().iter().map(|name| names.key_of(name));
    let Some(first) = extractors.next() else {
        return Err(ConfigError::new(
            "the list of extractors is empty; name one, such as `peer_ip`, or `global` for one budget of all requests",
        ));
    };
    let joined = extractors.try_fold(first?, |first, next| {
        let both: Arc<dyn KeyExtractor> = Arc::new(first.and(next?));
        Ok::<_, ConfigError>(both)
    })?;
    Ok((joined, keys.as_slice().join(" + ")))
}

fn patterns(config: &OneOrMany<Match>, at: &Field) -> Result<Vec<Pattern>, Misplaced> {
    let pattern = |(number, one): (usize, &Match)| {
        let at = match config {
            OneOrMany::One(_) => at.clone(),
            OneOrMany::Many(_) => at.clone().index(number),
        };
        if one.path.is_none() && one.method.as_slice().is_empty() {
            return Err((
                at,
                ConfigError::new("it has no `path` and no `method`; write one, or remove it"),
            ));
        }
        Pattern::new(one.path.as_deref(), one.method.as_slice()).map_err(|error| (at, error))
    };
    config.as_slice().iter().enumerate().map(pattern).collect()
}

fn plans(config: &LimitConfig, names: &Names, at: &Field) -> Result<Option<Plans>, Misplaced> {
    let of = match (&config.plan, config.plans.is_empty()) {
        (None, true) => return Ok(None),
        (Some(name), false) => {
            names.plan_of(name).map_err(|error| (at.clone().name("plan"), error))?
        }
        (None, false) => {
            let error = "`plan` is missing; name the function of the application that says the plan of a request";
            return Err((at.clone().name("plans"), ConfigError::new(error)));
        }
        (Some(_), true) => {
            let error = "`plans` is missing; write a table of quotas by plan, or remove `plan`";
            return Err((at.clone().name("plan"), ConfigError::new(error)));
        }
    };
    let plan = |(name, plan): (&String, &PlanConfig)| {
        let at = at.clone().name("plans").name(name);
        Ok((name.clone(), of_plan(config, plan, &at)?))
    };
    let limits = config.plans.iter().map(plan).collect::<Result<_, Misplaced>>()?;
    Ok(Some(Plans { of, limits }))
}

fn of_plan(config: &LimitConfig, plan: &PlanConfig, at: &Field) -> Result<OfPlan, Misplaced> {
    match plan {
        PlanConfig { quota: Some(quota), burst, unlimited: false, deny: None } => {
            build(&config.with_quota(quota, *burst), at)
                .map(|limit| OfPlan::Limit(Planned::new(limit)))
        }
        PlanConfig { quota: None, burst: None, unlimited: true, deny: None } => {
            Ok(OfPlan::Unlimited)
        }
        PlanConfig { quota: None, burst: None, unlimited: false, deny: Some(reason) } => {
            Ok(OfPlan::Reject(Reject::new(http::StatusCode::FORBIDDEN, reason.clone())))
        }
        _ => {
            let error = "a plan has one of `quota` (with or without `burst`), `unlimited = true` and `deny`; write one";
            Err((at.clone(), ConfigError::new(error)))
        }
    }
}

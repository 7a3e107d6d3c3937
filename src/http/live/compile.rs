//! From a configuration to limits that can be asked.

use std::sync::Arc;

use http::request::Parts;
use tokio::time::Instant;

use super::Names;
use super::pattern::Pattern;
use super::plans::{PlanOutcome, Plans};
use super::version::{CompiledLimit, Version};
use crate::configuration::{
    Config, CostConfig, Field, KeyConfig, LimitConfig, Match, Misplaced, OneOrMany, PlanConfig,
    PlanRule, UnknownPlan,
};
use crate::http::KeyExtractor;
use crate::http::copied_limit::CopiedLimit;
use crate::http::fallbacks::watched;
use crate::http::key_extractor::Or;
use crate::http::request_fn::RequestFn;
use crate::units::ConfigError;

/// The most extractors in a list.
const MOST_EXTRACTORS: usize = 16;

impl Version {
    pub(super) fn compile(config: Config, names: &Names, number: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let limits = config.limits.iter().enumerate();
        let limits = limits.map(|(place, limit)| compiled(limit, names, &Field::of_limit(place)));
        let limits = limits.collect::<Result<_, _>>();
        let limits: Vec<CompiledLimit> =
            limits.map_err(|(field, error)| config.error_at(&field, &error))?;
        Ok(Self {
            number,
            config: Arc::new(config),
            looks_up: limits.iter().any(CompiledLimit::looks_up),
            limits,
            requests: Arc::default(),
            is_examined: Arc::default(),
        })
    }
}

fn compiled(config: &LimitConfig, names: &Names, at: &Field) -> Result<CompiledLimit, Misplaced> {
    let field = |name: &str| at.clone().name(name);
    let limit = config.limit(at)?;
    let overrides = config.overrides_of(&limit, at)?;
    let cost = cost(config, names).map_err(|error| (field("cost"), error))?;
    let key = key(&config.key, names).map_err(|error| (field("key"), error))?;
    let (key, key_name) = key;
    Ok(CompiledLimit {
        matches: patterns(&config.matches, &field("match"))?,
        except: patterns(&config.except, &field("except"))?,
        key: watched(key, limit.name()),
        key_name,
        cost,
        limit: CopiedLimit::new(&limit),
        plans: plans(config, names, at)?,
        overrides: overrides.into(),
        has_applied: Arc::default(),
        since: Instant::now(),
    })
}

/// `None` if the layer has it.
fn cost(config: &LimitConfig, names: &Names) -> Result<Option<RequestFn<u32>>, ConfigError> {
    Ok(match &config.cost {
        None => None,
        Some(CostConfig::Units(units)) => {
            let units = *units;
            Some(Arc::new(move |_: &Parts| units))
        }
        Some(CostConfig::Named(name)) => Some(names.cost_of(name)?),
    })
}

fn key(config: &KeyConfig, names: &Names) -> Result<(Arc<dyn KeyExtractor>, String), ConfigError> {
    match config {
        KeyConfig::Joined(joined) => self::joined(joined, names),
        KeyConfig::FirstOf(first_of) => {
            check_number(first_of.first_of.len())?;
            check_reached(&first_of.first_of)?;
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

/// Extractors are nested, and so are the calls to them.
fn check_number(extractors: usize) -> Result<(), ConfigError> {
    if extractors > MOST_EXTRACTORS {
        return Err(ConfigError::new(format!(
            "the list has {extractors} extractors; use at most {MOST_EXTRACTORS}"
        )));
    }
    Ok(())
}

/// An extractor behind one that always has a key, or behind itself, is never used.
fn check_reached(first_of: &[OneOrMany<String>]) -> Result<(), ConfigError> {
    for (number, keys) in first_of.iter().enumerate() {
        let keys = keys.as_slice();
        let is_last = number + 1 == first_of.len();
        if keys.iter().all(|name| name == "global") && !is_last && !keys.is_empty() {
            return Err(ConfigError::new(
                "every request has the key `global`, so the names after it are never used; write \
                 it last",
            ));
        }
    }
    if let Some(keys) = repeated(first_of) {
        return Err(ConfigError::new(format!(
            "`{}` is there twice, and the second is never used; remove it",
            keys.as_slice().join(" + ").escape_debug()
        )));
    }
    Ok(())
}

/// The first element that equals an earlier one.
fn repeated<T: PartialEq>(list: &[T]) -> Option<&T> {
    let mut numbered = list.iter().enumerate();
    numbered.find_map(|(number, element)| list[..number].contains(element).then_some(element))
}

fn joined(
    keys: &OneOrMany<String>,
    names: &Names,
) -> Result<(Arc<dyn KeyExtractor>, String), ConfigError> {
    check_number(keys.as_slice().len())?;
    if let Some(name) = repeated(keys.as_slice()) {
        return Err(ConfigError::new(format!(
            "`{}` is there twice, and its key does not change by that; remove one",
            name.escape_debug()
        )));
    }
    let mut extractors = keys.as_slice().iter().map(|name| names.key_of(name));
    let Some(first) = extractors.next() else {
        return Err(ConfigError::new(
            "the list of extractors is empty; name one, such as `peer_ip`, or `global` for one \
             budget of all requests",
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
        Pattern::new(one.path.as_deref(), one.method.as_slice())
            .map_err(|(field, error)| (at.name(field), error))
    };
    config.as_slice().iter().enumerate().map(pattern).collect()
}

fn plans(config: &LimitConfig, names: &Names, at: &Field) -> Result<Option<Plans>, Misplaced> {
    let (name, source) = match (&config.plan, config.plans.is_empty()) {
        (None, true) if config.unknown_plan.is_none() => return Ok(None),
        (None, true) => {
            let error = "`plans` is missing, so no plan is unknown; write a table by plan, or \
                         remove `unknown_plan`";
            return Err((at.clone().name("unknown_plan"), ConfigError::new(error)));
        }
        (Some(name), false) => {
            let source = names.plan_source(name);
            (
                name,
                source.map_err(|error| (at.clone().name("plan"), error))?,
            )
        }
        (None, false) => {
            let error = "`plan` is missing; name the function of the application that says the \
                         plan of a request";
            return Err((at.clone().name("plans"), ConfigError::new(error)));
        }
        (Some(_), true) => {
            let error = "`plans` is missing; write a table by plan, or remove `plan`";
            return Err((at.clone().name("plan"), ConfigError::new(error)));
        }
    };
    let compiled = config.plans.iter().map(|(name, plan)| {
        Ok((
            name.clone(),
            outcome(config, plan, &at.clone().name("plans").name(name))?,
        ))
    });
    let unknown = match config.unknown_plan {
        None | Some(UnknownPlan::Limit) => None,
        Some(UnknownPlan::Deny) => Some(denied("this plan is not known")),
    };
    Ok(Some(Plans {
        name: name.as_str().into(),
        source,
        outcomes: compiled.collect::<Result<_, Misplaced>>()?,
        unknown,
        reported: Arc::default(),
        without_plan: Arc::default(),
    }))
}

fn denied(reason: &str) -> PlanOutcome {
    PlanOutcome::Reject(reason.to_owned().into())
}

fn outcome(config: &LimitConfig, plan: &PlanConfig, at: &Field) -> Result<PlanOutcome, Misplaced> {
    Ok(match plan.rule(config, at)? {
        PlanRule::Limit(limit) => PlanOutcome::Limit(CopiedLimit::new(&limit)),
        PlanRule::Unlimited => PlanOutcome::Unlimited,
        PlanRule::Deny(reason) => denied(reason),
    })
}

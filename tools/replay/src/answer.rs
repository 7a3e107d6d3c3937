//! A line of output: a decision, in field names that other implementations rely on.

use std::time::Duration;

use serde::Serialize;
use tollgate::decision::Verdict;
use tollgate::{Decision, Limit};

#[derive(Serialize)]
pub(crate) struct Answer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    allowed: bool,
    limit: u64,
    remaining: u64,
    retry_after_us: Option<u128>,
    reset_after_us: u128,
    delay_us: u128,
    never: bool,
    /// Whether a limit in shadow mode would have denied the check.
    #[serde(skip_serializing_if = "is_false")]
    would_deny: bool,
    /// Whether the key is blocked.
    #[serde(skip_serializing_if = "is_false")]
    blocked: bool,
    /// For the receipt, if it is not the time of the check plus `reset_after_us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    drains_at_us: Option<u128>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<Answer<'a>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl<'a> Answer<'a> {
    /// The decision over `limits`, and each limit's own if there are several.
    pub(crate) fn new(limits: &'a [Limit], decision: &Decision) -> Self {
        let mut answer = Self::of_verdict(None, decision.deciding());
        answer.delay_us = decision.delay().as_micros();
        let drains_at = decision.receipt().unwrap_or_default().drains_at();
        let full_at = decision.decided_at() + decision.verdicts()[0].reset_after();
        answer.drains_at_us = Some(drains_at)
            .filter(|at| ![Duration::ZERO, full_at].contains(at))
            .map(|at| at.as_micros());
        if limits.len() > 1 {
            let pairs = limits.iter().zip(decision.verdicts());
            answer.limits = pairs
                .map(|(limit, it)| Self::of_verdict(Some(limit.name()), it))
                .collect();
        }
        answer
    }

    fn of_verdict(name: Option<&'a str>, verdict: &Verdict) -> Self {
        Self {
            name,
            allowed: verdict.allowed(),
            limit: verdict.capacity(),
            remaining: verdict.remaining(),
            retry_after_us: verdict.retry_after().map(|wait| wait.as_micros()),
            reset_after_us: verdict.reset_after().as_micros(),
            delay_us: verdict.delay().as_micros(),
            never: verdict.exceeds_capacity(),
            would_deny: verdict.would_deny(),
            blocked: verdict.is_blocked(),
            drains_at_us: None,
            limits: Vec::new(),
        }
    }
}

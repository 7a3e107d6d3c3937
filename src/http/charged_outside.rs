//! Budgets that two layers charge for one request.
//!
//! A nested router, a cloned layer, or one set of limits in two layers make each request cost twice
//! as much, and each answer looks right. A concurrency limit of 1 even denies for ever, because the
//! request itself holds the permit. So with some requests, a layer leaves what it charges, and a
//! layer further inside compares.

use std::sync::atomic::Ordering;

use http::request::Parts;

use super::policy::KeyedLimit;
use super::request_checks::RequestChecks;
use super::request_limiter::RequestLimiter;
use super::sampled::is_sampled;
use crate::limiter::RateLimiter;
use crate::model::{Check, Key};
use crate::telemetry;

/// The checks of the layers outside, each with its limiter.
#[derive(Clone)]
struct ChargedOutside(Vec<(RateLimiter, Check)>);

/// Returns whether the charges of a request are compared, and left with it.
#[inline]
fn is_compared(parts: &Parts) -> bool {
    is_sampled() || parts.extensions.get::<ChargedOutside>().is_some()
}

impl RequestLimiter {
    /// Compares what a layer asks with the charges of the layers outside, if they left them. Leaves
    /// the charges of this layer with some requests.
    #[inline]
    pub(super) fn compare(&self, asked: &RequestChecks, parts: &mut Parts) {
        if is_compared(parts) {
            self.compare_and_leave(asked, parts);
        }
    }

    /// The same for a charge of one limit. It becomes a check only if it is compared.
    #[inline]
    pub(super) fn compare_one(&self, keyed: &KeyedLimit, key: &Key, cost: u32, parts: &mut Parts) {
        if is_compared(parts) {
            let check = keyed.check(key.clone(), cost);
            self.compare_and_leave(&check.into(), parts);
        }
    }

    #[cold]
    fn compare_and_leave(&self, asked: &RequestChecks, parts: &mut Parts) {
        let limiter = &self.rate_limiter;
        let outside = parts.extensions.remove::<ChargedOutside>();
        let mut charged = outside.map_or_else(Vec::new, |outside| outside.0);
        let of_group = asked.group.iter().flat_map(|group| group.iter());
        let costs = |check: &&Check| check.cost() > 0;
        let checks: Vec<&Check> = asked.permits.iter().chain(of_group).filter(costs).collect();
        let is_charged = |check: &&&Check| {
            let is_same = |(of, other): &(RateLimiter, Check)| {
                limiter.is(of) && check.budget() == other.budget()
            };
            charged.iter().any(is_same)
        };
        if let Some(twice) = checks.iter().find(is_charged)
            && !self.is_double_charge_reported.swap(true, Ordering::Relaxed)
        {
            telemetry::charged_twice(twice.limit());
        }
        let checks = checks.into_iter().cloned();
        charged.extend(checks.map(|check| (limiter.clone(), check)));
        parts.extensions.insert(ChargedOutside(charged));
    }
}

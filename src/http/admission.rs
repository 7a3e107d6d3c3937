//! From a request's head to a question for the limiter, and from its answer to what happens next.

use http::request::Parts;
use http::{Extensions, Response};

use super::settings::Settings;
use super::{MissingKey, OnMissingKey, OnStoreFailure, ResponseBody, refusal};
use crate::{Answer, Charge, Decision, Error, Key, Op, telemetry};

/// What becomes of a request before it is decided.
pub(super) enum Admission<B> {
    /// It is not limited.
    Forward,
    /// It is answered here.
    Refuse(Response<ResponseBody<B>>),
    /// It waits for a decision.
    Check(Answer),
}

/// What becomes of a request once it is decided.
pub(super) enum Outcome<B> {
    /// It goes on to the inner service: at once, or after the decision's delay.
    Forward(Option<Decision>),
    /// It is answered here.
    Refuse(Response<ResponseBody<B>>),
}

impl Settings {
    pub(super) fn admit<B>(&self, parts: &Parts) -> Admission<B> {
        if self.exempts(parts) {
            return Admission::Forward;
        }
        match self.ask(parts) {
            Ok(answer) => Admission::Check(answer),
            Err((limit, reason)) => {
                let forwarded = self.on_missing_key == OnMissingKey::Forward;
                telemetry::keyless(limit, &reason, forwarded);
                match self.on_missing_key {
                    OnMissingKey::Forward => Admission::Forward,
                    OnMissingKey::Refuse(status) => {
                        Admission::Refuse(refusal::keyless(status, &reason))
                    }
                }
            }
        }
    }

    /// One question for all limits, or the limit that has no key.
    fn ask(&self, parts: &Parts) -> Result<Answer, (&str, MissingKey)> {
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        if let [only] = &self.limits[..] {
            let key = only.key.extract(parts).map_err(|reason| (only.limit.name(), reason))?;
            return Ok(self.limiter.apply(Op::Charge, &[only.limit.charge(&key, cost)]));
        }
        let mut keys: Vec<Key> = Vec::with_capacity(self.limits.len());
        for keyed in &self.limits {
            let key = keyed.key.extract(parts).map_err(|reason| (keyed.limit.name(), reason))?;
            keys.push(key);
        }
        let batch: Vec<Charge<'_>> = self
            .limits
            .iter()
            .zip(&keys)
            .map(|(keyed, key)| keyed.limit.charge(key, cost))
            .collect();
        Ok(self.limiter.apply(Op::Charge, &batch))
    }

    /// What to do, given the answer. The decision is left in the request's extensions.
    pub(super) fn conclude<B>(
        &self,
        answer: Result<Decision, Error>,
        extensions: &mut Extensions,
    ) -> Outcome<B> {
        match answer {
            Ok(decision) if decision.allowed() => {
                extensions.insert(decision.clone());
                Outcome::Forward(Some(decision))
            }
            Ok(decision) => {
                telemetry::refused(&self.names, &decision);
                Outcome::Refuse(refusal::refused(self, decision))
            }
            Err(error) => {
                let forwarded = self.on_store_failure == OnStoreFailure::Forward;
                telemetry::undecided(&self.names, &error, forwarded);
                match self.on_store_failure {
                    OnStoreFailure::Forward => Outcome::Forward(None),
                    OnStoreFailure::Refuse => Outcome::Refuse(refusal::undecided()),
                }
            }
        }
    }
}

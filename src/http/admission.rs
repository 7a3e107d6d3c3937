//! From a request's head to a question for the limiter, and from its answer to what happens next.

use http::request::Parts;
use http::{Extensions, Response};

use super::headers::Told;
use super::settings::{KeyedLimit, Settings};
use super::{MissingKey, OnMissingKey, OnStoreFailure, ResponseBody, refusal};
use crate::nouns::{Check, Decision, Error, Key, Op, Source};
use crate::store::Answer;
use crate::telemetry;

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
    /// It goes on to the inner service, after the decision's delay.
    Admit(Told),
    /// It goes on undecided.
    Forward,
    /// It is answered here.
    Refuse(Response<ResponseBody<B>>),
}

impl Settings {
    pub(super) fn admit<B>(&self, parts: &Parts) -> Admission<B> {
        if self.exempts(parts) {
            return Admission::Forward;
        }
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        if let [only] = &self.limits[..] {
            return match self.key(only, parts) {
                Ok(Some(key)) => {
                    Admission::Check(self.ask(&[Check::new(&only.limit, &key).cost(cost)]))
                }
                Ok(None) => Admission::Forward,
                Err(response) => Admission::Refuse(*response),
            };
        }
        let mut keyed: Vec<(&KeyedLimit, Key)> = Vec::with_capacity(self.limits.len());
        for limit in &self.limits {
            match self.key(limit, parts) {
                Ok(key) => keyed.extend(key.map(|key| (limit, key))),
                Err(response) => return Admission::Refuse(*response),
            }
        }
        if keyed.is_empty() {
            return Admission::Forward;
        }
        let charges: Vec<Check> =
            keyed.iter().map(|(keyed, key)| Check::new(&keyed.limit, key).cost(cost)).collect();
        Admission::Check(self.ask(&charges))
    }

    fn ask(&self, charges: &[Check]) -> Answer {
        self.limiter.apply(Op::Charge, charges)
    }

    /// The key of a request under one limit; none if it does without; the answer if it may not.
    fn key<B>(
        &self,
        keyed: &KeyedLimit,
        parts: &Parts,
    ) -> Result<Option<Key>, Box<Response<ResponseBody<B>>>> {
        let missing: MissingKey = match keyed.key.extract(parts) {
            Ok(key) => {
                telemetry::keyed(&self.keyless_events, keyed.limit.name());
                return Ok(Some(key));
            }
            Err(missing) => missing,
        };
        let forwarded = self.on_missing_key == OnMissingKey::SkipLimit;
        let limit = keyed.limit.name();
        telemetry::keyless(&self.keyless_events, limit, missing.logged(), forwarded);
        match self.on_missing_key {
            OnMissingKey::SkipLimit => Ok(None),
            OnMissingKey::Reject(status) => Err(Box::new(refusal::keyless(status, &missing))),
        }
    }

    /// What to do, given the answer. The decision is left in the request's extensions.
    pub(super) fn conclude<B>(
        &self,
        answer: Result<Decision, Error>,
        extensions: &mut Extensions,
    ) -> Outcome<B> {
        match answer {
            Ok(decision) => {
                if decision.source() != Source::DenyCache {
                    telemetry::decided(&self.undecided_events, &self.names);
                }
                let told = Told::new(decision, self.reset_format);
                if !told.decision.allowed() {
                    telemetry::denied(&told.decision);
                    return Outcome::Refuse(refusal::refused(self, told));
                }
                if told.is_tightest(extensions.get()) {
                    extensions.insert(told.decision.clone());
                }
                Outcome::Admit(told)
            }
            Err(error) => {
                let outcome = if error.is_full() {
                    OnStoreFailure::FailClosed
                } else if error.is_overloaded() {
                    self.on_overload
                } else {
                    self.on_store_failure
                };
                let forwarded = outcome == OnStoreFailure::FailOpen;
                telemetry::undecided(&self.undecided_events, &self.names, &error, forwarded);
                if forwarded { Outcome::Forward } else { Outcome::Refuse(refusal::undecided()) }
            }
        }
    }
}

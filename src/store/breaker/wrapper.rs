//! A wrapper of a store, for tests of the breaker (feature `test-util`).

use std::sync::Arc;

use futures_core::future::BoxFuture;

use super::{Breaker, BreakerSettings, BreakerState};
use crate::model::{Check, Decision, Error, Key, Limit, Operation};
use crate::store::{Answer, Note, Store};
use crate::units::{ConfigError, Quota};

/// Any store with a circuit breaker, which counts groups. It exists for tests of the breaker in
/// virtual time, because `RedisStore` has its own, which counts calls.
#[derive(Debug)]
pub struct CircuitBreaker<S> {
    store: Arc<S>,
    breaker: Arc<Breaker>,
}

impl<S: Store> CircuitBreaker<S> {
    /// Wraps a store.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting is out of its range.
    pub fn new(store: S, settings: BreakerSettings) -> Result<Self, ConfigError> {
        settings.validate()?;
        let store = Arc::new(store);
        let limit = Limit::gcra("probe", Quota::per_second(1))?;
        let check = Check::new(&limit, Key::global());
        let probed = Arc::clone(&store);
        let probe = move || -> BoxFuture<'static, bool> {
            let answer = probed.apply(Operation::Peek(check.clone().into()));
            Box::pin(async { !has_failed(&answer.await) })
        };
        let name: Arc<str> = std::any::type_name::<S>().into();
        Ok(Self {
            breaker: Breaker::new(settings, Arc::clone(&name), name, probe, || {}),
            store,
        })
    }

    /// The state of the breaker, for health endpoints.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.breaker.state()
    }
}

fn has_failed(answer: &Result<Decision, Error>) -> bool {
    answer.as_ref().is_err_and(Error::is_unavailable)
}

impl<S: Store> Store for CircuitBreaker<S> {
    fn apply(&self, operation: Operation) -> Answer {
        if let Err(error) = self.breaker.admit() {
            return Answer::ready(Err(error));
        }
        let begun = self.breaker.begin();
        let breaker = Arc::clone(&self.breaker);
        let answer = self.store.apply(operation);
        answer.resolved(move |answer| {
            breaker.end(begun, has_failed(&answer));
            answer
        })
    }

    fn check_limits(&self, limits: &[&Limit]) -> Result<(), ConfigError> {
        self.store.check_limits(limits)
    }

    fn note(&self, note: Note<'_>) {
        self.store.note(note);
    }

    fn is_embedded(&self) -> bool {
        self.store.is_embedded()
    }
}

impl<S> Clone for CircuitBreaker<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            breaker: Arc::clone(&self.breaker),
        }
    }
}

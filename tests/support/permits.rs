//! Stores of permits that tests control.

use tollgate::store::{Answer, Claim, Claimed, Group, Op, PermitStore, Permits, Store};
use tollgate::{Error, MemoryStore, RateLimiter};

/// The permits of an embedded store.
#[derive(Clone, Debug)]
pub struct InMemory(Permits);

impl Default for InMemory {
    fn default() -> Self {
        Self(MemoryStore::new().permits().expect("it grants permits"))
    }
}

impl InMemory {
    pub fn claim(&self, claims: Vec<Claim>) -> Claimed {
        self.0.claim(claims)
    }
}

/// A limiter whose permits another store grants, and which decides no rates.
pub fn granted_by(permits: impl PermitStore + Clone) -> RateLimiter {
    RateLimiter::new(GrantedBy(permits))
}

#[derive(Debug)]
struct GrantedBy<S>(S);

impl<S: PermitStore + Clone> Store for GrantedBy<S> {
    fn apply(&self, _: Op, _: Group) -> Answer {
        Answer::ready(Err(Error::misuse("this store grants permits only")))
    }

    fn permits(&self) -> Option<Permits> {
        Some(Permits::new(self.0.clone()))
    }
}

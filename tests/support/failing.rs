//! A store that fails every check.

use tollgate::Error;
use tollgate::store::{Answer, Group, Op, Store};

/// Fails every check with the error that the function returns.
#[derive(Debug)]
pub struct Failing(pub fn() -> Error);

impl Store for Failing {
    fn apply(&self, _: Op, _: Group) -> Answer {
        Answer::ready(Err((self.0)()))
    }
}

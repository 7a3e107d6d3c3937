//! The choice of the limits of a request.

use std::hash::Hash;
use std::sync::Arc;

use futures_core::future::BoxFuture;
use http::request::Parts;

use super::{ChosenLimits, Lookup, LookupResult};
use crate::http::fallbacks::{CHOSEN, watched};
use crate::http::request_fn::RequestFn;
use crate::http::{KeyExtractor, MissingKey};
use crate::model::Key;

/// Chooses the limits of a request.
pub(in crate::http) type Choose = RequestFn<Result<Chosen, MissingKey>>;

/// The chosen limits, or a look-up that has to end before.
pub(in crate::http) enum Chosen {
    Now(ChosenLimits),
    Later(Choosing),
}

/// A look-up. It ends with a function that chooses the limits.
pub(in crate::http) type Choosing =
    BoxFuture<'static, Box<dyn FnOnce(&Parts) -> ChosenLimits + Send>>;

pub(in crate::http) fn by_request(
    choose: impl Fn(&Parts) -> ChosenLimits + Send + Sync + 'static,
) -> Choose {
    Arc::new(move |parts| Ok(Chosen::Now(choose(parts))))
}

pub(in crate::http) fn by_key(
    key: impl KeyExtractor,
    choose: impl Fn(&Parts, &Key) -> ChosenLimits + Send + Sync + 'static,
) -> Choose {
    let key = watched(Arc::new(key), CHOSEN);
    Arc::new(move |parts| Ok(Chosen::Now(choose(parts, &key.extract(parts)?))))
}

pub(in crate::http) fn by_lookup<I, T>(
    lookup: Lookup<I, T>,
    choose: impl Fn(&Parts, &I, LookupResult<'_, T>) -> ChosenLimits + Send + Sync + 'static,
) -> Choose
where
    I: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    let choose = Arc::new(choose);
    Arc::new(move |parts| {
        let id = lookup.id_of(parts)?;
        if let Some(known) = lookup.known(&id) {
            return Ok(Chosen::Now(choose(parts, &id, known.as_result())));
        }
        let lookup = lookup.clone();
        let choose = Arc::clone(&choose);
        Ok(Chosen::Later(Box::pin(async move {
            let found = lookup.find(id.clone()).await;
            let choose = move |parts: &Parts| choose(parts, &id, found.as_result());
            Box::new(choose) as Box<dyn FnOnce(&Parts) -> ChosenLimits + Send>
        })))
    })
}

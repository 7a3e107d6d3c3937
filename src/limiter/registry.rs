//! The names of limits that layers were built with. Limits of one name and kind share what they
//! count, and those of several kinds cannot be told apart in headers and metrics.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::model::Limit;
use crate::units::{ConfigError, Mutex};

/// Registered limits, by name, so that a name is not used twice by mistake.
#[derive(Default)]
pub(super) struct Registry(Mutex<HashMap<String, Registered>>);

enum Registered {
    /// A limit that stays as it is.
    Limit(Limit),
    /// A limit of a set, which may replace it. Names of a set that is gone are free.
    Set(Weak<()>),
}

impl Registry {
    /// Registers all limits, or none.
    pub(super) fn register_all(&self, new: &[&Limit]) -> Result<(), ConfigError> {
        let mut limits = self.0.lock();
        for limit in new {
            match limits.get(limit.name()) {
                Some(Registered::Limit(known)) if !known.decides_as(limit) => {
                    let why = match known.kind() == limit.kind() {
                        true => "limits of one name share what they count",
                        false => "headers and metrics could not tell them apart",
                    };
                    return Err(ConfigError::new(format!(
                        "the name is registered for {known}, and this limit is {limit}: {why}; use \
                         another name, or choose the limit for each request with \
                         `RateLimitLayer::from_fn`",
                    ))
                    .of_limit(limit.name()));
                }
                Some(Registered::Set(set)) if set.strong_count() > 0 => {
                    return Err(ConfigError::new(
                        "a limit from a configuration has this name, and headers and metrics could \
                         not tell the two apart; use another name",
                    )
                    .of_limit(limit.name()));
                }
                _ => {}
            }
        }
        limits.extend(
            new.iter()
                .map(|&limit| (limit.name().to_owned(), Registered::Limit(limit.clone()))),
        );
        Ok(())
    }

    /// Replaces the names of a set by new ones, or leaves them as they are.
    pub(super) fn replace_set<'a>(
        &self,
        set: &Arc<()>,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), (&'a str, ConfigError)> {
        let mut limits = self.0.lock();
        for name in names.clone() {
            let error = match limits.get(name) {
                Some(Registered::Limit(_)) => {
                    "a limit in the application's code has this name, and headers and metrics \
                     could not tell the two apart; use another name"
                }
                Some(Registered::Set(of)) if of.strong_count() > 0 && !is(of, set) => {
                    "a limit of another `LimitSet` has this name, and headers and metrics could \
                     not tell the two apart; give all layers clones of one `LimitSet`, or use \
                     another name"
                }
                _ => continue,
            };
            return Err((name, ConfigError::new(error)));
        }
        limits.retain(|_, registered| match registered {
            Registered::Limit(_) => true,
            Registered::Set(of) => of.strong_count() > 0 && !is(of, set),
        });
        limits.extend(names.map(|name| (name.to_owned(), Registered::Set(Arc::downgrade(set)))));
        Ok(())
    }
}

fn is(registered: &Weak<()>, set: &Arc<()>) -> bool {
    std::ptr::eq(registered.as_ptr(), Arc::as_ptr(set))
}

//! The names of limits that layers were built with: limits of one name share what they count.

use std::collections::HashMap;
use std::fmt;
#[cfg(feature = "config")]
use std::sync::{Arc, Weak};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::nouns::{ConcurrencyLimit, ConfigError, Limit};

/// Limits of a kind by name, so that a name is not used twice by mistake.
pub(super) struct Registry<L>(Mutex<HashMap<String, Registered<L>>>);

enum Registered<L> {
    /// A limit that stays as it is.
    Limit(L),
    /// A limit of a set, which may replace it. Names of a set that is gone are free.
    #[cfg(feature = "config")]
    Set(Weak<SetId>),
}

/// Identifies a set of limits, by its address.
#[cfg(feature = "config")]
#[derive(Debug, Default)]
pub(crate) struct SetId {
    /// A type without a size has no address of its own.
    _address: u8,
}

/// A limit that is registered by its name.
pub(super) trait Registrable: Clone + fmt::Display {
    /// What limits of one name share.
    const SHARED: &'static str;
    /// What the name belongs to.
    const OF: &'static str;
    /// What a limit allows.
    const ALLOWS: &'static str;

    fn name(&self) -> &str;

    /// Whether two limits make the same decisions.
    fn decides_as(&self, other: &Self) -> bool;
}

impl Registrable for Limit {
    const SHARED: &'static str = "budgets";
    const OF: &'static str = "RateLimiter";
    const ALLOWS: &'static str = "quota";

    fn name(&self) -> &str {
        self.name()
    }

    fn decides_as(&self, other: &Self) -> bool {
        self.decides_as(other)
    }
}

impl Registrable for ConcurrencyLimit {
    const SHARED: &'static str = "permits";
    const OF: &'static str = "ConcurrencyLimiter";
    const ALLOWS: &'static str = "number";

    fn name(&self) -> &str {
        self.name()
    }

    fn decides_as(&self, other: &Self) -> bool {
        self.limit() == other.limit()
    }
}

impl<L> Default for Registry<L> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<L: Registrable> Registry<L> {
    /// Registers all limits, or none.
    pub(super) fn register_all(&self, new: &[&L]) -> Result<(), ConfigError> {
        let mut limits = self.lock();
        for limit in new {
            match limits.get(limit.name()) {
                Some(Registered::Limit(known)) if !known.decides_as(limit) => {
                    return Err(ConfigError::new(format!(
                        "the name is registered for {known}, and this limit is {limit}: limits of one \
                         name share {}; use another name, or a new {} to change the {} at run time",
                        L::SHARED,
                        L::OF,
                        L::ALLOWS
                    ))
                    .of_limit(limit.name()));
                }
                #[cfg(feature = "config")]
                Some(Registered::Set(set)) if set.strong_count() > 0 => {
                    return Err(ConfigError::new(format!(
                        "the name is that of a limit from a configuration: limits of one name share \
                         {}; use another name",
                        L::SHARED
                    ))
                    .of_limit(limit.name()));
                }
                _ => {}
            }
        }
        limits.extend(
            new.iter().map(|&limit| (limit.name().to_owned(), Registered::Limit(limit.clone()))),
        );
        Ok(())
    }

    /// Replaces the names of a set by new ones, or leaves them as they are.
    #[cfg(feature = "config")]
    pub(super) fn replace_set<'a>(
        &self,
        set: &Arc<SetId>,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), (&'a str, ConfigError)> {
        let mut limits = self.lock();
        for name in names.clone() {
            let error = match limits.get(name) {
                Some(Registered::Limit(_)) => {
                    "the name is that of a limit in the application's code"
                }
                Some(Registered::Set(of)) if of.strong_count() > 0 && !is(of, set) => {
                    "the name is that of a limit of another `LimitSet`"
                }
                _ => continue,
            };
            let error =
                format!("{error}: limits of one name share {}; use another name", L::SHARED);
            return Err((name, ConfigError::new(error)));
        }
        limits.retain(|_, registered| match registered {
            Registered::Limit(_) => true,
            Registered::Set(of) => of.strong_count() > 0 && !is(of, set),
        });
        limits.extend(names.map(|name| (name.to_owned(), Registered::Set(Arc::downgrade(set)))));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Registered<L>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "config")]
fn is(registered: &Weak<SetId>, set: &Arc<SetId>) -> bool {
    std::ptr::eq(registered.as_ptr(), Arc::as_ptr(set))
}

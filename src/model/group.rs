//! Groups: checks that are decided as one.

use std::ops::Deref;
use std::slice::Iter;

use super::{Check, Error};

/// The most checks in one group.
pub(crate) const MAX_GROUP: usize = 255;

/// One to 255 checks that are decided as one. All are charged, or none.
///
/// A group has each budget at most once. A budget that appears twice would make "all or none"
/// ambiguous. A single check converts with `From`. A vector, an array or a slice of checks converts
/// with `TryFrom`.
///
/// ```
/// use tollgate::store::Group;
/// use tollgate::{Check, Limit, Quota};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let user = Limit::token_bucket("user", Quota::per_second(5))?;
/// let tenant = Limit::fixed_window("tenant", Quota::per_day(10_000))?;
/// let alice = Check::new(&user, "alice");
///
/// let group = Group::new([alice.clone(), Check::new(&tenant, "acme")])?;
/// assert_eq!(group.len(), 2);
/// assert_eq!(Group::from(alice.clone()).len(), 1);
/// assert!(Group::new([alice.clone(), alice]).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group(Checks);

/// Most groups have one check, which needs no allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Checks {
    One(Check),
    /// Two or more.
    Several(Vec<Check>),
}

impl Group {
    /// Creates a group.
    ///
    /// # Errors
    ///
    /// Returns an error that [is misuse](Error::is_misuse) if the group is empty, has more than 255
    /// checks, or two checks of one budget.
    pub fn new(checks: impl Into<Vec<Check>>) -> Result<Self, Error> {
        let checks = checks.into();
        validate(&checks)?;
        Ok(Self::of_distinct(checks))
    }

    /// Creates a group without validation. The caller guarantees 1 to 255 checks of distinct
    /// budgets.
    pub(crate) fn of_distinct(checks: Vec<Check>) -> Self {
        debug_assert!(
            validate(&checks).is_ok(),
            "the caller guarantees a valid group"
        );
        match <[Check; 1]>::try_from(checks) {
            Ok([check]) => Self::from(check),
            Err(mut checks) => {
                // Reserved units of one limit would be spent later than charged if another limit
                // delays the group.
                checks.iter_mut().for_each(Check::reserve_nothing);
                Self(Checks::Several(checks))
            }
        }
    }

    /// The check of a group of one.
    #[inline]
    pub(crate) fn into_one(self) -> Result<Check, Self> {
        match self.0 {
            Checks::One(check) => Ok(check),
            Checks::Several(_) => Err(self),
        }
    }
}

fn validate(checks: &[Check]) -> Result<(), Error> {
    if checks.is_empty() {
        return Err(Error::misuse(format!(
            "the group is empty; use 1 to {MAX_GROUP} checks"
        )));
    }
    if checks.len() > MAX_GROUP {
        return Err(Error::misuse(format!(
            "the group has {} checks; use 1 to {MAX_GROUP}",
            checks.len()
        )));
    }
    for (i, check) in checks.iter().enumerate() {
        if checks[..i]
            .iter()
            .any(|other| other.budget() == check.budget())
        {
            return Err(Error::misuse(format!(
                "the group has limit `{}` with key `{}` twice; use one check with the sum of the \
                 costs, or give one of two limits another name",
                check.limit().name(),
                check.key()
            )));
        }
    }
    Ok(())
}

macro_rules! try_from {
    ($($(const $n:ident)? $checks:ty),*) => {$(
        impl$(<const $n: usize>)? TryFrom<$checks> for Group {
            type Error = Error;

            /// Creates a group like [`Group::new`].
            fn try_from(checks: $checks) -> Result<Self, Error> {
                Self::new(checks)
            }
        }
    )*};
}

try_from!(Vec<Check>, &[Check], const N [Check; N], const N &[Check; N]);

impl From<Check> for Group {
    #[inline]
    fn from(check: Check) -> Self {
        Self(Checks::One(check))
    }
}

impl Deref for Group {
    type Target = [Check];

    #[inline]
    fn deref(&self) -> &[Check] {
        match &self.0 {
            Checks::One(check) => std::slice::from_ref(check),
            Checks::Several(checks) => checks,
        }
    }
}

impl<'a> IntoIterator for &'a Group {
    type Item = &'a Check;
    type IntoIter = Iter<'a, Check>;

    fn into_iter(self) -> Iter<'a, Check> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Key, Limit};
    use crate::units::Quota;

    fn checks(count: u64) -> Vec<Check> {
        let limit = Limit::gcra("api", Quota::per_second(1)).unwrap();
        (0..count)
            .map(|key| Check::new(&limit, Key::from(key)))
            .collect()
    }

    #[test]
    fn group_has_1_to_255_checks() {
        for count in [1, 2, 255] {
            assert_eq!(Group::new(checks(count)).unwrap()[..], checks(count));
        }
        for count in [0, 256] {
            let error = Group::new(checks(count)).unwrap_err();
            assert!(
                error.is_misuse() && error.to_string().contains("use 1 to 255"),
                "{error}"
            );
        }
    }

    #[test]
    fn group_has_each_budget_once() {
        let bucket = Limit::token_bucket("api", Quota::per_second(1)).unwrap();
        let gcra = Limit::gcra("api", Quota::per_day(9)).unwrap();
        let window = Limit::fixed_window("api", Quota::per_second(1)).unwrap();
        let pair = |one: &Limit, other: &Limit| {
            Group::new([
                Check::new(one, "alice"),
                Check::new(other, "alice").with_cost(2),
            ])
        };
        assert!(
            pair(&bucket, &gcra).unwrap_err().is_misuse(),
            "they share a kind of state"
        );
        assert!(pair(&bucket, &window).is_ok(), "a window counts for itself");
    }

    #[test]
    fn group_of_one_check_is_that_check() {
        let [check] = checks(1).try_into().unwrap();
        let group = Group::new([check.clone()]).unwrap();
        assert_eq!(group, Group::from(check.clone()));
        assert_eq!(group.into_one(), Ok(check));
        assert!(Group::new(checks(2)).unwrap().into_one().is_err());
    }
}

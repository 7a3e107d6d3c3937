//! The result of a look-up.

/// The result of a [`Lookup`](crate::layer::Lookup).
///
/// Match `_` for [`Failed`](Self::Failed), because a later version may tell apart why no value is
/// known.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LookupResult<'a, T> {
    /// The value, looked up now or earlier.
    Known(&'a T),
    /// The id has no value.
    Unknown,
    /// The look-up failed or took too long, and the cache has no value.
    Failed,
}

impl<T> Clone for LookupResult<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for LookupResult<'_, T> {}

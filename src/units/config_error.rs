//! Errors of building.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;

/// An invalid setting of a limit, a layer or a store.
///
/// The message has the invalid part, its value, the accepted range and what to do.
///
/// ```
/// use tollgate::{Limit, Quota};
///
/// let error = Limit::fixed_window("api", Quota::per_second(10).burst(20)).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "limit `api`: a fixed window has no burst, and the quota sets a burst of 20; remove it, or \
///      use a token bucket or GCRA"
/// );
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    message: String,
    /// The field of a limit that is at fault, as files name it. A field of a table is written with
    /// a dot.
    field: Option<&'static str>,
    is_of_server: bool,
}

impl ConfigError {
    /// Creates an error, for authors of a [`Store`](crate::store::Store) that cannot decide some
    /// limits. Of a message of more than 2,000 characters, the middle is left out.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: shortened(message.into()),
            field: None,
            is_of_server: false,
        }
    }

    /// Creates an error about a server that cannot be used, with valid settings.
    #[cfg(feature = "redis")]
    pub(crate) fn of_server(message: impl Into<String>) -> Self {
        Self {
            is_of_server: true,
            ..Self::new(message)
        }
    }

    /// Returns whether the settings are valid, and the server could not be used, because it was
    /// down, did not answer in time, or turned the connection down. A later attempt may succeed.
    #[must_use]
    pub const fn is_of_server(&self) -> bool {
        self.is_of_server
    }

    /// The same error, about a field of a limit, unless it names one already.
    pub(crate) fn at(mut self, field: &'static str) -> Self {
        self.field.get_or_insert(field);
        self
    }

    /// The same error, about a field of a limit, whatever it names already.
    pub(crate) fn for_field(self, field: &'static str) -> Self {
        Self {
            field: Some(field),
            ..self
        }
    }

    /// The field of a limit that is at fault.
    pub(crate) const fn field(&self) -> Option<&'static str> {
        self.field
    }

    /// The same error, about a named limit.
    pub(crate) fn of_limit(self, name: &str) -> Self {
        let message = format!("limit `{}`: {}", name.escape_debug(), self.message);
        Self {
            field: self.field,
            is_of_server: self.is_of_server,
            ..Self::new(message)
        }
    }
}

/// The longest message, in characters. A file can have a name of any length, and an error repeats
/// it.
const LONGEST: usize = 2_000;

/// A message whose middle is left out, if it is too long. The start says where, and the end what to
/// do.
fn shortened(message: String) -> String {
    const KEPT: usize = LONGEST / 2;
    let length = message.chars().count();
    if length <= LONGEST {
        return message;
    }
    let start: String = message.chars().take(KEPT).collect();
    let end: String = message.chars().skip(length.saturating_sub(KEPT)).collect();
    format!("{start} [...] {end}")
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The message without quotes, because a `main` that returns this error prints it.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for ConfigError {}

/// A conversion that cannot fail, where a setting accepts any conversion.
impl From<Infallible> for ConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

//! The summary of the keys that were denied.

use std::fmt;
use std::time::Duration;

#[expect(unused_imports, reason = "for the documentation")]
use crate::model::Key;

/// The most denied keys of one period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeniedSummary {
    period: Duration,
    pub(super) denials: u64,
    pub(super) keys: Vec<DeniedKey>,
}

impl DeniedSummary {
    /// An empty summary.
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            ..Self::default()
        }
    }

    /// The most denied keys first.
    pub(super) fn sort(&mut self) {
        self.keys.sort_by(|one, other| {
            let by_name = (&one.limit, &one.key).cmp(&(&other.limit, &other.key));
            other.denials.cmp(&one.denials).then(by_name)
        });
    }

    /// The length of the period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// All denials of the period, of these and of other keys. A request that two limits deny counts
    /// twice.
    #[must_use]
    pub const fn denials(&self) -> u64 {
        self.denials
    }

    /// The most denied keys, the first one most often. At most 1,024.
    #[must_use]
    pub fn keys(&self) -> &[DeniedKey] {
        &self.keys
    }
}

/// A key that was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedKey {
    limit: Box<str>,
    key: String,
    denials: u64,
    overcount: u64,
}

impl DeniedKey {
    pub(super) fn new(limit: &str, key: String, denials: u64, overcount: u64) -> Self {
        Self {
            limit: limit.into(),
            key,
            denials,
            overcount,
        }
    }

    /// The name of the limit that denied it.
    #[must_use]
    pub fn limit_name(&self) -> &str {
        &self.limit
    }

    /// The [key as text](Key::as_str), which [`Key::from_encoded`] reads, or its digest.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How often it was denied, at most.
    #[must_use]
    pub const fn denials(&self) -> u64 {
        self.denials
    }

    /// The most by which [`denials`](Self::denials) may be too large.
    #[must_use]
    pub const fn overcount(&self) -> u64 {
        self.overcount
    }
}

impl fmt::Display for DeniedKey {
    /// `login mallory: 12`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: {}",
            self.limit,
            self.key.escape_debug(),
            self.denials
        )
    }
}

//! The words that are labels of decisions.

use crate::model::{Source, Verdict};

/// The outcome of a limit, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeLabel {
    Allowed,
    /// Allowed, and most of the units are used.
    NearLimit,
    Denied,
    /// Denied, because the key is blocked.
    Blocked,
    /// The limit is in shadow mode, and would have denied.
    ShadowDenied,
    /// Denied, because the server is busy.
    Shed,
    /// Allowed by this limit, and denied by another one of the group.
    NotCharged,
    /// The store did not decide, and the limit has no failure policy for that.
    Error,
}

impl OutcomeLabel {
    pub(super) const COUNT: usize = Self::Error as usize + 1;

    /// The outcome of a limit. `is_charged` says whether its group was charged.
    #[inline]
    pub(super) fn from_verdict(verdict: &Verdict, is_charged: bool) -> Self {
        match (verdict.would_deny(), verdict.allowed(), is_charged) {
            (true, ..) => Self::ShadowDenied,
            (false, false, _) if verdict.is_blocked() => Self::Blocked,
            (false, false, _) => Self::Denied,
            (false, true, false) => Self::NotCharged,
            (false, true, true) if verdict.is_near_limit() => Self::NearLimit,
            (false, true, true) => Self::Allowed,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::NearLimit => "near_limit",
            Self::Denied => "denied",
            Self::Blocked => "blocked",
            Self::ShadowDenied => "shadow_denied",
            Self::Shed => "shed",
            Self::NotCharged => "not_charged",
            Self::Error => "error",
        }
    }
}

/// The words for the place where a decision was made. `None` if the caller got an error.
pub(in crate::telemetry) const fn source_name(source: Option<Source>) -> &'static str {
    match source {
        Some(Source::Store) => "store",
        Some(Source::DenyCache) => "deny_cache",
        Some(Source::Asynchronous) => "asynchronous",
        Some(Source::Local) => "local",
        Some(Source::FailOpen) => "fail_open",
        Some(Source::FailClosed) => "fail_closed",
        Some(Source::Override) => "override",
        None => "none",
    }
}

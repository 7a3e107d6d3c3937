//! The words that are labels of decisions.

use crate::nouns::{Decision, Source, Verdict};

/// The outcome of a limit, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeLabel {
    Allowed,
    Denied,
    /// Denied, because the key is blocked.
    Blocked,
    /// The limit is in shadow mode, and would have denied.
    ShadowDenied,
    /// Allowed by this limit, and denied by another one of the group.
    NotCharged,
    /// The store did not decide, and the limit has no failure policy for that.
    Error,
}

impl OutcomeLabel {
    pub(super) const COUNT: usize = Self::Error as usize + 1;

    #[inline]
    pub(super) const fn from_verdict(decision: &Decision, verdict: &Verdict) -> Self {
        match (verdict.would_deny(), verdict.allowed(), decision.allowed()) {
            (true, ..) => Self::ShadowDenied,
            (false, false, _) if verdict.is_blocked() => Self::Blocked,
            (false, false, _) => Self::Denied,
            (false, true, false) => Self::NotCharged,
            (false, true, true) => Self::Allowed,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Blocked => "blocked",
            Self::ShadowDenied => "shadow_denied",
            Self::NotCharged => "not_charged",
            Self::Error => "error",
        }
    }
}

/// Where a decision was made, or what stands in for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Store,
    DenyCache,
    Prefetched,
    Local,
    FailOpen,
    FailClosed,
    /// The caller got an error.
    None,
}

impl Origin {
    pub(super) const COUNT: usize = Self::None as usize + 1;

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::DenyCache => "deny_cache",
            Self::Prefetched => "prefetched",
            Self::Local => "local",
            Self::FailOpen => "fail_open",
            Self::FailClosed => "fail_closed",
            Self::None => "none",
        }
    }
}

impl From<Source> for Origin {
    #[inline]
    fn from(source: Source) -> Self {
        match source {
            Source::Store => Self::Store,
            Source::DenyCache => Self::DenyCache,
            Source::Prefetched => Self::Prefetched,
            Source::Local => Self::Local,
            Source::FailOpen => Self::FailOpen,
            Source::FailClosed => Self::FailClosed,
        }
    }
}

//! The headers that report budgets, and `Retry-After`.

mod date;
mod ietf;
mod near_limit;
mod retry_after;
mod x_ratelimit;

use std::time::Duration;

use http::header::{CACHE_CONTROL, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode};
use tokio::time::Instant;

use self::ietf::Ietf;
pub use self::ietf::IetfDraft;
use self::retry_after::{jitter, lengthen, longest_jitter, stated};
use self::x_ratelimit::XRateLimit;
use super::number::seconds;
use super::stacked::NextAllowed;
use crate::model::{Decision, Digest, DigestSecret, Group, Limit};
use crate::units::{ConfigError, Outcome, Timestamp};

/// The responses that report budgets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportOn {
    /// Allowed and denied requests.
    AllResponses,
    /// Denied requests.
    Denials,
    /// None. A denial has `Retry-After` all the same.
    Nothing,
}

/// Which headers a layer sends, and with which responses.
#[derive(Clone)]
pub(super) struct HeaderSettings {
    pub(super) report_on: ReportOn,
    pub(super) sends_x_ratelimit: bool,
    /// Otherwise `X-RateLimit-Reset` is in seconds since the epoch.
    pub(super) resets_in_delta_seconds: bool,
    pub(super) sends_reset_after: bool,
    pub(super) ietf: Option<IetfDraft>,
    pub(super) sends_near_limit: bool,
    digest_secret: Option<DigestSecret>,
    /// The most that is added to `Retry-After`, in seconds.
    jitter: u64,
}

impl Default for HeaderSettings {
    fn default() -> Self {
        Self {
            report_on: ReportOn::AllResponses,
            sends_x_ratelimit: true,
            resets_in_delta_seconds: false,
            sends_reset_after: false,
            ietf: None,
            sends_near_limit: false,
            digest_secret: None,
            jitter: 0,
        }
    }
}

/// The report of a response. It is made at the decision, and written when there is a response.
///
/// Each request carries it to its response, so what few layers send is in a box.
#[derive(Default)]
pub(super) struct Fields {
    x_ratelimit: Option<XRateLimit>,
    more: Option<Box<RareFields>>,
}

#[derive(Default)]
struct RareFields {
    /// If the request used up a budget.
    next_allowed: Option<NextAllowed>,
    /// The time for `X-RateLimit-Reset-After`.
    reset_at: Option<Instant>,
    ietf: Option<Ietf>,
    /// The limits that the key is near.
    near_limit: Option<HeaderValue>,
    /// The decision for the response's extensions.
    decision: Option<Decision>,
}

impl HeaderSettings {
    pub(super) fn set_digest_secret(&mut self, secret: &[u8]) -> Result<(), ConfigError> {
        self.digest_secret = Some(DigestSecret::new("partition_key", secret)?);
        Ok(())
    }

    pub(super) fn set_jitter(&mut self, most: Duration) -> Result<(), ConfigError> {
        self.jitter = longest_jitter(most)?;
        Ok(())
    }

    /// The headers that responses may have.
    pub(super) fn names(&self) -> Vec<HeaderName> {
        let mut names = vec![RETRY_AFTER];
        if self.report_on == ReportOn::Nothing {
            return names;
        }
        if self.sends_x_ratelimit {
            names.extend(x_ratelimit::NAMES);
        }
        if self.sends_reset_after() {
            names.push(x_ratelimit::RESET_AFTER);
        }
        names.extend(self.ietf.into_iter().flat_map(IetfDraft::names).cloned());
        if self.sends_near_limit {
            names.push(near_limit::NEAR_LIMIT);
        }
        if self.sends_epoch() {
            names.push(DATE);
        }
        names
    }

    /// The digest of each check's key, if responses report it.
    #[inline]
    pub(super) fn key_digests(&self, group: &Group) -> Vec<Digest> {
        match &self.digest_secret {
            Some(secret) if self.reports_digests() => group
                .iter()
                .map(|check| secret.digest(check.limit().name(), check.key().as_str()))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Returns whether a secret for digests of keys was set although no header has them.
    pub(super) fn has_unused_secret(&self) -> bool {
        self.digest_secret.is_some() && !self.reports_digests()
    }

    fn reports_digests(&self) -> bool {
        self.ietf == Some(IetfDraft::Draft11) && self.report_on != ReportOn::Nothing
    }

    /// Returns whether the response to an allowed request has fields. A tunnel's has none.
    fn reports_on(&self, method: &Method) -> bool {
        self.report_on == ReportOn::AllResponses && method != Method::CONNECT
    }

    /// The fields of the response to a request that one limit allows, if no others are
    /// [sent](Self::sends_more).
    #[inline]
    pub(super) fn of_one(
        &self,
        limit: &Limit,
        decided: (&Outcome, Timestamp),
        method: &Method,
    ) -> Fields {
        let is_reported = self.sends_x_ratelimit && self.reports_on(method);
        Fields {
            x_ratelimit: is_reported.then(|| XRateLimit::new(limit, decided, self, None)),
            more: None,
        }
    }

    /// The fields of the response to an allowed request.
    #[inline]
    pub(super) fn of_allowed(
        &self,
        decision: &Decision,
        key_digests: &[Digest],
        method: &Method,
    ) -> Fields {
        let is_reported = self.reports_on(method) && !decision.deciding().is_shadow();
        let mut fields = if is_reported {
            self.fields(decision, key_digests, None)
        } else {
            Fields::default()
        };
        if let Some(next_allowed) = NextAllowed::after(decision) {
            fields.more.get_or_insert_default().next_allowed = Some(next_allowed);
        }
        fields
    }

    /// The `Retry-After` for a wait, in whole seconds, rounded up, at least 1: 0 would say "now".
    /// Not before the layers `outside` also allow the request.
    pub(super) fn retry_after(&self, wait: Duration, outside: Option<NextAllowed>) -> Duration {
        let outside = outside.map_or(0, NextAllowed::seconds);
        let wait = seconds(wait).max(outside).max(1);
        Duration::from_secs(wait.saturating_add(jitter(self.jitter)))
    }

    /// Writes the headers of a denial.
    pub(super) fn write_denial(
        &self,
        decision: &Decision,
        key_digests: &[Digest],
        retry_after: Option<Duration>,
        headers: &mut HeaderMap,
    ) {
        if self.report_on != ReportOn::Nothing {
            self.fields(decision, key_digests, retry_after)
                .write_all(headers, None);
            if decision.exceeds_capacity() {
                x_ratelimit::remove_resets(headers);
            } else if self.sends_epoch() {
                write_date(decision, headers);
            }
        }
    }

    #[inline]
    fn fields(
        &self,
        decision: &Decision,
        key_digests: &[Digest],
        retry_after: Option<Duration>,
    ) -> Fields {
        let decided = (decision.deciding().outcome(), decision.timestamp());
        let x_ratelimit = self
            .sends_x_ratelimit
            .then(|| XRateLimit::new(decision.limit(), decided, self, retry_after));
        let sends_more = self.sends_more();
        let more = sends_more.then(|| self.more(decision, key_digests, retry_after));
        Fields { x_ratelimit, more }
    }

    const fn sends_epoch(&self) -> bool {
        self.sends_x_ratelimit && !self.resets_in_delta_seconds
    }

    /// It is sent only with the other `X-RateLimit-*` headers.
    const fn sends_reset_after(&self) -> bool {
        self.sends_reset_after && self.sends_x_ratelimit
    }

    /// Returns whether responses have more than the first three `X-RateLimit-*` headers.
    #[inline]
    pub(super) const fn sends_more(&self) -> bool {
        self.sends_reset_after() || self.ietf.is_some() || self.sends_near_limit
    }

    #[cold]
    fn more(
        &self,
        decision: &Decision,
        key_digests: &[Digest],
        retry_after: Option<Duration>,
    ) -> Box<RareFields> {
        let reset_at = self
            .sends_reset_after()
            .then(|| x_ratelimit::reset_at(decision.deciding().outcome(), retry_after));
        let ietf = self
            .ietf
            .map(|draft| Ietf::new(draft, decision, key_digests, retry_after));
        let near_limit = match self.sends_near_limit {
            true => near_limit::value(decision),
            false => None,
        };
        Box::new(RareFields {
            reset_at,
            ietf,
            near_limit,
            ..RareFields::default()
        })
    }
}

impl Fields {
    /// Keeps the decision for the response's extensions.
    #[cold]
    pub(super) fn set_decision(&mut self, decision: Decision) {
        self.more.get_or_insert_default().decision = Some(decision);
    }

    #[inline]
    pub(super) fn take_decision(&mut self) -> Option<Decision> {
        self.more.as_mut()?.decision.take()
    }

    /// Returns whether the response reports anything of this layer.
    #[inline]
    pub(super) fn is_reported(&self) -> bool {
        let is_any = |more: &RareFields| more.ietf.is_some() || more.near_limit.is_some();
        self.x_ratelimit.is_some() || self.more.as_deref().is_some_and(is_any)
    }

    /// The time at which a budget that the request used up allows the same request again.
    #[inline]
    pub(super) fn next_allowed(&self) -> Option<NextAllowed> {
        self.more.as_ref()?.next_allowed
    }

    /// Writes the fields to the response of the inner service. A response without a new
    /// representation (304), one that begins another protocol (101), and one that caches keep for
    /// other clients, get none. `inside` is of the layers further inside.
    #[inline]
    pub(super) fn write(
        self,
        status: StatusCode,
        headers: &mut HeaderMap,
        inside: Option<NextAllowed>,
    ) {
        if status == StatusCode::NOT_MODIFIED || status.is_informational() || !self.is_reported() {
            return;
        }
        // Here it says when to try again.
        let may_lengthen = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ]
        .contains(&status);
        if let Some(next_allowed) = self.next_allowed().filter(|_| may_lengthen) {
            lengthen(headers, next_allowed.seconds());
        }
        if !is_kept_for_others(headers) {
            self.write_all(headers, inside);
        }
    }

    #[inline]
    fn write_all(self, headers: &mut HeaderMap, inside: Option<NextAllowed>) {
        let used_up = UsedUp {
            here: self.next_allowed().is_some(),
            inside: inside.is_some(),
        };
        let Self { x_ratelimit, more } = self;
        let reset_at = more.as_ref().and_then(|more| more.reset_at);
        if let Some(fields) = x_ratelimit {
            fields.write(headers, reset_at, used_up);
        }
        let Some(more) = more else { return };
        if let Some(ietf) = more.ietf {
            ietf.write(headers, used_up);
        }
        if let Some(names) = more.near_limit {
            // A full map has no room for it.
            drop(headers.try_append(near_limit::NEAR_LIMIT, names));
        }
    }
}

/// Writes the time of the decision, by the clock of `X-RateLimit-Reset`, because clients subtract
/// the two.
fn write_date(decision: &Decision, headers: &mut HeaderMap) {
    let decided_at = decision.timestamp().or_now().since_epoch();
    if let Some(date) = date::imf_fixdate(decided_at.as_secs()) {
        set(headers, DATE, date);
    }
}

/// Returns whether the response asks shared caches to store it (RFC 9111, 5.2.2). A cache would
/// show the budget of this client to others.
#[inline]
fn is_kept_for_others(headers: &HeaderMap) -> bool {
    headers.contains_key(CACHE_CONTROL) && is_public(headers)
}

#[cold]
fn is_public(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CACHE_CONTROL).iter();
    let directives = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let mut is_public = false;
    for directive in directives {
        let name = directive.split(|byte| *byte == b'=').next();
        let name = name.unwrap_or_default().trim_ascii();
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("private") || is("no-store") {
            return false;
        }
        is_public |= is("public") || is("s-maxage");
    }
    is_public
}

/// Sets a header, unless the map holds as many as it can, because `HeaderMap::insert` would panic
/// then.
pub(super) fn set(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
    // A response without the header is worth more to the client than none.
    drop(headers.try_insert(name, value));
}

/// The values of a header as numbers. `None` where one is not a number.
fn numbers(headers: &HeaderMap, name: &HeaderName) -> Vec<Option<u64>> {
    let values = headers.get_all(name).iter();
    values
        .map(|value| value.to_str().ok()?.trim().parse().ok())
        .collect()
}

/// The layers with a budget that has fewer units left than the request cost.
#[derive(Clone, Copy)]
struct UsedUp {
    /// A budget of this layer.
    here: bool,
    /// A budget of a layer further inside.
    inside: bool,
}

/// Returns whether the fields of this layer replace those that the response has. A used-up budget
/// is the strictest. Otherwise fewer units are stricter, and then a later reset. A value that is
/// not a number stays.
fn is_stricter(remaining: u64, theirs: &[Option<u64>], is_later: bool, used_up: UsedUp) -> bool {
    let Some(theirs) = theirs.iter().copied().collect::<Option<Vec<_>>>() else {
        return false;
    };
    let Some(least) = theirs.into_iter().min() else {
        return true;
    };
    match (used_up.here || remaining == 0, used_up.inside || least == 0) {
        (true, true) => is_later,
        (false, false) => remaining < least || (remaining == least && is_later),
        (ours, _) => ours,
    }
}

/// Returns whether a reset is later than the reported ones. Seconds since the epoch and seconds
/// from now do not compare.
fn is_later(reset: u64, theirs: &[Option<u64>]) -> bool {
    let is_epoch = |seconds: u64| seconds > 1_000_000_000;
    let latest = theirs.iter().copied().flatten().max();
    latest.is_some_and(|latest| reset > latest && is_epoch(reset) == is_epoch(latest))
}

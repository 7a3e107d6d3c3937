//! The `RateLimit` header fields of draft-ietf-httpapi-ratelimit-headers, by revision.
//!
//! | revision | fields |
//! |---|---|
//! | 6 | `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`, `RateLimit-Policy: 100;w=60` |
//! | 7 | `RateLimit: limit=100, remaining=50, reset=5`, `RateLimit-Policy: 100;w=60` |
//! | 8 to 11 | `RateLimit: "api";r=50;t=5`, `RateLimit-Policy: "api";q=100;w=60` |

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use sfv::{
    DictSerializer, Dictionary, Integer, KeyRef, List, ListEntry, ListSerializer,
    ParameterSerializer, Parser, StringRef,
};
use tokio::time::Instant;

use super::super::number::{number, seconds};
use super::{UsedUp, is_later, is_stricter, numbers, set, stated};
use crate::model::{Decision, Digest, Limit, Verdict};
use crate::units::Timestamp;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const BUDGET: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// A revision of the `RateLimit` header fields (draft-ietf-httpapi-ratelimit-headers). They are not
/// a standard yet, and revisions do not understand each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IetfDraft {
    /// Revision 6: `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` and
    /// `RateLimit-Policy`.
    Draft6,
    /// Revision 7: the dictionary `RateLimit`, and `RateLimit-Policy`.
    Draft7,
    /// Revisions 8 to 11: the lists `RateLimit` and `RateLimit-Policy`, with the names of the
    /// limits.
    Draft11,
}

impl IetfDraft {
    /// The fields of the revision.
    pub(super) fn names(self) -> &'static [HeaderName] {
        static NUMBERS: [HeaderName; 4] = [LIMIT, REMAINING, RESET, POLICY];
        static BUDGETS: [HeaderName; 2] = [BUDGET, POLICY];
        match self {
            Self::Draft6 => &NUMBERS,
            Self::Draft7 | Self::Draft11 => &BUDGETS,
        }
    }
}

/// The fields of a decision.
pub(super) struct Ietf {
    draft: IetfDraft,
    made_at: Instant,
    /// The time of the decision, by the clock of the store.
    decided_at: Timestamp,
    deciding: ReportedBudget,
    /// The budget of each limit of the layer.
    budgets: Vec<ReportedBudget>,
    /// The response's `Retry-After`, in seconds.
    retry_after: Option<u64>,
}

struct ReportedBudget {
    limit: Limit,
    remaining: u64,
    /// The time until more units are available. `None` if no wait helps.
    reset: Option<Duration>,
    /// If it is used up, the time until it allows the same request again, where that is known of
    /// all.
    next: Option<Duration>,
    key_digest: Option<Digest>,
    /// `true` if it is also in `RateLimit`, and not only in `RateLimit-Policy`.
    is_reported: bool,
}

impl Ietf {
    /// The fields of a decision that was made just now. `retry_after` is what `Retry-After` says.
    pub(super) fn new(
        draft: IetfDraft,
        decision: &Decision,
        key_digests: &[Digest],
        retry_after: Option<Duration>,
    ) -> Self {
        let is_next_known = decision
            .verdicts()
            .iter()
            .all(|verdict| !verdict.is_used_up() || verdict.next_after().is_some());
        let budget = |verdict: &Verdict, key_digest| ReportedBudget {
            limit: verdict.limit().clone(),
            remaining: verdict.remaining(),
            reset: match (verdict.allowed(), verdict.retry_after()) {
                _ if decision.exceeds_capacity() => None,
                (true, _) => Some(verdict.reset_after()),
                // Equal to `Retry-After` for the deciding limit, which has the longest wait.
                (false, Some(_)) if verdict == decision.deciding() => retry_after,
                (false, retry_after) => retry_after,
            },
            next: verdict
                .next_after()
                .filter(|_| is_next_known)
                .map(Duration::from_micros),
            key_digest,
            // `Retry-After` must not be earlier than any reset, so a denial reports only the limits
            // that denied. Of a limit that failed open, nothing is known.
            is_reported: (decision.allowed() || !verdict.allowed()) && !verdict.is_unlimited(),
        };
        let mut key_digests = key_digests
            .iter()
            .copied()
            .map(Some)
            .chain(std::iter::repeat(None));
        Self {
            draft,
            made_at: Instant::now(),
            decided_at: decision.timestamp(),
            deciding: budget(decision.deciding(), None),
            // A limit in shadow mode is not a policy for clients.
            budgets: decision
                .verdicts()
                .iter()
                .map(|verdict| (verdict, key_digests.next().flatten()))
                .filter(|(verdict, _)| !verdict.is_shadow())
                .map(|(verdict, digest)| budget(verdict, digest))
                .collect(),
            retry_after: None,
        }
    }

    /// Adds the fields to those that the map has. A field with one value stays if it is stricter.
    pub(super) fn write(mut self, headers: &mut HeaderMap, used_up: UsedUp) {
        self.retry_after = stated(headers);
        match self.draft {
            IetfDraft::Draft6 => self.write_numbers(headers, used_up),
            IetfDraft::Draft7 => self.write_dictionary(headers, used_up),
            IetfDraft::Draft11 => append(headers, BUDGET, self.budgets(), is_name),
        }
        match self.draft {
            IetfDraft::Draft6 | IetfDraft::Draft7 => {
                append(headers, POLICY, self.policies(), is_digit)
            }
            IetfDraft::Draft11 => append(headers, POLICY, self.policies(), is_name),
        }
    }

    fn write_numbers(&self, headers: &mut HeaderMap, used_up: UsedUp) {
        let Some([limit, remaining, reset]) = self.numbers() else {
            return;
        };
        let theirs = numbers(headers, &REMAINING);
        let their_reset = numbers(headers, &RESET);
        let is_known = !theirs.is_empty();
        let has_others = headers.contains_key(LIMIT) || headers.contains_key(RESET);
        let is_later = is_later(reset, &their_reset);
        let replaces = is_stricter(remaining, &theirs, is_later, used_up);
        if replaces && (is_known || !has_others) {
            for (name, value) in [(LIMIT, limit), (REMAINING, remaining), (RESET, reset)] {
                set(headers, name, number(value));
            }
        }
    }

    fn write_dictionary(&self, headers: &mut HeaderMap, used_up: UsedUp) {
        let Some(ours) = self.numbers() else { return };
        if let Some(theirs) = dictionary(headers) {
            let [remaining, reset] = theirs;
            if !is_stricter(ours[1], &[remaining], is_later(ours[2], &[reset]), used_up) {
                return;
            }
        }
        let mut dictionary = DictSerializer::new();
        for (name, value) in ["limit", "remaining", "reset"].into_iter().zip(ours) {
            if let Ok(name) = KeyRef::from_str(name) {
                let _no_parameters = dictionary.bare_item(name, integer(value));
            }
        }
        if let Some(value) = dictionary.finish().and_then(|it| it.try_into().ok()) {
            set(headers, BUDGET, value);
        }
    }

    /// Limit, remaining and reset of the deciding limit. `None` if no wait helps, because these
    /// numbers would say that it does.
    fn numbers(&self) -> Option<[u64; 3]> {
        let ReportedBudget {
            limit, remaining, ..
        } = &self.deciding;
        let numbers = [
            limit.quota().capacity(),
            *remaining,
            self.reset(&self.deciding)?,
        ];
        Some(numbers.map(|it| it.min(LARGEST)))
    }

    /// The seconds from now until a budget has more units. A reset must not be later than
    /// `Retry-After`. If the units come only later, revisions 8 to 11 leave the reset out, and
    /// earlier revisions, which need one, report the later time.
    fn reset(&self, budget: &ReportedBudget) -> Option<u64> {
        let from_now = |time: Duration| seconds(time.saturating_sub(self.made_at.elapsed()));
        let reset = from_now(budget.reset?);
        match self.retry_after {
            Some(retry_after) if retry_after < reset => {
                let has_units = budget
                    .next
                    .is_some_and(|next| from_now(next) <= retry_after);
                match self.draft {
                    _ if has_units => Some(retry_after),
                    IetfDraft::Draft6 | IetfDraft::Draft7 => Some(reset),
                    IetfDraft::Draft11 => None,
                }
            }
            _ => Some(reset),
        }
    }

    fn budgets(&self) -> Option<HeaderValue> {
        let reported = self.budgets.iter().filter(|budget| budget.is_reported);
        named(reported.map(|it| (it, [("r", Some(it.remaining)), ("t", self.reset(it))])))
    }

    fn policies(&self) -> Option<HeaderValue> {
        let quotas = self.budgets.iter().map(|it| {
            (
                it,
                it.limit.quota().capacity(),
                window(&it.limit, self.decided_at),
            )
        });
        if self.draft == IetfDraft::Draft11 {
            return named(
                quotas.map(|(it, quota, window)| (it, [("q", Some(quota)), ("w", window)])),
            );
        }
        let mut list = ListSerializer::new();
        // These revisions require a window.
        for (_, quota, window) in quotas.filter(|(_, _, window)| window.is_some()) {
            let _no_more = with_parameters(list.bare_item(integer(quota)), [("w", window)]);
        }
        list.finish()?.try_into().ok()
    }
}

/// A list of the limits' names, with parameters.
fn named<'a>(
    budgets: impl Iterator<Item = (&'a ReportedBudget, [(&'static str, Option<u64>); 2])>,
) -> Option<HeaderValue> {
    let mut list = ListSerializer::new();
    for (budget, parameters) in budgets {
        let Ok(name) = StringRef::from_str(budget.limit.name()) else {
            continue;
        };
        let item = with_parameters(list.bare_item(name), parameters);
        if let (Ok(name), Some(digest)) = (KeyRef::from_str("pk"), &budget.key_digest) {
            let _last_parameter = item.parameter(name, digest.as_bytes());
        }
    }
    list.finish()?.try_into().ok()
}

/// Adds the parameters that have a value.
fn with_parameters<'a, const COUNT: usize>(
    mut item: ParameterSerializer<&'a mut String>,
    parameters: [(&'static str, Option<u64>); COUNT],
) -> ParameterSerializer<&'a mut String> {
    for (name, value) in parameters {
        if let (Ok(name), Some(value)) = (KeyRef::from_str(name), value) {
            item = item.parameter(name, integer(value));
        }
    }
    item
}

/// Adds members to a list, in one line, because revision 6 allows no second one. A list of which a
/// member starts otherwise is of another revision, or malformed, and stays as it is.
fn append(
    headers: &mut HeaderMap,
    name: HeaderName,
    members: Option<HeaderValue>,
    is_start: fn(u8) -> bool,
) {
    let Some(members) = members else { return };
    let mut lines = Vec::new();
    for line in headers
        .get_all(&name)
        .iter()
        .filter(|line| !line.as_bytes().trim_ascii().is_empty())
    {
        let starts_well = line
            .as_bytes()
            .trim_ascii()
            .first()
            .is_some_and(|&first| is_start(first));
        if !starts_well || Parser::new(line.as_bytes()).parse::<List>().is_err() {
            return;
        }
        lines.push(line.as_bytes());
    }
    let value = if lines.is_empty() {
        members
    } else {
        lines.push(members.as_bytes());
        let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b", "[..])) else {
            return;
        };
        joined
    };
    set(headers, name, value);
}

fn is_name(first: u8) -> bool {
    first == b'"'
}

fn is_digit(first: u8) -> bool {
    first.is_ascii_digit()
}

/// The members of the dictionary of revision 7: `remaining` and `reset`. `None` if there is none.
fn dictionary(headers: &HeaderMap) -> Option<[Option<u64>; 2]> {
    let lines: Vec<_> = headers
        .get_all(BUDGET)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if lines.is_empty() {
        return None;
    }
    let members = Parser::new(&lines.join(&b", "[..]))
        .parse::<Dictionary>()
        .unwrap_or_default();
    Some(["remaining", "reset"].map(|name| match members.get(name)? {
        ListEntry::Item(item) => u64::try_from(item.bare_item.as_integer()?).ok(),
        ListEntry::InnerList(_) => None,
    }))
}

/// The seconds in which the capacity is replenished: a whole window, or a bucket from empty to
/// full. So capacity and window say the rate. `None` below a second, which the drafts cannot say.
fn window(limit: &Limit, decided_at: Timestamp) -> Option<u64> {
    let quota = limit.quota();
    let micros = quota
        .length_at(decided_at.or_now())
        .as_micros()
        .saturating_mul(quota.capacity().into());
    let micros = micros.checked_div(quota.limit().into())?;
    let seconds = u64::try_from(micros.div_ceil(1_000_000)).ok()?;
    (micros >= 1_000_000).then_some(seconds)
}

/// The largest integer of a structured field: 15 digits.
const LARGEST: u64 = 999_999_999_999_999;

fn integer(number: u64) -> Integer {
    Integer::try_from(number).unwrap_or(Integer::MAX)
}

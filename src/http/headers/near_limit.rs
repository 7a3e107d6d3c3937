//! `X-RateLimit-Near-Limit`: the names of the limits that the key is near.

use http::header::{HeaderName, HeaderValue};

use crate::model::{Decision, Limit, Verdict};

pub(super) const NEAR_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-near-limit");

/// The names, with commas between them. `None` if the key is near none.
pub(super) fn value(decision: &Decision) -> Option<HeaderValue> {
    let near = decision.verdicts().iter().filter(|it| it.is_near_limit());
    let names: Vec<&str> = near.map(Verdict::limit).map(Limit::name).collect();
    if names.is_empty() {
        return None;
    }
    // The name of a limit fits into a header.
    HeaderValue::try_from(names.join(", ")).ok()
}

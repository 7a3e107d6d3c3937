//! `X-RateLimit-Near-Limit`: the names of the limits that the key is near.

use http::header::{HeaderName, HeaderValue};
use sfv::{ListSerializer, StringRef};

use crate::model::{Decision, Verdict};

pub(super) const NEAR_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-near-limit");

/// The names, as a list of strings (RFC 9651, 3.1). `None` if the key is near none.
pub(super) fn value(decision: &Decision) -> Option<HeaderValue> {
    let near = decision.verdicts().iter().filter(|it| it.is_near_limit());
    let mut list = ListSerializer::new();
    for limit in near.map(Verdict::limit) {
        // The name of a limit fits into a string.
        if let Ok(name) = StringRef::from_str(limit.name()) {
            let _no_parameters = list.bare_item(name);
        }
    }
    list.finish()?.try_into().ok()
}

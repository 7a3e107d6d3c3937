//! The user and the tenant of a request, as every contender reads them.

use http::HeaderMap;

use crate::load::KEY;

/// The user in the request's header.
pub fn user(headers: &HeaderMap) -> Option<&str> {
    headers.get(KEY)?.to_str().ok()
}

/// The tenant of about a hundred users: a user's name without the last two digits.
pub fn tenant_of(user: &str) -> &str {
    user.get(..user.len().saturating_sub(2)).unwrap_or(user)
}

//! Who asks, as every contender reads it from a request.

use http::HeaderMap;

use crate::load::KEY;

/// The user in the request's header.
pub fn user(headers: &HeaderMap) -> Option<&str> {
    headers.get(KEY)?.to_str().ok()
}

/// A hundred users share a tenant, more or less: its name is the user's without the last digits.
pub fn tenant_of(user: &str) -> &str {
    user.get(..user.len().saturating_sub(2)).unwrap_or(user)
}

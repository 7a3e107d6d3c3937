//! The key extractors of the crate.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use http::HeaderName;
use http::request::Parts;

use super::{KeyExtractor, MissingKey};
use crate::model::Key;
use crate::units::ConfigError;

/// A key extractor for the value of a header, byte by byte.
///
/// **Clients choose their headers.** Use a header that a gateway sets, and strips from what clients
/// send, or that authentication has verified. Otherwise every new value is a fresh budget. A header
/// that is missing, empty or sent more than once gives no key.
#[derive(Clone, Debug)]
pub struct Header(pub(super) HeaderName);

impl Header {
    /// Creates an extractor for the header `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if `name` is not a valid header name, or is one of these:
    ///
    /// | header | why | use |
    /// |---|---|---|
    /// | `x-forwarded-for`, `forwarded` | clients write the start of these lists, so each request could have a fresh budget | [`ClientIp`](super::ClientIp) |
    /// | `host` | HTTP/2 does not have it, and a host has many spellings | [`Host`](super::Host) |
    /// | `cookie` | HTTP/2 sends it in several parts, and it has more than the session | what authentication has found, by [`Extension`] |
    /// | `connection`, `keep-alive`, `proxy-connection`, `te`, `trailer`, `transfer-encoding`, `upgrade` | they are of a connection, and HTTP/2 does not have them (RFC 9110, section 7.6.1) | another header |
    pub fn new(name: &str) -> Result<Self, ConfigError> {
        let name: HeaderName = name.parse().map_err(|error| {
            ConfigError::new(format!(
                "`{}` is not a header name ({error}); use a name such as `x-api-key`",
                name.escape_debug()
            ))
        })?;
        match why_no_key(name.as_str()) {
            Some(why) => Err(ConfigError::new(format!("`{name}` {why}"))),
            None => Ok(Self(name)),
        }
    }
}

/// Why the value of a header is no key, and what to use.
fn why_no_key(name: &str) -> Option<&'static str> {
    Some(match name {
        "forwarded" | "x-forwarded-for" => {
            "is a list of which clients write the start, so each request could have a fresh \
             budget; use the address that `ClientIp::behind([...])` finds in it"
        }
        "host" => {
            "is not sent in HTTP/2, and has many spellings, such as `LOCALHOST.:8080`; use the \
             extractor `Host`, which reads both and knows the spellings"
        }
        "cookie" => {
            "is sent in several parts in HTTP/2, and has more than the session; use what your \
             authentication has found in it, by `Extension`"
        }
        "connection" | "keep-alive" | "proxy-connection" | "te" | "trailer"
        | "transfer-encoding" | "upgrade" => {
            "is about a connection, and not sent in HTTP/2; use another header"
        }
        _ => return None,
    })
}

impl KeyExtractor for Header {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        self.value(parts).map(Key::new)
    }
}

impl Header {
    /// The value as text.
    pub(super) fn text(&self, parts: &Parts) -> Result<String, MissingKey> {
        let text = str::from_utf8(self.value(parts)?);
        text.map(str::to_owned).map_err(|_| {
            let reason = format!("the header `{}` is not UTF-8", self.0);
            MissingKey::new(reason).never_skipped()
        })
    }

    fn value<'a>(&self, parts: &'a Parts) -> Result<&'a [u8], MissingKey> {
        let name = &self.0;
        let mut values = parts.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => Ok(value.as_bytes()),
            // A service that reads the first value may know the client. So it must not be
            // unlimited.
            (Some(_), None) => {
                Err(MissingKey::new(format!("the header `{name}` is empty")).never_skipped())
            }
            (Some(_), Some(_)) => {
                let reason = format!("the header `{name}` is sent more than once");
                Err(MissingKey::new(reason).never_skipped())
            }
            (None, _) => Err(MissingKey::new(format!("the header `{name}` is missing"))),
        }
    }
}

/// A key extractor for the matched route: method and path template, such as `GET /users/{id}`.
///
/// The key is `Key::from_parts(["GET", "/users/{id}"])`. The template comes from the router, so
/// different spellings of a path share a budget. `HEAD` counts as `GET`, because the `GET` handler
/// answers it. Methods that HTTP does not define count together, as `OTHER`.
///
/// Add the layer with `route_layer`, so that it only sees matched requests. A request without a
/// matched route has no key, outside the router, for a 404 behind `Router::layer`, and inside a
/// `nest_service`. `Route.or(Global)` counts all of those together.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Route;

#[cfg(feature = "axum")]
impl KeyExtractor for Route {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        use http::Method;

        let path = parts.extensions.get::<axum::extract::MatchedPath>().ok_or(
            MissingKey::new("no route matched").detail(
                "no route matched: add the layer with `route_layer`, or use `Route.or(Global)`",
            ),
        )?;
        let method = match parts.method {
            Method::HEAD => "GET",
            Method::GET
            | Method::POST
            | Method::PUT
            | Method::DELETE
            | Method::OPTIONS
            | Method::PATCH
            | Method::TRACE
            | Method::CONNECT => parts.method.as_str(),
            _ => "OTHER",
        };
        Ok(Key::from_parts([method, path.as_str()]))
    }
}

/// A key extractor for a value in the request's extensions, such as the authenticated user.
///
/// The closure returns anything that converts into a [`Key`]: a number, a `String`, an address.
///
/// ```
/// use tollgate::key::{Extension, Key};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
///     tenant: String,
/// }
///
/// let by_user = Extension::new(|user: &User| user.id);
/// let by_tenant = Extension::new(|user: &User| Key::new(&user.tenant));
/// # let _ = (by_user, by_tenant);
/// ```
///
/// Put the rate limit layer inside the authentication layer. Otherwise a request has no user yet.
pub struct Extension<T, F, K = Key> {
    key: F,
    of: PhantomData<fn(&T) -> K>,
}

impl<T, F, K> Extension<T, F, K>
where
    F: Fn(&T) -> K,
    K: Into<Key>,
{
    /// Creates an extractor that calls `key` with the `T` in the request's extensions.
    pub const fn new(key: F) -> Self {
        Self {
            key,
            of: PhantomData,
        }
    }
}

// Not derived, because a derived implementation would also require `T: Clone` and `K: Clone`.
impl<T, F: Clone, K> Clone for Extension<T, F, K> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            of: PhantomData,
        }
    }
}

impl<T, F: Copy, K> Copy for Extension<T, F, K> {}

impl<T, F, K> KeyExtractor for Extension<T, F, K>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
    K: Into<Key> + 'static,
{
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        parts
            .extensions
            .get::<T>()
            .map(|it| (self.key)(it).into())
            .ok_or_else(|| {
                let of = type_name::<T>();
                let why = why_missing::<T>(parts);
                MissingKey::new("the request has no rate limit key")
                    .detail(format!("the request has no `{of}` extension: {why}"))
            })
    }
}

#[cfg_attr(
    not(feature = "axum"),
    allow(unused_variables, clippy::extra_unused_type_parameters)
)]
fn why_missing<T: Send + Sync + 'static>(parts: &Parts) -> &'static str {
    #[cfg(feature = "axum")]
    if parts.extensions.get::<axum::Extension<T>>().is_some() {
        return "it has an `axum::Extension` of it. Insert the value itself";
    }
    #[cfg(feature = "axum")]
    if type_name::<T>().starts_with("axum::extension::Extension<") {
        return "layers insert the value itself, and `axum::Extension` is how a handler takes it. \
                Name the value's type in the closure";
    }
    "the layer that inserts it is inside this one, or inserted none for this request"
}

impl<T, F, K> fmt::Debug for Extension<T, F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension<{}>", type_name::<T>())
    }
}

/// A key extractor with one key for all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Global;

impl KeyExtractor for Global {
    fn extract(&self, _: &Parts) -> Result<Key, MissingKey> {
        Ok(Key::global())
    }
}

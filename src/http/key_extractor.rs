//! The trait of key extractors, and its combinators.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::request::Parts;

use crate::model::Key;

/// Extracts a key from a request's head.
///
/// An extractor only sees the head, so a request is decided before its body arrives. The trait is
/// object-safe, so `Arc<dyn KeyExtractor>` is also an extractor.
///
/// Do not use a value that clients choose freely as a key, because a client that changes it with
/// each request gets a fresh budget each time. Use the user whom you authenticated, or the peer's
/// address. For paths, use the matched route (`Route`) and never the request's path.
///
/// Normalize a name as your login does, for example to lower case. Otherwise each spelling has a
/// fresh budget.
///
/// Two extractors under one limit share the budget of equal values, so user `42` and a header of
/// `42` have one key. [`or`](Self::or) keeps the keys of its two extractors apart.
///
/// ```
/// use http::request::Parts;
/// use tollgate::key::{KeyExtractor, MissingKey, PeerIp};
/// use tollgate::Key;
///
/// /// The tenant, from a header that the gateway sets and strips from what clients send.
/// struct Tenant;
///
/// impl KeyExtractor for Tenant {
///     fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
///         let tenant = parts.headers.get("x-tenant").ok_or(MissingKey::new("no tenant"))?;
///         Ok(Key::new(tenant.as_bytes()))
///     }
/// }
///
/// // A budget for each client of a tenant. Without a tenant, a budget for each address.
/// let key = Tenant.and(PeerIp).or(PeerIp);
/// # fn takes(_: impl KeyExtractor) {}
/// # takes(key);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract a key from a request",
    label = "not a key extractor",
    note = "for a header use `Header::new(\"x-name\")?`, for a closure `from_fn(|parts| ...)`, for \
            all requests together `Global`, for two keys as one `a.and(b)`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key of a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the request has no key. The layer's
    /// [`on_missing_key`](crate::RateLimitLayer::on_missing_key) sets the outcome of the request.
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey>;

    /// The number of fallbacks in this extractor, for a chain of [`or`](Self::or). Default: 0. An
    /// extractor that returns the keys of such a chain unchanged, like a wrapper, returns the
    /// number of that chain.
    #[doc(hidden)]
    fn fallbacks(&self) -> u8 {
        0
    }

    /// The first extractor of each chain of [`or`](Self::or) in this extractor. Default: none. A
    /// layer asks them why all keys come from fallbacks. A wrapper passes the call on.
    #[doc(hidden)]
    fn first_branches(&self) -> Vec<&dyn KeyExtractor> {
        Vec::new()
    }

    /// Combines the keys of two extractors with [`Key::join`]. It is missing if either is missing.
    fn and<E: KeyExtractor>(self, other: E) -> And<Self, E>
    where
        Self: Sized,
    {
        And(self, other)
    }

    /// Falls back to another extractor if this one finds no key.
    ///
    /// Keys of this extractor do not change. Keys of the other are marked as
    /// [fallbacks](Key::fallback), once for each `or` before them, so the two never share a budget.
    /// A client cannot use another client's address budget with a header that looks like an
    /// address.
    ///
    /// An event warns if this extractor found none of the first thousand keys of a limit. Then all
    /// requests count under the fallback, as with authentication inside the layer.
    ///
    /// ```
    /// use tollgate::key::{Extension, KeyExtractor, PeerIp};
    /// use tollgate::{Key, Limit, RateLimiter};
    ///
    /// #[derive(Clone)]
    /// struct UserId(u64);
    ///
    /// let key = Extension::new(|user: &UserId| Key::from(user.0)).or(PeerIp);
    ///
    /// /// Resets the budgets of user 42, and of the requests without a user from an address.
    /// async fn reset(limiter: &RateLimiter, limit: &Limit) -> Result<(), tollgate::Error> {
    ///     limiter.reset(limit, &Key::from(42)).await?;
    ///     let address = [192, 0, 2, 1].into();
    ///     limiter.reset(limit, &PeerIp::key_of(address).fallback()).await?;
    ///     Ok(())
    /// }
    /// # fn takes(_: impl KeyExtractor) {}
    /// # takes(key);
    /// ```
    fn or<E: KeyExtractor>(self, fallback: E) -> Or<Self, E>
    where
        Self: Sized,
    {
        Or(self, fallback)
    }
}

/// Why a request has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKey {
    reason: Cow<'static, str>,
    detail: Option<Cow<'static, str>>,
    is_skippable: bool,
}

impl MissingKey {
    /// Creates an error with a reason. It is logged, and sent to the client if the request is
    /// rejected.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason: reason.into(),
            detail: None,
            is_skippable: true,
        }
    }

    /// Sets the text for the log, in place of the reason. It can name internals of your
    /// application. Clients do not see it.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Rejects the request even under
    /// [`OnMissingKey::SkipLimit`](crate::layer::OnMissingKey::SkipLimit). Use it if a client can
    /// cause this error, because otherwise, the client would not be limited.
    #[must_use]
    pub fn never_skipped(mut self) -> Self {
        self.is_skippable = false;
        self
    }

    pub(super) const fn is_skippable(&self) -> bool {
        self.is_skippable
    }

    pub(super) fn logged(&self) -> &str {
        self.detail.as_deref().unwrap_or(&self.reason)
    }
}

impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for MissingKey {}

impl<E: KeyExtractor + ?Sized> KeyExtractor for Arc<E> {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        (**self).extract(parts)
    }

    fn fallbacks(&self) -> u8 {
        (**self).fallbacks()
    }

    fn first_branches(&self) -> Vec<&dyn KeyExtractor> {
        (**self).first_branches()
    }
}

impl<E: KeyExtractor + ?Sized> KeyExtractor for Box<E> {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        (**self).extract(parts)
    }

    fn fallbacks(&self) -> u8 {
        (**self).fallbacks()
    }

    fn first_branches(&self) -> Vec<&dyn KeyExtractor> {
        (**self).first_branches()
    }
}

/// A key extractor that combines two keys. See [`KeyExtractor::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<A, B>(A, B);

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for And<A, B> {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        Ok(self.0.extract(parts)?.join(&self.1.extract(parts)?))
    }

    fn first_branches(&self) -> Vec<&dyn KeyExtractor> {
        let mut both = self.0.first_branches();
        both.extend(self.1.first_branches());
        both
    }
}

/// A key extractor with a fallback. See [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B>(A, B);

impl<A: KeyExtractor, B: KeyExtractor> Or<A, B> {
    pub(super) const fn new(first: A, fallback: B) -> Self {
        Self(first, fallback)
    }

    /// Marks a key of the fallback once for each extractor before it in the chain.
    fn marked(&self, key: Key) -> Key {
        (0..=self.0.fallbacks()).fold(key, |key, _| key.fallback())
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        let first = match self.0.extract(parts) {
            Ok(key) => return Ok(key),
            Err(missing) => missing,
        };
        match self.1.extract(parts) {
            Ok(key) => Ok(self.marked(key)),
            Err(second) => {
                let detail = format!("{}; {}", first.logged(), second.logged());
                let is_skippable = first.is_skippable && second.is_skippable;
                let missing = MissingKey::new(format!("{first}; {second}")).detail(detail);
                Err(MissingKey {
                    is_skippable,
                    ..missing
                })
            }
        }
    }

    fn fallbacks(&self) -> u8 {
        self.0
            .fallbacks()
            .saturating_add(1)
            .saturating_add(self.1.fallbacks())
    }

    fn first_branches(&self) -> Vec<&dyn KeyExtractor> {
        let mut first = self.0.first_branches();
        if first.is_empty() {
            first.push(&self.0);
        }
        first
    }
}

/// A key extractor that calls a closure. See [`from_fn`].
pub struct FromFn<F, K = Key> {
    extract: F,
    key: PhantomData<fn() -> K>,
}

/// Creates a key extractor from a closure. The closure returns anything that converts into a
/// [`Key`], or `None` if the request has no key.
///
/// ```
/// use http::request::Parts;
/// use tollgate::key::{Key, from_fn};
///
/// #[derive(Clone)]
/// struct ClientCertificate {
///     fingerprint: [u8; 32],
/// }
///
/// // Inserted by the TLS acceptor.
/// let by_certificate = from_fn(|parts: &Parts| {
///     parts.extensions.get::<ClientCertificate>().map(|it| Key::new(it.fingerprint))
/// });
/// # let _ = by_certificate;
/// ```
pub fn from_fn<F, K>(extract: F) -> FromFn<F, K>
where
    F: Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    K: Into<Key> + 'static,
{
    FromFn {
        extract,
        key: PhantomData,
    }
}

impl<F, K> KeyExtractor for FromFn<F, K>
where
    F: Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    K: Into<Key> + 'static,
{
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        let key = (self.extract)(parts).ok_or(MissingKey::new("the request has no key"))?;
        Ok(key.into())
    }
}

// Not derived, because a derived implementation would also require `K: Clone`.
impl<F: Clone, K> Clone for FromFn<F, K> {
    fn clone(&self) -> Self {
        Self {
            extract: self.extract.clone(),
            key: PhantomData,
        }
    }
}

impl<F: Copy, K> Copy for FromFn<F, K> {}

impl<F, K> fmt::Debug for FromFn<F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

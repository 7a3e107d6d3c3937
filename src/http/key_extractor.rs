//! From a request to a key.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::request::Parts;

use crate::nouns::Key;

/// Takes a key from a request's head.
///
/// An extractor sees the head only, so that a request is decided before its body arrives. It is
/// object-safe: `Arc<dyn KeyExtractor>` is an extractor, too.
///
/// What a client can choose freely must not be a key by itself: whoever sends another value with
/// each request has a fresh budget each time. Take what authentication left, or the peer's
/// address; and put the matched path (`Route`), never the request's path, into a key.
///
/// Two extractors under one limit share a budget where their values read alike: user `42` and a
/// header that says `42` have one key. [`or`](Self::or) keeps its two apart.
///
/// ```
/// use http::request::Parts;
/// use tollgate::key::{KeyExtractor, MissingKey, PeerIp};
/// use tollgate::Key;
///
/// /// The tenant, from a header that the gateway sets, and strips from what clients send.
/// struct Tenant;
///
/// impl KeyExtractor for Tenant {
///     fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
///         let tenant = parts.headers.get("x-tenant").ok_or(MissingKey::new("no tenant"))?;
///         Ok(Key::new(tenant.as_bytes()))
///     }
/// }
///
/// // Each tenant's clients one by one; who has no tenant, by address alone.
/// let key = Tenant.and(PeerIp).or(PeerIp);
/// # fn takes(_: impl KeyExtractor) {}
/// # takes(key);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not take a key from a request",
    label = "not a key extractor",
    note = "for a header use `Header::new(\"x-name\")?`, for a closure `from_fn(|parts| ...)`, for \
            everyone together `Global`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// The key of a request, or why it has none.
    ///
    /// # Errors
    ///
    /// What becomes of the request then is the layer's
    /// [choice](crate::RateLimitLayer::on_missing_key).
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey>;

    /// The number of fallbacks in this extractor, for a chain of [`or`](Self::or): 0, unless the
    /// extractor returns keys of such a chain as they are. A wrapper returns the number of the
    /// extractor that it wraps.
    fn fallbacks(&self) -> u8 {
        0
    }

    /// This key and another's as one, by [`Key::join`]. It is missing if one of them is.
    fn and<E: KeyExtractor>(self, other: E) -> And<Self, E>
    where
        Self: Sized,
    {
        And(self, other)
    }

    /// This key, or another's where this one is missing.
    ///
    /// Keys of this extractor stay as they are. Keys of the other are marked as
    /// [fallbacks](Key::fallback), once for each `or` before them, so keys of the two never meet: a
    /// client cannot reach another's address budget with a header that looks like an address.
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
}

impl MissingKey {
    /// The reason is logged, and told to the client if the request is refused.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), detail: None }
    }

    /// Adds what only the log gets: names of the application's inside, advice to its developers.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    pub(crate) fn logged(&self) -> &str {
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
}

impl<E: KeyExtractor + ?Sized> KeyExtractor for Box<E> {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        (**self).extract(parts)
    }

    fn fallbacks(&self) -> u8 {
        (**self).fallbacks()
    }
}

/// Two keys as one: see [`KeyExtractor::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<A, B>(A, B);

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for And<A, B> {
    fn extract(&self, parts: &Parts) -> Result<Key, MissingKey> {
        Ok(self.0.extract(parts)?.join(&self.1.extract(parts)?))
    }
}

/// A key or another: see [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B>(A, B);

impl<A: KeyExtractor, B: KeyExtractor> Or<A, B> {
    /// Marks a key of the second branch once for each extractor of the chain before its own.
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
            Err(second) => Err(MissingKey::new(format!("{first}; {second}")).detail(format!(
                "{}; {}",
                first.logged(),
                second.logged()
            ))),
        }
    }

    fn fallbacks(&self) -> u8 {
        self.0.fallbacks().saturating_add(1).saturating_add(self.1.fallbacks())
    }
}

/// A closure as an extractor: see [`from_fn`].
pub struct FromFn<F, K = Key> {
    extract: F,
    key: PhantomData<fn() -> K>,
}

/// Makes an extractor of a closure that returns anything that a [`Key`] is made of.
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
    FromFn { extract, key: PhantomData }
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

// Derived implementations would ask the same of `K`, of which an extractor holds nothing.
impl<F: Clone, K> Clone for FromFn<F, K> {
    fn clone(&self) -> Self {
        Self { extract: self.extract.clone(), key: PhantomData }
    }
}

impl<F: Copy, K> Copy for FromFn<F, K> {}

impl<F, K> fmt::Debug for FromFn<F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

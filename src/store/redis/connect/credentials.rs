//! Users and passwords that change while your service runs.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_core::future::BoxFuture;

/// A user and a password of Redis, for
/// [`RedisStoreBuilder::credentials`](crate::store::RedisStoreBuilder::credentials).
#[derive(Clone, PartialEq, Eq)]
#[must_use = "credentials do nothing until a provider returns them"]
pub struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password: String,
}

impl Credentials {
    /// A password, or a token, of the default user.
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            username: None,
            password: password.into(),
        }
    }

    /// A user, and its password or token.
    pub fn user(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            username: Some(username.into()),
            password: password.into(),
        }
    }
}

impl fmt::Debug for Credentials {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// Returns the credentials for one connection.
pub(in crate::store::redis) type Provider =
    Arc<dyn Fn() -> BoxFuture<'static, Result<Credentials, String>> + Send + Sync>;

pub(in crate::store::redis) fn provider<F, E>(
    provide: impl Fn() -> F + Send + Sync + 'static,
) -> Provider
where
    F: Future<Output = Result<Credentials, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    Arc::new(move || {
        let credentials = provide();
        Box::pin(async {
            credentials.await.map_err(|error| {
                let error = error.into();
                format!("the provider of `credentials` failed: {error}").replace('\n', " ")
            })
        })
    })
}

//! Announcements of what changed, such as the plan of a user.

/// Announcements of changes, which a [`Lookup`](crate::layer::Lookup) follows.
///
/// `RedisChannel` implements this. Implement it for another messaging system, such as `LISTEN` of
/// `PostgreSQL`:
///
/// ```
/// use tokio::sync::broadcast::{Receiver, error::RecvError};
/// use tollgate::store::{Announcement, Announcements};
///
/// struct ChangedUsers(Receiver<u64>);
///
/// impl Announcements for ChangedUsers {
///     async fn next(&mut self) -> Option<Announcement> {
///         match self.0.recv().await {
///             Ok(user) => Some(Announcement::One(user.to_string())),
///             // Some were lost.
///             Err(RecvError::Lagged(_)) => Some(Announcement::Any),
///             Err(RecvError::Closed) => None,
///         }
///     }
/// }
/// ```
pub trait Announcements: Send + 'static {
    /// Waits for the next announcement. `None` ends them. Then every value is looked up again once,
    /// and is fresh for its `ttl`, whatever changes.
    ///
    /// After a lost connection, the next announcement is [`Announcement::Any`].
    fn next(&mut self) -> impl Future<Output = Option<Announcement>> + Send;
}

/// A change that was announced, or that may have been missed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Announcement {
    /// The value of this id changed.
    One(String),
    /// Any value may have changed.
    Any,
}

//! Announcements that values changed, which caches of other processes follow.

use std::future::Future;

use tokio::sync::mpsc;

/// A value that changed, such as the plan of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The value of this id.
    Of(String),
    /// Announcements may have been missed: any value may have changed.
    Unknown,
}

/// A source of [`Change`]s, which a [`Lookup`](crate::layer::Lookup::follow) follows.
///
/// Implemented by `RedisChannel`, and by the receiver of a `tokio::sync::mpsc` channel, for anything else.
pub trait ChangeSource: Send + 'static {
    /// Waits for the next change. `None` ends the source.
    fn next(&mut self) -> impl Future<Output = Option<Change>> + Send;
}

impl ChangeSource for mpsc::Receiver<Change> {
    async fn next(&mut self) -> Option<Change> {
        self.recv().await
    }
}

//! A channel of a server, and a connection for its messages.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::{MultiplexedConnection, SendError};
use redis::{PushInfo, PushKind};
use tokio::sync::Notify;

/// `None` if the server cannot be subscribed to: a pool has no connections for that.
pub(in crate::store::redis) type Subscribing<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Subscription>, String>> + Send + 'a>>;

/// A subscription, which ends with its connection.
pub(in crate::store::redis) struct Subscription {
    pub(super) messages: Arc<Messages>,
    pub(super) _connection: MultiplexedConnection,
}

/// What a subscription has received. What the messages say is not kept, so they cannot pile up.
#[derive(Default)]
pub(super) struct Messages {
    received: Notify,
    is_closed: AtomicBool,
}

impl Messages {
    pub(super) fn push(&self, push: &PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Message => self.received.notify_one(),
            PushKind::Disconnection => {
                self.is_closed.store(true, Ordering::Release);
                self.received.notify_one();
            }
            // Such as that the subscription is made.
            _ => {}
        }
        Ok(())
    }
}

impl Subscription {
    /// Waits for a message, or for the end of the connection.
    pub(in crate::store::redis) async fn received(&self) {
        self.messages.received.notified().await;
    }

    pub(in crate::store::redis) fn is_open(&self) -> bool {
        !self.messages.is_closed.load(Ordering::Acquire)
    }
}

//! A channel of a server, and a connection for its messages.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::{MultiplexedConnection, SendError};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;

use crate::units::Mutex;

/// The most messages that wait to be taken, so that they cannot pile up.
const MOST_WAITING: usize = 1_024;

/// The longest message that is kept, in bytes.
pub(in crate::store::redis) const LONGEST: usize = 256;

/// A subscription, which ends with its connection.
pub(in crate::store::redis) struct Subscription {
    pub(super) messages: Arc<Messages>,
    pub(super) _connection: MultiplexedConnection,
}

/// The messages that a subscription has received.
#[derive(Default)]
pub(super) struct Messages {
    received: Notify,
    is_closed: AtomicBool,
    waiting: Mutex<Received>,
}

/// Messages, the oldest first.
#[derive(Default)]
pub(in crate::store::redis) struct Received {
    pub(in crate::store::redis) texts: Vec<String>,
    /// Whether there were others, which were not kept.
    pub(in crate::store::redis) has_lost_some: bool,
}

impl Received {
    fn add(&mut self, message: Option<&Value>) {
        let text = match message {
            Some(Value::BulkString(bytes)) if bytes.len() <= LONGEST => str::from_utf8(bytes).ok(),
            _ => None,
        };
        match text {
            Some(text) if self.texts.len() < MOST_WAITING => self.texts.push(text.to_owned()),
            _ => self.has_lost_some = true,
        }
    }
}

impl Messages {
    pub(super) fn push(&self, push: &PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Message => {
                // The channel, and the message.
                self.waiting.lock().add(push.data.get(1));
                self.received.notify_one();
            }
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
    /// Waits for messages, or for the end of the connection.
    pub(in crate::store::redis) async fn received(&self) -> Received {
        self.messages.received.notified().await;
        mem::take(&mut *self.messages.waiting.lock())
    }

    pub(in crate::store::redis) fn is_open(&self) -> bool {
        !self.messages.is_closed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_nobody_takes_do_not_pile_up() {
        let mut received = Received::default();
        let message = Value::BulkString(b"alice".to_vec());
        for number in 0..MOST_WAITING + 5 {
            assert_eq!(received.has_lost_some, number > MOST_WAITING);
            received.add(Some(&message));
        }
        assert_eq!(received.texts.len(), MOST_WAITING);
    }

    #[test]
    fn message_that_is_no_short_text_counts_as_lost() {
        let long = vec![b'x'; LONGEST + 1];
        for message in [
            Some(Value::BulkString(long)),
            Some(Value::BulkString(vec![0xff])),
            None,
        ] {
            let mut received = Received::default();
            received.add(message.as_ref());
            assert!(
                received.has_lost_some && received.texts.is_empty(),
                "{message:?}"
            );
        }
    }
}

//! A channel of a server, and a connection for its messages.

use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::broadcast::error::RecvError;
#[cfg(feature = "config")]
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::broadcast::{self, Receiver};

use crate::store::Announcement;
use crate::units::Mutex;

/// The most messages that wait to be taken, so that they cannot pile up.
const MOST_WAITING: usize = 256;

/// The longest message that is kept, in bytes.
pub(in crate::store::redis) const LONGEST: usize = 256;

/// A subscription, which ends with its connection.
pub(in crate::store::redis) struct Subscription {
    pub(super) messages: Receiver<Announcement>,
    pub(super) _connection: MultiplexedConnection,
}

impl Subscription {
    /// Waits for a message. `None` at the end of the connection.
    pub(in crate::store::redis) async fn next(&mut self) -> Option<Announcement> {
        next(&mut self.messages).await
    }

    /// The messages that wait.
    #[cfg(feature = "config")]
    pub(in crate::store::redis) fn take_waiting(&mut self) -> Vec<Announcement> {
        let messages = &mut self.messages;
        std::iter::from_fn(|| match messages.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Lagged(_)) => Some(Announcement::Any),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        })
        .collect()
    }

    /// Forgets the messages that wait.
    pub(in crate::store::redis) fn skip_waiting(&mut self) {
        self.messages = self.messages.resubscribe();
    }

    pub(in crate::store::redis) fn is_open(&self) -> bool {
        !self.messages.is_closed()
    }
}

async fn next(messages: &mut Receiver<Announcement>) -> Option<Announcement> {
    match messages.recv().await {
        Ok(message) => Some(message),
        Err(RecvError::Lagged(_)) => Some(Announcement::Any),
        Err(RecvError::Closed) => None,
    }
}

/// A function that takes what a connection pushes, and the messages among that.
pub(super) fn messages() -> (impl AsyncPushSender, Receiver<Announcement>) {
    let (sender, messages) = broadcast::channel(MOST_WAITING);
    let sender = Mutex::new(Some(sender));
    let push = move |push: PushInfo| {
        // Both wake the receiver, so not while the sender is locked.
        match push.kind {
            PushKind::Message => {
                let sender = sender.lock().clone();
                // The channel, and the message.
                let message = announcement(push.data.get(1));
                drop(sender.map(|sender| sender.send(message)));
            }
            PushKind::Disconnection => {
                let last = sender.lock().take();
                drop(last);
            }
            // Such as that the subscription is made.
            _ => {}
        }
        Ok::<_, SendError>(())
    };
    (push, messages)
}

/// Reads the announcement of a message. One that is not kept may have been of any id.
fn announcement(message: Option<&Value>) -> Announcement {
    let text = match message {
        Some(Value::BulkString(bytes)) if bytes.len() <= LONGEST => str::from_utf8(bytes).ok(),
        _ => None,
    };
    text.map_or(Announcement::Any, |text| Announcement::One(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &[u8]) -> PushInfo {
        let channel = Value::BulkString(b"plans".to_vec());
        PushInfo {
            kind: PushKind::Message,
            data: vec![channel, Value::BulkString(text.to_vec())],
        }
    }

    #[tokio::test]
    async fn messages_that_nobody_takes_do_not_pile_up() {
        let (push, mut messages) = messages();
        for _ in 0..MOST_WAITING + 5 {
            push.send(message(b"alice")).unwrap();
        }
        assert_eq!(
            messages.len(),
            MOST_WAITING + 5,
            "counts those that are gone"
        );
        assert_eq!(next(&mut messages).await, Some(Announcement::Any));
        let alice = Announcement::One("alice".to_owned());
        for _ in 0..MOST_WAITING {
            assert_eq!(next(&mut messages).await.as_ref(), Some(&alice));
        }
        assert!(messages.is_empty());
    }

    #[tokio::test]
    async fn message_that_is_no_short_text_may_be_of_any_id() {
        let (push, mut messages) = messages();
        for text in [&[b'x'; LONGEST + 1][..], &[0xff]] {
            push.send(message(text)).unwrap();
            assert_eq!(next(&mut messages).await, Some(Announcement::Any));
        }
        assert_eq!(announcement(None), Announcement::Any);
    }

    #[tokio::test]
    async fn messages_end_with_the_connection() {
        let (push, mut messages) = messages();
        push.send(message(b"alice")).unwrap();
        push.send(PushInfo {
            kind: PushKind::Disconnection,
            data: Vec::new(),
        })
        .unwrap();
        assert!(messages.is_closed());
        assert_eq!(
            next(&mut messages).await,
            Some(Announcement::One("alice".to_owned()))
        );
        assert_eq!(next(&mut messages).await, None);
    }
}

//! Why a server closes new connections, in its own words.
//!
//! A server in protected mode, or with too many clients, answers a new connection with an error and
//! closes it. If the client logs in, it has sent several commands by then, and learns only that the
//! connection was reset. So another connection, which sends nothing, reads the sentence.

use std::io;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, ErrorKind, RedisError};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The time to wait for the server's error. A server sends it as soon as it accepts.
const PATIENCE: Duration = Duration::from_millis(100);

/// The longest sentence, in bytes. Redis explains protected mode at length.
const LONGEST: usize = 300;

/// The last answer of a server that closes a new connection, which is its sentence, or only that
/// the connection is closed. `None` if the connection stays open.
pub(super) async fn last_answer(connection: &mut MultiplexedConnection) -> Option<RedisError> {
    let ping = redis::cmd("PING");
    let error = ping.query_async::<()>(connection).await.err()?;
    if error.is_connection_dropped() {
        return Some(error);
    }
    // The answer to a command, or the sentence.
    let next = ping.query_async::<()>(connection).await.err()?;
    next.is_connection_dropped().then_some(error)
}

/// The sentence as the server wrote it: the code of the error, and its text. `None` if the error is
/// not the server's.
pub(super) fn sentence_of(error: &RedisError) -> Option<String> {
    if !matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) {
        return None;
    }
    let code = error.code().unwrap_or_default();
    let sentence = format!("-{code} {}", error.detail().unwrap_or_default());
    let start = sentence.as_bytes();
    error_in(start.get(..LONGEST).unwrap_or(start))
}

pub(super) fn in_words(sentence: &str) -> String {
    format!("the server closes new connections: {sentence}")
}

/// The error with which a server answers a new connection. `None` if it has none, and with TLS:
/// Redis does not begin the handshake then.
pub(super) async fn why(address: &ConnectionAddr) -> Option<String> {
    let mut sentence = [0; LONGEST];
    let read = timeout(PATIENCE, read(address, &mut sentence)).await;
    error_in(sentence.get(..read.ok()?.ok()?)?)
}

async fn read(address: &ConnectionAddr, into: &mut [u8]) -> io::Result<usize> {
    match address {
        ConnectionAddr::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.readable().await?;
            stream.try_read(into)
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let stream = UnixStream::connect(path).await?;
            stream.readable().await?;
            stream.try_read(into)
        }
        _ => Ok(0),
    }
}

/// The text of an error in the Redis protocol, which is one line after a `-`.
fn error_in(reply: &[u8]) -> Option<String> {
    let text = reply.strip_prefix(b"-")?;
    let text = String::from_utf8_lossy(text);
    let line = text.lines().next()?.trim();
    let line: String = line.chars().filter(|char| !char.is_control()).collect();
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_is_the_first_line_of_an_error_without_control_characters() {
        let said = |reply: &[u8]| error_in(reply);
        assert_eq!(
            said(b"-ERR max number of clients reached\r\n").as_deref(),
            Some("ERR max number of clients reached")
        );
        assert_eq!(
            said(b"-DENIED \x1b[31mno\r\nmore").as_deref(),
            Some("DENIED [31mno")
        );
        assert_eq!(said(b"-DENIED \xff").as_deref(), Some("DENIED \u{fffd}"));
        for silent in [
            &b""[..],
            b"-",
            b"-\r\n",
            b"+OK\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
        ] {
            assert_eq!(said(silent), None, "{silent:?}");
        }
    }
}

//! A network that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// All bytes are delivered.
    Well,
    /// Half of each reply is delivered, and then the connection is closed.
    CutReplies,
    /// Replies are delivered a byte at a time, four a millisecond: beside a load, a pause of one
    /// takes several.
    Trickle,
    /// Nothing is delivered, and no connection is closed.
    BlackHole,
    /// Each 16th reply is lost, and the connection stays open, as with a proxy that has a fault:
    /// from then on, each answer seems to be that to the call before.
    LoseReplies,
}

/// A proxy in front of a server, whose mode can change.
pub struct Chaos {
    pub port: u16,
    mode: Arc<AtomicU8>,
}

impl Chaos {
    pub async fn start(server: u16) -> Self {
        let mode = Arc::new(AtomicU8::new(Mode::Well as u8));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let current = Arc::clone(&mode);
        tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.spawn(carry(client, server, Arc::clone(&current)));
            }
        });
        Self { port, mode }
    }

    pub fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }
}

async fn carry(mut client: TcpStream, server: u16, mode: Arc<AtomicU8>) {
    let is = |wanted: Mode| mode.load(Ordering::SeqCst) == wanted as u8;
    while is(Mode::BlackHole) {
        sleep(Duration::from_millis(20)).await;
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let (mut requests, mut replies) = (vec![0; 65_536], vec![0; 65_536]);
    let mut replied = 0_u32;
    loop {
        if is(Mode::BlackHole) {
            sleep(Duration::from_millis(20)).await;
            continue;
        }
        let done = tokio::select! {
            read = client.read(&mut requests) => match read {
                Ok(length @ 1..) if !is(Mode::BlackHole) => {
                    server.write_all(&requests[..length]).await
                }
                Ok(1..) => Ok(()),
                _ => return,
            },
            read = server.read(&mut replies) => match read {
                Ok(length @ 1..) if is(Mode::CutReplies) => {
                    drop(client.write_all(&replies[..length.div_ceil(2)]).await);
                    return;
                }
                Ok(length @ 1..) if is(Mode::Trickle) => {
                    let mut written = Ok(());
                    for (number, byte) in replies[..length].iter().enumerate() {
                        if number.is_multiple_of(4) {
                            sleep(Duration::from_millis(1)).await;
                        }
                        written = written.and(client.write_all(&[*byte]).await);
                    }
                    written
                }
                Ok(length @ 1..) if !is(Mode::BlackHole) => {
                    replied += 1;
                    match is(Mode::LoseReplies) && replied.is_multiple_of(16) {
                        true => Ok(()),
                        false => client.write_all(&replies[..length]).await,
                    }
                }
                Ok(1..) => Ok(()),
                _ => return,
            },
            () = sleep(Duration::from_millis(20)) => Ok(()),
        };
        if done.is_err() {
            return;
        }
    }
}

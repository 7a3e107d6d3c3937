//! A network that takes its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;

/// A proxy in front of a server that delivers every byte so many milliseconds later, half of them
/// in each direction. Returns its port.
pub async fn delaying(server: u16, millis: Arc<AtomicU64>) -> u16 {
    async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, millis: Arc<AtomicU64>) {
        let (sender, mut receiver) = unbounded_channel();
        let deliver = async move {
            while let Some((at, bytes)) = receiver.recv().await {
                let bytes: Vec<u8> = bytes;
                tokio::time::sleep_until(at).await;
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        let read = async move {
            let mut buffer = vec![0; 65_536];
            while let Ok(length @ 1..) = from.read(&mut buffer).await {
                let delay = Duration::from_millis(millis.load(Ordering::Relaxed)) / 2;
                let at = tokio::time::Instant::now() + delay;
                if sender.send((at, buffer[..length].to_vec())).is_err() {
                    return;
                }
            }
        };
        tokio::join!(deliver, read);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            // Where the server has ended, the client's connection ends.
            let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
                continue;
            };
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let ((client_read, client_write), (server_read, server_write)) =
                (client.into_split(), server.into_split());
            tokio::spawn(carry(client_read, server_write, Arc::clone(&millis)));
            tokio::spawn(carry(server_read, client_write, Arc::clone(&millis)));
        }
    });
    port
}

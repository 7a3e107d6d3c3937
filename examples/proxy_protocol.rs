//! A limit for each client behind a load balancer that speaks the PROXY protocol (HAProxy's
//! `send-proxy` and `send-proxy-v2`, AWS Network Load Balancer): 5 requests at once, then 5 a
//! minute.
//!
//! ```sh
//! TRUSTED=127.0.0.1 PORT=3000 cargo run --example proxy_protocol
//! ```
//!
//! The protocol sends the client's address at the start of each connection, before HTTP. So the
//! listener reads it, and axum puts it into the extensions of each request. Only peers in `TRUSTED`
//! may connect: any other peer could send any address.

use std::env;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::extract::connect_info::Connected;
use axum::http::request::Parts;
use axum::routing::get;
use axum::serve::{IncomingStream, Listener};
use ppp::{HeaderResult, PartialResult, v1, v2};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tollgate::key::{ClientIp, Networks};
use tollgate::{Quota, RateLimitLayer, RateLimiter};

/// How long a proxy may take for its header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection, past its header. Bytes that came with the header are still in the buffer.
type Connection = BufReader<TcpStream>;

/// The client's address: from the header, or the peer's if the proxy connected on its own behalf.
#[derive(Clone, Copy, Debug)]
struct Client(IpAddr);

struct ProxyProtocolListener {
    address: SocketAddr,
    accepted: mpsc::Receiver<(Connection, Client)>,
}

impl ProxyProtocolListener {
    fn new(listener: TcpListener, trusted: Networks) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, accepted) = mpsc::channel(64);
        tokio::spawn(async move {
            loop {
                let Ok((stream, peer)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                if !trusted.contains(peer.ip()) {
                    continue;
                }
                // A slow header holds up no other connection.
                let sender = sender.clone();
                tokio::spawn(async move {
                    if let Ok(Ok(accepted)) = timeout(HEADER_TIMEOUT, read(stream, peer)).await {
                        let _ = sender.send(accepted).await;
                    }
                });
            }
        });
        Ok(Self { address, accepted })
    }
}

/// Reads the header. Proxies send it in one segment: one in parts is rejected.
async fn read(stream: TcpStream, peer: SocketAddr) -> io::Result<(Connection, Client)> {
    let mut stream = BufReader::new(stream);
    let bytes = stream.fill_buf().await?;
    let header = HeaderResult::parse(bytes);
    if header.is_incomplete() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let (length, source) = match header {
        HeaderResult::V1(Ok(header)) => {
            let source = match header.addresses {
                v1::Addresses::Tcp4(addresses) => Some(addresses.source_address.into()),
                v1::Addresses::Tcp6(addresses) => Some(addresses.source_address.into()),
                v1::Addresses::Unknown => None,
            };
            (header.header.len(), source)
        }
        HeaderResult::V2(Ok(header)) => {
            let source = match header.addresses {
                _ if header.command == v2::Command::Local => None,
                v2::Addresses::IPv4(addresses) => Some(addresses.source_address.into()),
                v2::Addresses::IPv6(addresses) => Some(addresses.source_address.into()),
                v2::Addresses::Unix(_) | v2::Addresses::Unspecified => None,
            };
            (header.header.len(), source)
        }
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => {
            return Err(io::ErrorKind::InvalidData.into());
        }
    };
    stream.consume(length);
    Ok((stream, Client(source.unwrap_or(peer.ip()))))
}

impl Listener for ProxyProtocolListener {
    type Io = Connection;
    type Addr = Client;

    async fn accept(&mut self) -> (Connection, Client) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Client> {
        Ok(Client(self.address.ip()))
    }
}

impl Connected<IncomingStream<'_, ProxyProtocolListener>> for Client {
    fn connect_info(stream: IncomingStream<'_, ProxyProtocolListener>) -> Self {
        *stream.remote_addr()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proxy_protocol: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let client = ClientIp::direct().peer_from(|parts: &Parts| {
        parts
            .extensions
            .get::<ConnectInfo<Client>>()
            .map(|connection| connection.0.0)
    });
    // The Redis that all replicas share. Without it, the budgets are in memory.
    let limiter = match env::var("REDIS_URL") {
        Ok(url) if !url.is_empty() => RateLimiter::redis(&url, "proxy-protocol").await?,
        _ => RateLimiter::in_memory(),
    };
    let layer =
        RateLimitLayer::token_bucket(&limiter, "proxy_protocol", Quota::per_minute(5), client)?;
    let counted =
        |ConnectInfo(client): ConnectInfo<Client>| async move { format!("{}\n", client.0) };
    let app = Router::new().route("/", get(counted)).layer(layer);

    let trusted = env::var("TRUSTED").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let trusted = Networks::new(trusted.split(','))?;
    let port: u16 = env::var("PORT")
        .unwrap_or_else(|_| "3000".to_owned())
        .parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!(
        "listening on http://{}, with the PROXY protocol",
        listener.local_addr()?
    );
    let listener = ProxyProtocolListener::new(listener, trusted)?;
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<Client>(),
    )
    .await?;
    Ok(())
}

//! Connections to one server, by its address.

use std::time::Duration;

use redis::ConnectionAddr;
use redis::ProtocolVersion;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, RedisError};

use super::super::greeting::{self, in_words};
use super::super::terms::Terms;
use super::subscription::{self, Subscription};
use super::{Provider, turned_away};

/// The idle time before the first keepalive probe.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);

/// The time between keepalive probes. A few without an answer close the connection.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

/// Sent data that is not acknowledged for this long closes the connection, where the system
/// supports it.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const UNANSWERED: Duration = Duration::from_secs(30);

/// The host of a server, and its port.
pub(in crate::store::redis) type HostAndPort = (String, u16);

/// A server. Its name is resolved anew for each connection, so that a name that moved is followed.
#[derive(Clone)]
pub(in crate::store::redis) struct Server {
    info: ConnectionInfo,
    credentials: Option<Provider>,
    config: AsyncConnectionConfig,
}

impl Server {
    pub(super) fn new(info: &ConnectionInfo, credentials: Option<Provider>) -> Self {
        // The store's own deadline applies. A timeout of the connection could only shorten it.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        // Some proxies close a connection at a command that they do not know, such as CLIENT.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        Self {
            info: info
                .clone()
                .set_tcp_settings(tcp_settings())
                .set_redis_settings(settings),
            credentials,
            config,
        }
    }

    pub(in crate::store::redis) fn address(&self) -> String {
        self.info.addr().to_string()
    }

    /// The host and the port. A Unix socket has none.
    pub(in crate::store::redis) fn host_and_port(&self) -> HostAndPort {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (host.clone(), *port)
            }
            _ => (String::new(), 0),
        }
    }

    /// A server with the same settings, at another address.
    pub(in crate::store::redis) fn at(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let address = match self.info.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self {
            info: self.info.clone().set_addr(address),
            ..self.clone()
        }
    }

    /// A connection that is not validated.
    pub(in crate::store::redis) async fn open(
        &self,
        prefix: &str,
    ) -> Result<MultiplexedConnection, String> {
        open(self.login().await?, &self.config, prefix).await
    }

    /// A validated connection.
    pub(super) async fn connect_to(&self, terms: &Terms) -> Result<MultiplexedConnection, String> {
        let mut connection = self.open(&terms.prefix).await?;
        greeting::greet(&mut connection, terms).await?;
        Ok(connection)
    }

    /// Subscribes to a channel, on a connection of its own.
    pub(super) async fn subscribe(
        &self,
        prefix: &str,
        channel: &str,
    ) -> Result<Subscription, String> {
        let info = self.login().await?;
        // Version 3 of the protocol sends messages to a connection that also has other uses.
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let (push, messages) = subscription::messages();
        let config = self.config.clone().set_push_sender(push);
        let mut connection = open(info.set_redis_settings(settings), &config, prefix).await?;
        let subscribed = connection.subscribe(channel).await;
        subscribed.map_err(|error| in_words(&error, prefix))?;
        Ok(Subscription {
            messages,
            _connection: connection,
        })
    }

    /// The server, with the credentials of now.
    async fn login(&self) -> Result<ConnectionInfo, String> {
        let mut info = self.info.clone();
        if let Some(provider) = &self.credentials {
            let credentials = provider().await?;
            let settings = info
                .redis_settings()
                .clone()
                .set_password(credentials.password);
            // A password alone belongs to Redis' own user, and not to the user in the URL.
            let username = credentials.username.as_deref().unwrap_or("default");
            info = info.set_redis_settings(settings.set_username(username));
        }
        Ok(info)
    }
}

async fn open(
    info: ConnectionInfo,
    config: &AsyncConnectionConfig,
    prefix: &str,
) -> Result<MultiplexedConnection, String> {
    let address = info.addr().clone();
    let connected = async {
        let client = Client::open(info)?;
        let mut connection = client
            .get_multiplexed_async_connection_with_config(config)
            .await?;
        let last = turned_away::last_answer(&mut connection).await;
        Ok::<_, RedisError>((connection, last))
    };
    let (error, is_connected) = match connected.await {
        Ok((connection, None)) => return Ok(connection),
        Ok((_, Some(error))) => (error, true),
        Err(error) => (error, false),
    };
    let sentence = match error.is_connection_dropped() {
        true => turned_away::why(&address).await,
        // Any other error after connecting comes from a peer that does not speak the protocol.
        false if is_connected => turned_away::sentence_of(&error),
        false => None,
    };
    Err(match sentence {
        Some(sentence) => turned_away::in_words(&sentence),
        None => in_words(&error, prefix),
    })
}

/// A dead peer closes the connection before the first check after a pause needs it.
fn tcp_settings() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(UNANSWERED);
    settings
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, Ordering};

    use redis::RedisFuture;
    use redis::io::AsyncDNSResolver;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::super::{Endpoint, Topology};
    use super::*;
    use crate::model::{Check, Limit, Operation};
    use crate::store::{RedisStore, Store};
    use crate::units::Quota;

    /// Resolves every name to this port of the loopback.
    struct Moving(Arc<AtomicU16>);

    impl AsyncDNSResolver for Moving {
        fn resolve<'a, 'b: 'a>(
            &'a self,
            _: &'b str,
            _: u16,
        ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
            let address = SocketAddr::from(([127, 0, 0, 1], self.0.load(Ordering::SeqCst)));
            Box::pin(async move { Ok(Box::new(std::iter::once(address)) as Box<_>) })
        }
    }

    /// Never resolves a name.
    struct Silent;

    impl AsyncDNSResolver for Silent {
        fn resolve<'a, 'b: 'a>(
            &'a self,
            _: &'b str,
            _: u16,
        ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
            Box::pin(pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resolution_of_a_name_that_never_ends_is_bounded_by_the_deadline() {
        let client = Client::open("redis://redis.internal/").unwrap();
        let mut server = Server::new(client.get_connection_info(), None);
        server.config = server.config.set_dns_resolver(Silent);
        let topology = Topology::One(Endpoint::Server(server).into());
        let store = RedisStore::builder("tollgate").without_circuit_breaker();
        let store = store.build_on(topology, "redis.internal");
        let limit = Limit::gcra("api", Quota::per_second(1)).unwrap();
        for number in 0..3 {
            let asked = Instant::now();
            let check = Check::new(&limit, "alice");
            assert!(
                store
                    .apply(Operation::Charge(check.into()))
                    .await
                    .unwrap_err()
                    .is_unavailable()
            );
            assert!(
                asked.elapsed() <= Duration::from_millis(252),
                "{:?}",
                asked.elapsed()
            );
            // The first attempt hangs, and later checks know of it.
            assert!(number > 0 || asked.elapsed() >= Duration::from_millis(250));
        }
    }

    #[tokio::test]
    async fn name_is_resolved_anew_for_each_connection() {
        let target = Arc::new(AtomicU16::new(0));
        let client = Client::open("redis://redis.internal/").unwrap();
        let mut server = Server::new(client.get_connection_info(), None);
        server.config = server.config.set_dns_resolver(Moving(Arc::clone(&target)));
        for _ in 0..3 {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            target.store(listener.local_addr().unwrap().port(), Ordering::SeqCst);
            let opening = server.open("tollgate");
            // Whoever listens at the name's new address is asked.
            let (accepted, opened) =
                tokio::join!(async { drop(listener.accept().await.unwrap()) }, opening);
            let ((), Err(_)) = (accepted, opened) else {
                panic!("the peer hung up")
            };
        }
    }
}

//! The servers of a URL: the one, the master that sentinels name, or the masters of a cluster.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, bail};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, RedisError, cmd};

use super::certificates::Certificates;
use crate::arguments::TlsArguments;
use crate::output::explained;

const PATIENCE: Duration = Duration::from_secs(5);

/// A server that accepts writes.
pub(super) struct Server {
    /// Without a password.
    pub(super) address: String,
    pub(super) connection: MultiplexedConnection,
}

impl Server {
    async fn connect(
        url: &str,
        address: &str,
        certificates: &Certificates,
    ) -> anyhow::Result<Self> {
        let client = match certificates.of_client() {
            Some(certificates) => Client::build_with_tls(url, certificates),
            None => Client::open(url),
        };
        let client = client.with_context(|| format!("the Redis URL of {address}"))?;
        // Some proxies close a connection at a command that they do not know, such as CLIENT.
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let client = Client::open(info.set_redis_settings(settings))
            .with_context(|| format!("the Redis URL of {address}"))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        let connection = connection.with_context(|| format!("cannot connect to {address}"))?;
        Ok(Self {
            address: address.to_owned(),
            connection,
        })
    }

    /// Sends a command.
    pub(super) async fn ask<T: FromRedisValue>(&mut self, command: &[&str]) -> anyhow::Result<T> {
        let (name, arguments) = command.split_first().context("a command has a name")?;
        let answer = cmd(name)
            .arg(arguments)
            .query_async(&mut self.connection)
            .await;
        answer.with_context(|| format!("{}: {}", self.address, command.join(" ")))
    }

    /// The text at a key. `None` if another node of a cluster has the key, or a value of another
    /// type is there.
    pub(super) async fn text_at(&mut self, key: &str) -> anyhow::Result<Option<String>> {
        match self.ask(&["GETRANGE", key, "0", "-1"]).await {
            Ok(text) => Ok(Some(text)),
            Err(error) => {
                let of_redis = error.chain().find_map(|it| it.downcast_ref::<RedisError>());
                match of_redis.and_then(RedisError::code) {
                    Some("MOVED" | "ASK" | "WRONGTYPE") => Ok(None),
                    _ => Err(error),
                }
            }
        }
    }

    /// Every user may send this command. A proxy in front of Redis may not know it.
    async fn is_in_cluster_mode(&mut self) -> bool {
        let about: anyhow::Result<HashMap<String, redis::Value>> = self.ask(&["HELLO"]).await;
        let mode = about.ok().and_then(|mut about| about.remove("mode"));
        mode.is_some_and(|mode| {
            redis::from_redis_value(mode).is_ok_and(|it: String| it == "cluster")
        })
    }

    /// The time by which the server decides, in microseconds since the Unix epoch. It is the time
    /// of scripts: a proxy in front of the server may answer `TIME` by itself.
    pub(super) async fn now(&mut self, prefix: &str) -> anyhow::Result<u64> {
        const SCRIPT: &str = "return redis.call('TIME')";
        let key = format!("{prefix}:{{now}}");
        let of_script: anyhow::Result<(u64, u64)> = self.ask(&["EVAL", SCRIPT, "1", &key]).await;
        let (seconds, micros) = match of_script {
            Ok(time) => time,
            // Another node of a cluster has the key, or this user runs no scripts.
            Err(_) => self.ask(&["TIME"]).await?,
        };
        Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
    }
}

/// The parts of a URL of several servers.
struct Parts<'a> {
    /// `redis` or `rediss`.
    scheme: &'static str,
    /// `user:password@`, or nothing.
    login: &'a str,
    hosts: Vec<&'a str>,
    path: &'a str,
    query: &'a str,
}

impl<'a> Parts<'a> {
    fn parse(url: &'a str, scheme: &'static str) -> anyhow::Result<Self> {
        let (_, rest) = url
            .split_once("://")
            .context("the Redis URL has no scheme")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rfind('@') {
            Some(at) => authority.split_at(at + 1),
            None => ("", authority),
        };
        let hosts: Vec<_> = hosts.split(',').filter(|host| !host.is_empty()).collect();
        if hosts.is_empty() {
            bail!("the Redis URL names no servers");
        }
        Ok(Self {
            scheme,
            login,
            hosts,
            path,
            query,
        })
    }

    fn url(&self, host: &str, path: &str) -> String {
        format!("{}://{}{host}/{path}", self.scheme, self.login)
    }
}

/// Connects to the servers that hold the budgets. Without one of them, the answer of a command
/// would be a part.
pub(super) async fn connect(url: &str, tls: &TlsArguments) -> anyhow::Result<Vec<Server>> {
    let mut servers: Vec<_> = connect_each(url, tls)
        .await?
        .into_iter()
        .collect::<anyhow::Result<_>>()?;
    if let ([server], false) = (&mut servers[..], scheme_of(url).ends_with("-cluster"))
        && server.is_in_cluster_mode().await
    {
        bail!(
            "{} is a node of a cluster, and has a part of the keys; write redis-cluster:// in the \
             Redis URL",
            server.address
        );
    }
    Ok(servers)
}

fn scheme_of(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// Connects to each of the servers that hold the budgets.
pub(super) async fn connect_each(
    url: &str,
    tls: &TlsArguments,
) -> anyhow::Result<Vec<anyhow::Result<Server>>> {
    if !url.contains("://") {
        bail!("the Redis URL has no scheme; add `redis://`, as in `redis://localhost:6379`");
    }
    check_encoding(url)?;
    let certificates = &Certificates::read(tls, url)?;
    match scheme_of(url) {
        "redis-cluster" => masters(&Parts::parse(url, "redis")?, certificates).await,
        "rediss-cluster" => masters(&Parts::parse(url, "rediss")?, certificates).await,
        "redis-sentinel" => master(&Parts::parse(url, "redis")?, certificates).await,
        "rediss-sentinel" => master(&Parts::parse(url, "rediss")?, certificates).await,
        _ => Ok(vec![
            Server::connect(url, address_of(url), certificates).await,
        ]),
    }
}

/// Rejects a URL with a raw `/`, `?` or `#` in its password, of which messages would show a part.
fn check_encoding(url: &str) -> anyhow::Result<()> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let after_authority = rest.find(['/', '?', '#']).map_or("", |end| &rest[end..]);
    if after_authority.contains('@') && !scheme.ends_with("unix") {
        bail!(
            "the Redis URL has a password with `/`, `?` or `#`; percent-encode it, such as %23 for \
             `#`"
        );
    }
    Ok(())
}

/// Host and port, for messages.
fn address_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    if host.is_empty() {
        rest.split('?').next().unwrap_or(rest)
    } else {
        host
    }
}

async fn masters(
    parts: &Parts<'_>,
    certificates: &Certificates,
) -> anyhow::Result<Vec<anyhow::Result<Server>>> {
    let mut failures = Vec::new();
    for host in &parts.hosts {
        let answer = async {
            let mut seed = Server::connect(&parts.url(host, ""), host, certificates).await?;
            seed.ask::<Vec<redis::Value>>(&["CLUSTER", "SLOTS"]).await
        };
        match answer.await {
            Ok(slots) => {
                let mut addresses: Vec<String> = slots.iter().filter_map(master_of).collect();
                addresses.sort();
                addresses.dedup();
                let mut servers = Vec::new();
                for address in addresses {
                    // A node that does not know its own name.
                    let address = match address.strip_prefix(':') {
                        Some(port) => {
                            format!("{}:{port}", host.rsplit_once(':').map_or(*host, |it| it.0))
                        }
                        None => address,
                    };
                    servers.push(
                        Server::connect(&parts.url(&address, ""), &address, certificates).await,
                    );
                }
                return Ok(servers);
            }
            Err(error) => failures.push(explained(&error)),
        }
    }
    bail!("{}", failures.join("; "))
}

/// The address of a range's master: `[start, end, [host, port, ...], ...]`.
fn master_of(range: &redis::Value) -> Option<String> {
    let redis::Value::Array(range) = range else {
        return None;
    };
    let redis::Value::Array(node) = range.get(2)? else {
        return None;
    };
    let host: String = redis::from_redis_value(node.first()?.clone()).unwrap_or_default();
    let port: u16 = redis::from_redis_value(node.get(1)?.clone()).ok()?;
    Some(format!("{host}:{port}"))
}

async fn master(
    parts: &Parts<'_>,
    certificates: &Certificates,
) -> anyhow::Result<Vec<anyhow::Result<Server>>> {
    let (service, database) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    let setting = |name: &str| {
        let settings = parts.query.split('&').filter_map(|it| it.split_once('='));
        settings
            .filter(|(key, _)| *key == name)
            .map(|(_, value)| value)
            .next()
            .unwrap_or_default()
    };
    let (user, password) = (setting("sentinel_username"), setting("sentinel_password"));
    let login = if password.is_empty() {
        String::new()
    } else {
        format!("{user}:{password}@")
    };
    let mut failures = Vec::new();
    for host in &parts.hosts {
        let host = if host.contains(':') {
            (*host).to_owned()
        } else {
            format!("{host}:26379")
        };
        let answer = async {
            let url = format!("{}://{login}{host}/", parts.scheme);
            let mut sentinel = Server::connect(&url, &host, certificates).await?;
            let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service];
            let address: Option<(String, u16)> = sentinel.ask(&command).await?;
            address.with_context(|| format!("{host}: knows no service `{service}`"))
        };
        match answer.await {
            Ok((address, port)) => {
                let address = format!("{address}:{port}");
                let server =
                    Server::connect(&parts.url(&address, database), &address, certificates).await;
                return Ok(vec![server]);
            }
            Err(error) => failures.push(explained(&error)),
        }
    }
    bail!("{}", failures.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_in_messages_has_no_password() {
        for (url, address) in [
            ("redis://:p@ss%40@h:7/1", "h:7"),
            ("redis://h", "h"),
            (
                "redis+unix:///run/redis.sock?pass=secret",
                "/run/redis.sock",
            ),
        ] {
            assert_eq!(address_of(url), address);
        }
    }

    #[test]
    fn password_that_is_not_encoded_is_an_error_that_does_not_show_it() {
        for url in [
            "redis://:pa/ss@h",
            "redis-cluster://:pa?ss@h",
            "redis-sentinel://u:pa#ss@h/s",
        ] {
            let error = check_encoding(url).unwrap_err().to_string();
            assert!(
                error.contains("percent-encode") && !error.contains("pa/"),
                "{error}"
            );
        }
        check_encoding("redis+unix:///run/redis.sock?pass=p@ss").unwrap();
        check_encoding("redis://:pa%2Fss@h/1").unwrap();
    }

    #[test]
    fn url_of_several_servers_is_taken_apart() {
        let parts = Parts::parse(
            "redis-sentinel://u:p@a:1,b/limits/2?sentinel_password=s",
            "redis",
        );
        let parts = parts.unwrap();
        assert_eq!((parts.login, &parts.hosts[..]), ("u:p@", &["a:1", "b"][..]));
        assert_eq!(
            (parts.path, parts.query),
            ("limits/2", "sentinel_password=s")
        );
        assert_eq!(parts.url("b:6379", "2"), "redis://u:p@b:6379/2");
        assert!(Parts::parse("redis-cluster:///", "redis").is_err());
    }
}

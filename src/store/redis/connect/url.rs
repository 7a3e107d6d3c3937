//! URLs: one string says which servers there are, and how to reach them.
//!
//! redis-rs reads the URL of one server. A URL with several hosts is taken apart, and each host put into a URL of
//! one server.

use std::fmt;
use std::sync::Arc;

use redis::{Client, ConnectionInfo};

use super::super::tls::{self, Tls};
use super::Connect;
use super::Provider;
#[cfg(feature = "sentinel")]
use super::sentinel::Sentinels;
use super::server::Server;
use crate::nouns::ConfigError;

/// What a URL names, and how errors and events call it.
pub(in crate::store::redis) struct Target {
    pub(in crate::store::redis) topology: Topology,
    pub(in crate::store::redis) name: String,
}

pub(in crate::store::redis) enum Topology {
    /// One server decides at a time.
    One(Arc<dyn Connect>),
    /// The nodes of a cluster decide, each for its slots. These tell which nodes there are.
    #[cfg(feature = "cluster")]
    Cluster(Vec<Server>),
}

impl Target {
    pub(in crate::store::redis) fn parse(
        url: &str,
        tls: Option<Tls>,
        credentials: Option<Provider>,
    ) -> Result<Self, ConfigError> {
        match scheme(url) {
            "redis-sentinel" | "rediss-sentinel" => sentinels(url, tls, credentials),
            "redis-cluster" | "rediss-cluster" => cluster(url, tls, credentials),
            _ => {
                let server = Server::new(&server(url, tls)?, credentials);
                Ok(Self { name: server.address(), topology: Topology::One(Arc::new(server)) })
            }
        }
    }
}

fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// The server of a URL of one server.
fn server(url: &str, tls: Option<Tls>) -> Result<ConnectionInfo, ConfigError> {
    let client = match redis::parse_redis_url(url) {
        Some(parsed) if ["rediss", "valkeys"].contains(&parsed.scheme()) => tls::client(url, tls)?,
        Some(_) if tls.is_some() => {
            return Err(ConfigError::new(
                "`tls` is set, and the Redis URL is not a TLS URL; write `rediss://`, or remove `tls`",
            ));
        }
        _ => Client::open(url).map_err(|error| unusable_url(&error))?,
    };
    Ok(client.get_connection_info().clone())
}

/// An error without the URL in its message, because a URL can contain a password.
pub(in crate::store::redis) fn unusable_url(error: &dyn fmt::Display) -> ConfigError {
    ConfigError::new(format!(
        "the Redis URL cannot be used: {error}; write \
         redis://[user:password@]host[:port][/database], or rediss:// for TLS"
    ))
}

#[cfg(not(feature = "sentinel"))]
fn sentinels(_: &str, _: Option<Tls>, _: Option<Provider>) -> Result<Target, ConfigError> {
    Err(ConfigError::new(
        "the Redis URL names sentinels: enable the feature `sentinel` of the crate `tollgate`",
    ))
}

/// `redis-sentinel://[user:password@]host[:port],host[:port]/service[/database][?setting=value&...]`
#[cfg(feature = "sentinel")]
fn sentinels(
    url: &str,
    tls: Option<Tls>,
    credentials: Option<Provider>,
) -> Result<Target, ConfigError> {
    const PORT: &str = "26379";
    let wrong = |why: &str| {
        ConfigError::new(format!(
            "the Redis URL {why}; write redis-sentinel://[user:password@]host[:port],host[:port]/service[/database]"
        ))
    };
    let parts = Parts::of(url).ok_or_else(|| wrong("names no sentinel and no service"))?;
    let single = if parts.scheme == "rediss-sentinel" { "rediss" } else { "redis" };
    let (service, database) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    if service.is_empty() {
        return Err(wrong("names no service"));
    }
    let (own, of_servers): (Vec<_>, Vec<_>) = parts
        .query
        .split('&')
        .filter(|it| !it.is_empty())
        .partition(|it| it.starts_with("sentinel_"));
    let (mut username, mut password) = ("", "");
    for setting in own {
        match setting.split_once('=') {
            Some(("sentinel_username", value)) => username = value,
            Some(("sentinel_password", value)) => password = value,
            _ => {
                return Err(wrong(
                    "has an unknown setting; use `sentinel_username` and `sentinel_password`",
                ));
            }
        }
    }
    let user_of_sentinels = match (username, password) {
        ("", "") => String::new(),
        _ => format!("{username}:{password}@"),
    };
    let query = of_servers.join("&");
    let mut sentinels = Vec::new();
    for host in parts.hosts.split(',') {
        let has_port =
            !host.ends_with(']') && host.rsplit(']').next().is_some_and(|it| it.contains(':'));
        let host = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
        let url = format!("{single}://{user_of_sentinels}{host}/");
        sentinels.push(Server::new(&server(&url, tls.clone())?, None));
    }
    // The host is that of the first sentinel until a sentinel names another.
    let host = parts.hosts.split(',').next().unwrap_or_default();
    let url = format!("{single}://{}{host}/{database}?{query}", parts.user);
    let server = Server::new(&server(&url, tls)?, credentials);
    let name = format!("the sentinels {} (service `{service}`)", parts.hosts);
    let sentinels = Sentinels::new(sentinels, service.to_owned(), server);
    Ok(Target { topology: Topology::One(Arc::new(sentinels)), name })
}

#[cfg(not(feature = "cluster"))]
fn cluster(_: &str, _: Option<Tls>, _: Option<Provider>) -> Result<Target, ConfigError> {
    Err(ConfigError::new(
        "the Redis URL names a cluster: enable the feature `cluster` of the crate `tollgate`",
    ))
}

/// `redis-cluster://[user:password@]host[:port],host[:port][?setting=value&...]`
#[cfg(feature = "cluster")]
fn cluster(
    url: &str,
    tls: Option<Tls>,
    credentials: Option<Provider>,
) -> Result<Target, ConfigError> {
    let wrong = |why: &str| {
        ConfigError::new(format!(
            "the Redis URL {why}; write redis-cluster://[user:password@]host[:port],host[:port]"
        ))
    };
    let parts = Parts::of(url).ok_or_else(|| wrong("names no node of a cluster"))?;
    if !parts.path.is_empty() {
        return Err(wrong("names a database, and a cluster has one only"));
    }
    let single = if parts.scheme == "rediss-cluster" { "rediss" } else { "redis" };
    let mut nodes = Vec::new();
    for host in parts.hosts.split(',') {
        let url = format!("{single}://{}{host}/?{}", parts.user, parts.query);
        nodes.push(Server::new(&server(&url, tls.clone())?, credentials.clone()));
    }
    let name = format!("the cluster {}", parts.hosts);
    Ok(Target { topology: Topology::Cluster(nodes), name })
}

/// The parts of a URL with several hosts.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
struct Parts<'a> {
    scheme: &'a str,
    /// With the `@`, if there is one.
    user: &'a str,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

#[cfg(any(feature = "cluster", feature = "sentinel"))]
impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        (!hosts.is_empty()).then_some(Self { scheme, user, hosts, path, query })
    }
}

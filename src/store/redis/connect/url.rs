//! URLs. One string says which servers there are, and how to reach them.
//!
//! redis-rs reads the URL of one server. A URL with several hosts is taken apart, and each host put
//! into a URL of one server.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use redis::{Client, ConnectionInfo};

use super::super::tls::{self, Tls};
use super::hosts::Hosts;
use super::sentinel::Sentinels;
use super::server::Server;
use super::{Endpoint, Provider};
use crate::units::ConfigError;

/// The servers that decide.
pub(in crate::store::redis) enum Topology {
    /// One server decides at a time.
    One(Arc<Endpoint>),
    /// The nodes of a cluster decide, each for its slots. These tell which nodes there are.
    Cluster(Vec<Server>),
}

/// The servers that a URL names, and how errors and events call them.
pub(in crate::store::redis) fn parse(
    url: &str,
    tls: Option<Tls>,
    credentials: Option<Provider>,
) -> Result<(Topology, String), ConfigError> {
    check_encoding(url)?;
    match scheme(url) {
        "redis-sentinel" | "rediss-sentinel" => sentinels(url, tls, credentials),
        "redis-cluster" | "rediss-cluster" => cluster(url, tls, credentials),
        _ => {
            let server = Server::new(&server(url, tls)?, credentials);
            let name = server.address();
            Ok((Topology::One(Endpoint::Server(server).into()), name))
        }
    }
}

fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// Rejects a URL with a raw `/`, `?` or `#` in its password. Such a mark ends the authority, and
/// the start of the password would be taken for a port, which messages contain.
fn check_encoding(url: &str) -> Result<(), ConfigError> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let after_authority = rest.find(['/', '?', '#']).map_or("", |end| &rest[end..]);
    // The query of a socket's URL contains the password.
    let is_socket = scheme(url).ends_with("unix");
    if after_authority.contains('@') && !is_socket {
        Err(not_encoded())
    } else {
        Ok(())
    }
}

fn not_encoded() -> ConfigError {
    ConfigError::new(
        "the user or the password in the Redis URL contains `/`, `?`, `#`, `:` or `@`; \
         percent-encode it, such as %23 for `#`",
    )
}

/// The server of a URL of one server.
fn server(url: &str, tls: Option<Tls>) -> Result<ConnectionInfo, ConfigError> {
    if url.is_empty() {
        return Err(ConfigError::new(
            "the Redis URL is empty; pass one, such as `redis://localhost:6379`. If it comes from \
             an environment variable, set it",
        ));
    }
    if !url.contains("://") {
        return Err(ConfigError::new(
            "the Redis URL has no scheme; put `redis://` in front of it, as in \
             `redis://localhost:6379`",
        ));
    }
    let parsed = redis::parse_redis_url(url);
    if let Some(parsed) = &parsed {
        check_settings(parsed.scheme(), parsed.query_pairs().map(|(name, _)| name))?;
    }
    let client = match parsed {
        Some(parsed) if ["rediss", "valkeys"].contains(&parsed.scheme()) => {
            tls::client(url, tls, unusable_url)?
        }
        Some(_) if tls.is_some() => {
            return Err(ConfigError::new(
                "`tls` is set, and the Redis URL is not a TLS URL; write `rediss://`, or remove \
                 `tls`",
            ));
        }
        _ => Client::open(url).map_err(|error| unusable_url(&error))?,
    };
    Ok(client.get_connection_info().clone())
}

/// Rejects settings that redis-rs would ignore. The message does not repeat them, because after a
/// raw `&` in the password of a socket's URL, the name of a setting is the rest of the password.
fn check_settings<'a>(
    scheme: &str,
    mut names: impl Iterator<Item = Cow<'a, str>>,
) -> Result<(), ConfigError> {
    let (known, advice): (&[&str], _) = if scheme.ends_with("unix") {
        (
            &["db", "user", "pass", "protocol"],
            "a socket's URL has `db`, `user`, `pass` and `protocol`; write %26 for an `&` in a \
             password",
        )
    } else {
        (
            &["protocol"],
            "after `?`, only `protocol` is known; the database is the path, as in \
             redis://localhost/1",
        )
    };
    if names.all(|name| known.contains(&&*name)) {
        Ok(())
    } else {
        Err(ConfigError::new(format!(
            "the Redis URL has an unknown setting; {advice}"
        )))
    }
}

/// An error without the URL in its message, because a URL can contain a password.
fn unusable_url(error: &dyn fmt::Display) -> ConfigError {
    ConfigError::new(format!(
        "the Redis URL cannot be used: {error}; write \
         redis://[user:password@]host[:port][/database] with a port up to 65535, rediss:// for \
         TLS, or another form that `RedisStoreBuilder::url` lists"
    ))
}

/// `redis-sentinel://[user:password@]host[:port],host[:port]/service[/database]`, and settings as
/// in `?setting=value&...`.
fn sentinels(
    url: &str,
    tls: Option<Tls>,
    credentials: Option<Provider>,
) -> Result<(Topology, String), ConfigError> {
    const PORT: u16 = 26379;
    let wrong = |why: &str| {
        ConfigError::new(format!(
            "the Redis URL {why}; write \
             redis-sentinel://[user:password@]host[:port],host[:port]/service[/database]"
        ))
    };
    let hosts = Hosts::parse(url).ok_or_else(|| wrong("names no sentinels after one user"))?;
    let (service, database) = hosts.path.split_once('/').unwrap_or((hosts.path, ""));
    if service.is_empty() {
        return Err(wrong("names no service"));
    }
    let (login, settings) = sentinel_login(hosts.query).ok_or_else(|| {
        wrong("has an unknown setting; use `sentinel_username` and `sentinel_password`")
    })?;
    // One colon stands between the user and the password, and the `@` is the last.
    if login.contains(['/', '?', '#']) || login.matches([':', '@']).count() > 2 {
        return Err(not_encoded());
    }
    let sentinels = hosts.each(PORT).map(|host| {
        let info = server(&format!("{}://{login}{host}/", hosts.scheme), tls.clone())?;
        Ok(Server::new(&info, None))
    });
    let sentinels = sentinels.collect::<Result<_, ConfigError>>()?;
    // Any host will do, because the sentinels name another.
    let url = format!(
        "{}://{}localhost/{database}?{settings}",
        hosts.scheme, hosts.user
    );
    let server = Server::new(&server(&url, tls.clone())?, credentials);
    let name = format!("the sentinels {} (service `{service}`)", hosts.all);
    let sentinels = Sentinels::new(sentinels, service, server);
    Ok((Topology::One(Endpoint::Sentinels(sentinels).into()), name))
}

/// The user and the password of sentinels, as in a URL, and the other settings. `None` if one is
/// unknown.
fn sentinel_login(query: &str) -> Option<(String, String)> {
    let settings = query.split('&').filter(|setting| !setting.is_empty());
    let (own, others): (Vec<_>, Vec<_>) =
        settings.partition(|setting| setting.starts_with("sentinel_"));
    let mut username = "";
    let mut password = "";
    for setting in own {
        match setting.split_once('=')? {
            ("sentinel_username", value) => username = value,
            ("sentinel_password", value) => password = value,
            _ => return None,
        }
    }
    let has_login = !(username.is_empty() && password.is_empty());
    let login = if has_login {
        format!("{username}:{password}@")
    } else {
        String::new()
    };
    Some((login, others.join("&")))
}

/// `redis-cluster://[user:password@]host[:port],host[:port][?setting=value&...]`
fn cluster(
    url: &str,
    tls: Option<Tls>,
    credentials: Option<Provider>,
) -> Result<(Topology, String), ConfigError> {
    const PORT: u16 = 6379;
    let wrong = |why: &str| {
        ConfigError::new(format!(
            "the Redis URL {why}; write redis-cluster://[user:password@]host[:port],host[:port]"
        ))
    };
    let hosts =
        Hosts::parse(url).ok_or_else(|| wrong("names no nodes of a cluster after one user"))?;
    if !hosts.path.is_empty() {
        return Err(wrong("names a database, and a cluster has one only"));
    }
    let nodes = hosts.each(PORT).map(|host| {
        let url = format!("{}://{}{host}/?{}", hosts.scheme, hosts.user, hosts.query);
        Ok(Server::new(
            &server(&url, tls.clone())?,
            credentials.clone(),
        ))
    });
    let nodes = nodes.collect::<Result<_, ConfigError>>()?;
    let name = format!("the cluster {}", hosts.all);
    Ok((Topology::Cluster(nodes), name))
}

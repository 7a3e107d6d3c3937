//! The validation of a new connection: the server answers, loads the script, and permits the user
//! all commands of the script.

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};

use super::terms::Terms;
use super::{call, script, tls};

/// Temporary errors of a write. They do not keep a service from starting.
const PASSING: [&str; 3] = ["OOM", "MISCONF", "NOREPLICAS"];

/// Validates a connection. The error says what is wrong and what to do.
pub(super) async fn greet(
    connection: &mut MultiplexedConnection,
    terms: &Terms,
) -> Result<(), String> {
    let prefix = &terms.prefix;
    // First and alone: a server that requires a password closes the connection on a large command.
    let in_words = |error| match terms.is_of_cluster() && call::is_of_cluster(&error) {
        true => call::brief(&error),
        false => in_words(&error, prefix),
    };
    redis::cmd("PING")
        .query_async::<()>(connection)
        .await
        .map_err(in_words)?;
    if let Some(name) = terms.client_name.as_deref() {
        let mut command = redis::cmd("CLIENT");
        command.arg("SETNAME").arg(name);
        command
            .query_async::<()>(connection)
            .await
            .map_err(in_words)?;
    }
    let failed = probe(connection, terms).await.map_err(in_words)?;
    let mut failed = failed.chunks_exact(2).filter_map(|pair| match pair {
        [command, error] if !PASSING.iter().any(|code| error.contains(code)) => {
            Some((command, error))
        }
        _ => None,
    });
    match failed.next() {
        None => {}
        Some((_, error)) if error.contains("READONLY") => {
            return Err("this server is a read-only replica; use the primary".to_owned());
        }
        Some((command, error)) => {
            let rule = missing_rule(error, prefix, Some(&command.to_lowercase()));
            return Err(format!(
                "this Redis user may not run `{command}` on keys that start with `{prefix}:` \
                 ({error}); add `{rule}` to the ACL of this Redis user"
            ));
        }
    }
    call::load(connection).await.map_err(in_words)?;
    call::dry_run(connection, terms).await.map_err(in_words)
}

/// Runs each command that the script needs. Returns those that failed, each with its error.
async fn probe(connection: &mut MultiplexedConnection, terms: &Terms) -> RedisResult<Vec<String>> {
    let prefix = &terms.prefix;
    let alone = (!terms.is_of_cluster()).then(|| format!("{prefix}:{{probe}}"));
    let of_cluster = terms
        .tags
        .iter()
        .map(|tag| format!("{prefix}:{{{tag}}}{{probe}}"));
    for key in alone.into_iter().chain(of_cluster) {
        let mut probe = redis::cmd("EVAL");
        probe.arg(script::PROBE).arg(1).arg(key);
        match probe.query_async(connection).await {
            // Another node has the slot of that key, or none has, or it is moving. That says
            // nothing about this node. The rights of a user are those on this node.
            Err(error) if call::is_of_cluster(&error) && terms.is_of_cluster() => {}
            answer => return answer,
        }
    }
    // This node serves none of these slots at the moment. Its calls say so themselves.
    Ok(Vec::new())
}

/// The reason and the advice for a failed connection, on one line.
pub(super) fn in_words(error: &RedisError, prefix: &str) -> String {
    use ServerErrorKind::{Ask, ClusterDown, CrossSlot, Moved, NoPerm};

    if let Some(failure) = tls::failure(error) {
        return failure;
    }
    match error.kind() {
        ErrorKind::Parse => {
            "the server does not speak the Redis protocol; check the URL's host and port".to_owned()
        }
        ErrorKind::Server(CrossSlot | ClusterDown | Moved | Ask) => format!(
            "this server is part of a Redis Cluster; write redis-cluster:// in the Redis URL ({})",
            call::brief(error)
        ),
        _ => {
            let text = call::brief(error);
            if error.kind() == ErrorKind::Server(NoPerm) {
                let rule = missing_rule(&text, prefix, quoted(&text));
                return format!("{text}; add `{rule}` to the ACL of this Redis user");
            }
            let advice = match error.kind() {
                ErrorKind::Io => {
                    "; check that Redis runs there, and the URL's host, port and scheme \
                     (`rediss://` is TLS)"
                }
                ErrorKind::AuthenticationFailed => {
                    "; check the user and the password, and write a password alone in the URL as \
                     redis://:password@host"
                }
                _ if error.code() == Some("NOAUTH") => {
                    "; the URL has no password: write redis://:password@host, or \
                     redis://user:password@host"
                }
                _ => "",
            };
            format!("{text}{advice}").replace('\n', " ")
        }
    }
}

/// The ACL rule that an error is for want of: the right to keys, to channels, or to a command.
fn missing_rule(error: &str, prefix: &str, command: Option<&str>) -> String {
    match command {
        Some(command) if !error.contains(" key") => format!("+{command}"),
        _ if error.contains(" channel") => format!("&{prefix}:*"),
        _ => format!("~{prefix}:*"),
    }
}

/// The command that an error names in quotes, such as `script|load`.
fn quoted(text: &str) -> Option<&str> {
    let command = text.split('\'').nth(1)?;
    let is_name = |byte: u8| byte.is_ascii_lowercase() || b"|-_".contains(&byte);
    command.bytes().all(is_name).then_some(command)
}

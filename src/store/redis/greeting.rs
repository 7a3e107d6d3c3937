//! The validation of a new connection. The server answers, loads the script, and permits the user
//! all commands of the script.

use std::hash::{BuildHasher, RandomState};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind};

use super::terms::Terms;
use super::{call, script, tls};

/// Temporary errors of a write. They do not keep a service from starting.
const PASSING: [&str; 3] = ["OOM", "MISCONF", "NOREPLICAS"];

/// The keys that look for another key. If a second server has half of the keys, one of 2^32
/// connections does not notice it. If it has a tenth of them, one of 30 does not.
const OTHER_KEYS: usize = 32;

/// Validates a connection. The error says what is wrong and what to do.
pub(super) async fn greet(
    connection: &mut MultiplexedConnection,
    terms: &Terms,
) -> Result<(), String> {
    // First and alone, because a server that requires a password closes the connection on a large
    // command.
    let ping = redis::cmd("PING").query_async::<()>(connection).await;
    explained(ping, terms)?;
    if let Some(name) = terms.client_name.as_deref() {
        let mut command = redis::cmd("CLIENT");
        command.arg("SETNAME").arg(name);
        let named = command.query_async(connection).await;
        explained(call::known(named), terms)?;
    }
    check_rights(connection, terms).await?;
    if !terms.is_of_cluster() {
        check_is_one_server(connection, terms).await?;
    }
    load(connection, terms).await?;
    explained(call::dry_run(connection, terms).await, terms)
}

/// An answer, or its error in words.
fn explained<T>(answer: RedisResult<T>, terms: &Terms) -> Result<T, String> {
    answer.map_err(
        |error| match terms.is_of_cluster() && call::is_of_cluster(&error) {
            true => call::brief(&error),
            false => in_words(&error, &terms.prefix),
        },
    )
}

/// Checks that the user may run each command that the script needs.
async fn check_rights(connection: &mut MultiplexedConnection, terms: &Terms) -> Result<(), String> {
    let failed = explained(failed_commands(connection, terms).await, terms)?;
    let mut failed = failed.chunks_exact(2).filter_map(|pair| match pair {
        [command, error] if !PASSING.iter().any(|code| error.contains(code)) => {
            Some((command, error))
        }
        _ => None,
    });
    let Some((command, error)) = failed.next() else {
        return Ok(());
    };
    if error.contains("READONLY") {
        return Err("this server is a read-only replica; use the primary".to_owned());
    }
    let prefix = &terms.prefix;
    let rule = missing_rule(error, prefix, Some(&command.to_lowercase()));
    Err(format!(
        "this Redis user may not run `{command}` on keys that start with `{prefix}:` ({error}); \
         add `{rule}` to the ACL of this Redis user"
    ))
}

/// Checks that an address is one server. A proxy that spreads keys over several would put budgets
/// of one call where no other call finds them.
async fn check_is_one_server(
    connection: &mut MultiplexedConnection,
    terms: &Terms,
) -> Result<(), String> {
    match explained(is_one_server(connection, terms).await, terms)? {
        true => Ok(()),
        false => Err(
            "this address leads to several servers, such as a proxy that spreads keys over them, \
             and budgets of one call would be on servers where others do not find them; use the \
             address of one Redis server, or redis-cluster:// with nodes of a Redis Cluster"
                .to_owned(),
        ),
    }
}

async fn load(connection: &mut MultiplexedConnection, terms: &Terms) -> Result<(), String> {
    match call::load(connection).await {
        Err(error) if error.is_connection_dropped() => Err(format!(
            "the connection was closed at SCRIPT LOAD ({}), as by a proxy that does not know the \
             command; use the address of Redis itself",
            call::brief(&error)
        )),
        answer => explained(answer, terms),
    }
}

/// Returns whether the calls of all keys reach the same server. What is written by a call with one
/// key is found by calls with other keys in front.
async fn is_one_server(connection: &mut MultiplexedConnection, terms: &Terms) -> RedisResult<bool> {
    // A new key, so that others who connect do not disturb.
    let id = RandomState::new().hash_one(&terms.prefix);
    let key = |number: usize| format!("{}:{{probe-{id:016x}-{number}}}", terms.prefix);
    let written = key(0);
    let write_or_delete = eval(&[&written]);
    let mut calls = redis::pipe();
    calls.ignore_errors().add_command(write_or_delete.clone());
    for number in 1..=OTHER_KEYS {
        calls.add_command(eval(&[&key(number), &written]));
    }
    calls.add_command(write_or_delete);
    let answers: Vec<RedisResult<i64>> = calls.query_async(connection).await?;
    let mut answers = answers.into_iter();
    if !matches!(answers.next(), Some(Ok(_))) {
        // A server that does not write at the moment is asked again by the next connection.
        return Ok(true);
    }
    let found = answers.collect::<RedisResult<Vec<_>>>()?;
    Ok(found.iter().all(|found| *found == 1))
}

/// Runs each command that the script needs. Returns those that failed, each with its error.
async fn failed_commands(
    connection: &mut MultiplexedConnection,
    terms: &Terms,
) -> RedisResult<Vec<String>> {
    let prefix = &terms.prefix;
    let alone = (!terms.is_of_cluster()).then(|| format!("{prefix}:{{probe}}"));
    let of_cluster = terms
        .tags
        .iter()
        .map(|tag| format!("{prefix}:{{{tag}}}{{probe}}"));
    for key in alone.into_iter().chain(of_cluster) {
        let mut eval = redis::cmd("EVAL");
        eval.arg(script::RIGHTS).arg(1).arg(key);
        match eval.query_async(connection).await {
            // Another node has the slot of that key, or none has, or it is moving. That says
            // nothing about this node. The rights of a user are those on this node.
            Err(error) if call::is_of_cluster(&error) && terms.is_of_cluster() => {}
            answer => return answer,
        }
    }
    // This node serves none of these slots at the moment. Its calls say so themselves.
    Ok(Vec::new())
}

fn eval(keys: &[&str]) -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(script::ONE_SERVER).arg(keys.len()).arg(keys);
    call
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
                // Valkey 9.1 and later can run without its module for Lua.
                _ if text.contains("Could not find scripting engine") => {
                    "; this server runs without Lua, in which every decision is made: load its Lua \
                     module, or use another server"
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

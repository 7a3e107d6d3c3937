//! What a new connection is asked before checks leave on it: does the server talk to us, know the
//! script, and let this user run what the script needs?

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::{call, script, tls};

/// Errors of a write that pass by themselves. A service may start meanwhile.
const PASSING: [&str; 3] = ["OOM", "MISCONF", "NOREPLICAS"];

/// Asks, or says what is wrong and what to do.
pub(super) async fn greet(
    connection: &mut MultiplexedConnection,
    prefix: &str,
) -> Result<(), String> {
    // By itself, and first: without a password a server closes the connection on a large command.
    redis::cmd("PING").query_async::<()>(connection).await.map_err(|error| in_words(&error))?;
    let mut probe = redis::cmd("EVAL");
    probe.arg(script::PROBE).arg(1).arg(format!("{prefix}:{{probe}}"));
    let failed: Vec<String> =
        probe.query_async(connection).await.map_err(|error| in_words(&error))?;
    let mut failed = failed.chunks_exact(2).filter_map(|pair| match pair {
        [command, error] if !PASSING.iter().any(|code| error.contains(code)) => {
            Some((command, error))
        }
        _ => None,
    });
    match failed.next() {
        None => {}
        Some((_, error)) if error.contains("READONLY") => {
            return Err("this server is a read-only replica: name the primary".to_owned());
        }
        Some((command, error)) => {
            return Err(format!(
                "this Redis user may not run `{command}` on keys that start with `{prefix}:` \
                 ({error}); RedisStore's documentation lists the rights that it needs"
            ));
        }
    }
    call::load(connection).await.map_err(|error| in_words(&error))?;
    call::dry_run(connection, prefix).await.map_err(|error| in_words(&error))
}

/// Why there is no connection to work with, on one line.
pub(super) fn in_words(error: &RedisError) -> String {
    use ServerErrorKind::{Ask, ClusterDown, CrossSlot, Moved, NoPerm};

    if let Some(failure) = tls::failure(error) {
        return failure;
    }
    match error.kind() {
        ErrorKind::Parse => "what answers there does not speak Redis's protocol".to_owned(),
        ErrorKind::Server(CrossSlot | ClusterDown | Moved | Ask) => format!(
            "this server is in cluster mode, and Redis Cluster is not supported: name a server \
             that is not part of a cluster ({})",
            call::brief(error)
        ),
        _ => {
            let advice = match error.kind() {
                ErrorKind::Io => {
                    "; check that Redis runs there, and the URL's host, port and scheme \
                     (`rediss://` is TLS)"
                }
                ErrorKind::AuthenticationFailed => {
                    "; check the URL's user and password, and write a password alone as \
                     redis://:password@host"
                }
                ErrorKind::Server(NoPerm) => {
                    "; RedisStore's documentation lists the rights that its user needs"
                }
                _ if error.code() == Some("NOAUTH") => {
                    "; the URL has no password: write redis://:password@host, or \
                     redis://user:password@host"
                }
                _ => "",
            };
            format!("{}{advice}", call::brief(error)).replace('\n', " ")
        }
    }
}

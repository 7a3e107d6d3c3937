//! One call of the script.

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind};

use super::batch::Batch;
use super::{script, wire};
use crate::decision::Micros;

/// Bytes of a batch's arguments besides its keys: the script's hash, numbers, the body.
const OTHER_BYTES: usize = 1024;

/// The command for a batch. `time` is the time to decide by, if it is not the server's own.
pub(super) fn command(batch: &Batch, time: Option<Micros>) -> Cmd {
    let keys = batch.keys();
    let mut call = Cmd::with_capacity(keys.len() + 5, batch.key_bytes() + OTHER_BYTES);
    call.arg("EVALSHA").arg(script::hash()).arg(keys.len());
    for key in keys {
        call.arg(key);
    }
    call.arg(wire::time(time)).arg(batch.body());
    call
}

/// Runs it. A server that does not know the script learns it.
pub(super) async fn run(
    by_hash: Cmd,
    mut connection: MultiplexedConnection,
) -> RedisResult<Vec<i64>> {
    match by_hash.query_async(&mut connection).await {
        // The script was not there, so nothing was charged. It is loaded rather than sent with
        // EVAL: newer servers forget scripts that came with EVAL.
        Err(error) if is_no_script(&error) => {
            load(&mut connection).await?;
        }
        answer => return answer,
    }
    match by_hash.query_async(&mut connection).await {
        // It was flushed in between.
        Err(error) if is_no_script(&error) => {
            with_code(&by_hash).query_async(&mut connection).await
        }
        answer => answer,
    }
}

/// Asks whether a server talks to us, and makes the script known to it.
pub(super) async fn greet(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    // By itself: a server that wants a password refuses what is as long as the script unheard.
    redis::cmd("PING").query_async::<()>(connection).await?;
    load(connection).await
}

async fn load(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    redis::cmd("SCRIPT").arg("LOAD").arg(script::code()).query_async(connection).await
}

/// The same call with the script itself in place of its hash.
fn with_code(by_hash: &Cmd) -> Cmd {
    let mut call = redis::cmd("EVAL");
    call.arg(script::code());
    for argument in by_hash.args_iter().skip(2) {
        if let Arg::Simple(argument) = argument {
            call.arg(argument);
        }
    }
    call
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether another connection may do better: this one is broken, or leads to a server that is no
/// longer the one to ask.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || is_read_only_in_script(error)
        || matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                    | ServerErrorKind::MasterDown
                    | ServerErrorKind::BusyLoading
            )
        )
}

/// Whether the script could not write because the server became a replica, as Redis before 7 says
/// it: within an error of the script's own.
fn is_read_only_in_script(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("-READONLY "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(reply: &[u8]) -> bool {
        let error = redis::parse_redis_value(reply).and_then(redis::Value::extract_error);
        ends_connection(&error.unwrap_err())
    }

    #[test]
    fn a_server_that_became_a_replica_is_left_however_old_it_is() {
        assert!(ends(b"-READONLY You can't write against a read only replica.\r\n"));
        assert!(ends(
            b"-ERR Error running script (call to f_50142d): @user_script:1: @user_script: 1: \
              -READONLY You can't write against a read only replica.\r\n"
        ));
        assert!(!ends(b"-ERR Error running script (call to f_50142d): @user_script:1: no\r\n"));
    }
}

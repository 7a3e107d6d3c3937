//! One call of the script.

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind, Value};

use super::batch::Batch;
use super::terms::Terms;
use super::{script, wire};
use crate::units::Timestamp;

/// Bytes of the other arguments: the script's hash, a number, a time.
const OTHER_BYTES: usize = 96;

/// The command for a batch, with the number of the call. `time` is the time to decide by. Default:
/// the server's own.
pub(super) fn command(number: u16, batch: &Batch, time: Option<Timestamp>) -> Cmd {
    match batch.lone_request(number, time) {
        Some((key, request)) => by_hash([key].into_iter(), key.len(), &request, time),
        None => by_hash(
            batch.keys.iter(),
            batch.keys.bytes(),
            &batch.body(number, time),
            time,
        ),
    }
}

fn by_hash<'a>(
    keys: impl ExactSizeIterator<Item = &'a str>,
    key_bytes: usize,
    request: &[u8],
    time: Option<Timestamp>,
) -> Cmd {
    let mut call = Cmd::with_capacity(keys.len() + 5, key_bytes + request.len() + OTHER_BYTES);
    call.arg("EVALSHA").arg(script::hash()).arg(keys.len());
    for key in keys {
        call.arg(key);
    }
    call.arg(request).arg(time.map(Timestamp::as_micros));
    call
}

/// Runs the command of a numbered call. Loads the script if the server does not know it.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` has room for its arguments twice"
)]
pub(super) fn execute(
    number: u16,
    by_hash: Cmd,
    mut connection: MultiplexedConnection,
    is_asking: bool,
) -> impl Future<Output = RedisResult<Vec<i64>>> + Send {
    async move {
        let reply = match is_asking {
            false => by_hash.query_async(&mut connection).await,
            true => Box::pin(send(&by_hash, &mut connection, is_asking)).await,
        };
        let reply = match reply {
            // Nothing was charged. In a box of its own, because it happens once, and the future of
            // each call would have room for it.
            Err(error) if is_no_script(&error) => {
                Box::pin(load_and_send(&by_hash, &mut connection, is_asking)).await
            }
            reply => reply,
        };
        verdicts(number, reply?)
    }
}

/// Loads the script and sends a command, in one round trip, because with two, a distant server
/// could not answer within the deadline. The script is loaded rather than sent with EVAL, because
/// newer servers forget scripts of EVAL.
///
/// If it was flushed in between, or a proxy does not know how to load it, it is sent all the same.
async fn load_and_send(
    by_hash: &Cmd,
    connection: &mut MultiplexedConnection,
    is_asking: bool,
) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.add_command(loading()).ignore_errors();
    if is_asking {
        both.cmd("ASKING").ignore();
    }
    both.add_command(by_hash.clone());
    let (loaded, reply): (RedisResult<()>, RedisResult<Value>) =
        both.query_async(connection).await?;
    match (loaded, reply) {
        (Err(reason), Err(error)) if is_no_script(&error) && is_forbidden(&reason) => Err(reason),
        (_, Err(error)) if is_no_script(&error) => {
            send(&with_code(by_hash), connection, is_asking).await
        }
        (_, reply) => reply,
    }
}

/// The numbers of the reply to a call, as a list or packed, without the call's own. A reply of
/// another type is not described, because it may have any length.
fn verdicts(call: u16, reply: Value) -> RedisResult<Vec<i64>> {
    match reply {
        Value::Array(values) => behind_number(
            call,
            values.into_iter().map(|value| match value {
                Value::Int(number) => Ok(number),
                _ => Err(wrong_type()),
            }),
        ),
        Value::BulkString(packed) => {
            let numbers = wire::unpack(&packed).ok_or_else(wrong_type)?;
            behind_number(call, numbers.map(Ok))
        }
        _ => Err(wrong_type()),
    }
}

/// The numbers behind the first, which is the number of the call. After a lost reply, each call
/// would get the reply to the next one, and only this number differs.
fn behind_number(
    call: u16,
    mut numbers: impl Iterator<Item = RedisResult<i64>>,
) -> RedisResult<Vec<i64>> {
    if numbers.next().transpose()? != Some(call.into()) {
        let reason = "the reply is to another call";
        return Err((ErrorKind::UnexpectedReturnType, reason).into());
    }
    numbers.collect()
}

/// Sends a command. A node of a cluster that imports a slot serves its keys to a command that is
/// `asking`.
pub(super) async fn send<T: FromRedisValue>(
    command: &Cmd,
    connection: &mut MultiplexedConnection,
    is_asking: bool,
) -> RedisResult<T> {
    if !is_asking {
        return command.query_async(connection).await;
    }
    // The two must follow each other on the connection.
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(command.clone());
    let (reply,) = both.query_async(connection).await.map_err(of_call)?;
    Ok(reply)
}

/// The error of the call itself, which is the last of its pipeline.
fn of_call(error: RedisError) -> RedisError {
    let errors = error.clone().into_server_errors();
    let last = errors.as_ref().and_then(|errors| errors.last());
    last.map_or(error, |(_, last)| RedisError::from(last.clone()))
}

fn wrong_type() -> RedisError {
    (
        ErrorKind::UnexpectedReturnType,
        "the reply is not a list of integers",
    )
        .into()
}

/// Returns whether a reply seems to belong to another call.
pub(super) fn is_out_of_step(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedReturnType | ErrorKind::Parse
    )
}

/// Runs the script without a check. Where no cluster is expected, it gets two keys in two slots, so
/// that a server in cluster mode answers with an error.
pub(super) async fn dry_run(
    connection: &mut MultiplexedConnection,
    terms: &Terms,
) -> RedisResult<()> {
    let tags: &[_] = if terms.is_of_cluster() {
        &[]
    } else {
        &["{a}", "{b}"]
    };
    let keys: Vec<_> = tags
        .iter()
        .map(|tag| format!("{}:{tag}:probe", terms.prefix))
        .collect();
    let bytes = keys.iter().map(String::len).sum();
    let body = wire::Body::new(0, std::iter::empty(), None).into_bytes();
    let call = by_hash(keys.iter().map(String::as_str), bytes, &body, None);
    match call.query_async(connection).await {
        // The script was flushed just now. So the user may run it by its hash, and each call loads
        // it when it has to.
        Err(error) if is_no_script(&error) => with_code(&call).query_async(connection).await,
        answer => answer,
    }
}

/// Loads the script. A server or a proxy that does not know how may still run it, because `EVAL`
/// has the whole script, and the server keeps it.
pub(super) async fn load(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    known(loading().query_async(connection).await)
}

/// The answer to a command that a service can do without. Only a missing right is an error that the
/// server's operator can mend; otherwise, a proxy may not know the command.
pub(super) fn known(answer: RedisResult<()>) -> RedisResult<()> {
    match answer {
        Err(error) if is_of_server(&error) && !is_forbidden(&error) => Ok(()),
        answer => answer,
    }
}

/// Returns whether this is the server's own answer.
pub(super) fn is_of_server(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

/// Returns whether the server's user has no right to the command.
fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
}

fn loading() -> Cmd {
    redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script::code())
        .to_owned()
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

/// The start of an error's text, because a server may send any length, and each check repeats it.
pub(super) fn brief(error: &RedisError) -> String {
    shortened(&error.to_string())
}

/// The same for an error of the script, with the files' own lines.
pub(super) fn brief_of_script(error: &RedisError) -> String {
    shortened(&script::with_files(&error.to_string()))
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 300;
    let text = text.replace(['\r', '\n'], " ");
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Why a call failed, if it did, in one word, and with the code of the server's error. No answer is
/// a timeout.
pub(super) fn failure(
    answer: Option<&RedisResult<Vec<i64>>>,
) -> Option<(&'static str, Option<&str>)> {
    match answer {
        Some(Ok(_)) => None,
        Some(Err(error)) if error.is_io_error() => Some(("io", None)),
        Some(Err(error)) if is_out_of_step(error) => Some(("invalid_reply", None)),
        Some(Err(error)) => Some(("error", error.code())),
        None => Some(("timeout", None)),
    }
}

/// The effect of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFailure {
    /// It may have been executed, in part or as a whole.
    Unknown,
    /// The server did not begin to execute it.
    NotExecuted,
    /// It was executed up to its first write, because the server does not write at the moment.
    /// Nothing was charged, and peeks can be decided.
    NotWritten,
}

/// Codes of a server that declines a call before it begins.
const NOT_EXECUTED: [&str; 10] = [
    "BUSY",
    "LOADING",
    "MASTERDOWN",
    "NOAUTH",
    "NOPERM",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "MOVED",
    "ASK",
    "TRYAGAIN",
];

/// Codes of a server that reads and does not write, for a call as a whole.
const NOT_WRITTEN: [&str; 3] = ["OOM", "MISCONF", "NOREPLICAS"];

impl CallFailure {
    pub(super) fn from_redis(error: &RedisError) -> Self {
        if has_code(error, "READONLY") {
            return Self::NotExecuted;
        }
        if NOT_WRITTEN.iter().any(|code| has_code(error, code)) {
            return Self::NotWritten;
        }
        let code = error.code().unwrap_or_default();
        // A command within the script can fail with some of these after a write.
        if NOT_EXECUTED.contains(&code) && !is_of_script(error) {
            return Self::NotExecuted;
        }
        Self::Unknown
    }
}

/// Returns whether an error has this code, itself or, as Redis before 7 answers, within an error of
/// the script.
pub(super) fn has_code(error: &RedisError, code: &str) -> bool {
    error.code() == Some(code)
        || (is_of_script(error)
            && error
                .detail()
                .is_some_and(|detail| detail.contains(&format!("-{code} "))))
}

/// Returns whether the server's user has no right to one of the keys of a call, and may have it to
/// the others.
pub(super) fn is_of_key(error: &RedisError) -> bool {
    error.code() == Some("NOPERM") && error.detail().is_some_and(|detail| detail.contains(" key"))
}

/// Returns whether the server's user has lost the right to a command of the script.
pub(super) fn is_forbidden_in_script(error: &RedisError) -> bool {
    // Redis 6 and Valkey have no code for it.
    let is_forbidden = |detail: &str| {
        detail.contains("can't run this command") || detail.contains("ACL failure in script")
    };
    is_of_script(error) && (has_code(error, "NOPERM") || error.detail().is_some_and(is_forbidden))
}

/// Returns whether the error comes from a command within the script.
fn is_of_script(error: &RedisError) -> bool {
    error
        .detail()
        .is_some_and(|detail| detail.contains("script: ") || detail.contains("script ("))
}

/// Returns whether a node of a cluster says that another has the keys, or none has.
pub(super) fn is_of_cluster(error: &RedisError) -> bool {
    ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"]
        .iter()
        .any(|code| error.code() == Some(code))
}

/// Returns whether to reconnect, because this connection is broken, or leads to a server that is no
/// longer the primary.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    let elsewhere = [
        "READONLY",
        "MASTERDOWN",
        "LOADING",
        "NOAUTH",
        "MOVED",
        "CLUSTERDOWN",
    ];
    error.is_io_error()
        || error.is_unrecoverable_error()
        || is_out_of_step(error)
        || elsewhere.iter().any(|code| has_code(error, code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(reply: &[u8]) -> RedisError {
        redis::parse_redis_value(reply)
            .and_then(redis::Value::extract_error)
            .unwrap_err()
    }

    #[test]
    fn only_the_reply_with_the_number_of_the_call_is_read() {
        let mut packed = vec![0x01, 0x02];
        packed.extend(7_i64.to_be_bytes());
        let packed = Value::BulkString(packed);
        let list = Value::Array(vec![Value::Int(0x0102), Value::Int(7)]);
        for reply in [packed, list] {
            assert_eq!(verdicts(0x0102, reply.clone()).unwrap(), [7]);
            let error = verdicts(0x0103, reply).unwrap_err();
            assert!(is_out_of_step(&error), "{error}");
        }
        for short in [Value::BulkString(vec![1]), Value::Array(Vec::new())] {
            let error = verdicts(0x0102, short).unwrap_err();
            assert!(is_out_of_step(&error), "{error}");
        }
    }

    #[test]
    fn a_server_that_became_a_replica_is_left_however_old_it_is() {
        let ends = |reply: &[u8]| ends_connection(&error(reply));
        assert!(ends(
            b"-READONLY You can't write against a read only replica.\r\n"
        ));
        assert!(ends(
            b"-ERR Error running script (call to f_50142d): @user_script:1: @user_script: 1: \
              -READONLY You can't write against a read only replica.\r\n"
        ));
        assert!(!ends(
            b"-ERR Error running script (call to f_50142d): @user_script:1: no\r\n"
        ));
    }

    #[test]
    fn errors_of_a_call_that_charged_nothing_are_known_as_such() {
        let of = |reply: &[u8]| CallFailure::from_redis(&error(reply));
        for reply in [
            &b"-READONLY You can't write against a read only replica. script: ab, on \
               @user_script:9.\r\n"[..],
            b"-BUSY Redis is busy running a script.\r\n",
            b"-LOADING Redis is loading the dataset in memory\r\n",
            b"-MASTERDOWN Link with MASTER is down\r\n",
            b"-NOAUTH Authentication required.\r\n",
            b"-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
            b"-CLUSTERDOWN Hash slot not served\r\n",
            b"-CROSSSLOT Keys in request don't hash to the same slot\r\n",
        ] {
            assert_eq!(
                of(reply),
                CallFailure::NotExecuted,
                "{}",
                String::from_utf8_lossy(reply)
            );
        }
        for reply in [
            &b"-OOM command not allowed when used memory > 'maxmemory'. script: ab, on \
               @user_script:1.\r\n"[..],
            b"-ERR Error running script (call to f_50): @user_script:1: @user_script: 1: -OOM \
              command not allowed\r\n",
            b"-MISCONF Redis is configured to save RDB snapshots. script: ab, on \
              @user_script:1.\r\n",
            b"-NOREPLICAS Not enough good replicas to write. script: ab, on @user_script:1.\r\n",
        ] {
            assert_eq!(
                of(reply),
                CallFailure::NotWritten,
                "{}",
                String::from_utf8_lossy(reply)
            );
        }
    }

    #[test]
    fn right_that_a_script_lacks_is_known_on_each_server() {
        for reply in [
            "-ERR The user executing the script can't run this command or subcommand script: ab, \
             on @user_script:1.\r\n",
            "-NOPERM no permissions script: ab, on @user_script:1.\r\n",
            "-ERR ACL failure in script: User limiter has no permissions to run the 'psetex' \
             command script: ab, on @scripts/stored.lua:56.\r\n",
        ] {
            assert!(is_forbidden_in_script(&error(reply.as_bytes())), "{reply}");
        }
    }

    #[test]
    fn an_error_within_the_script_may_come_after_a_write() {
        let of = |reply: &[u8]| CallFailure::from_redis(&error(reply));
        assert_eq!(
            of(
                b"-ERR The user executing the script can't run this command or subcommand script: \
                  ab, on @user_script:1.\r\n"
            ),
            CallFailure::Unknown
        );
        assert_eq!(
            of(b"-NOPERM no permissions script: ab, on @user_script:1.\r\n"),
            CallFailure::Unknown
        );
        assert_eq!(
            of(b"-ERR Error running script (call to f_50): @user_script:1: x\r\n"),
            CallFailure::Unknown
        );
    }
}

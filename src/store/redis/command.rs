//! A command outside of the lanes. It decides nothing, and its caller is not a request.

use std::time::Duration;

use redis::{Cmd, FromRedisValue, RedisError};
use tokio::time::{sleep, timeout};

use super::flight::{MOST_REDIRECTIONS, pointed_at};
use super::greeting::in_words;
use super::{Lanes, call};
use crate::model::Error;
use crate::units::ConfigError;

/// The pause before a command is sent again while a slot of a cluster moves.
const PAUSE: Duration = Duration::from_millis(5);

/// Why a command was not run.
pub(super) enum CommandError {
    /// Redis is unavailable. This is known elsewhere.
    Unavailable(String),
    /// The key, or the right to it, is at fault, and not the server.
    Invalid(String),
}

impl CommandError {
    fn new(error: &RedisError, prefix: &str) -> Self {
        let reason = in_words(error, prefix);
        match error.code() {
            Some("WRONGTYPE" | "NOPERM") => Self::Invalid(reason),
            _ if call::is_forbidden_in_script(error) => Self::Invalid(reason),
            _ => Self::Unavailable(reason),
        }
    }

    /// The error of an application that asked for the command: `what` it was for, with the reason.
    pub(super) fn into_error(self, what: &str) -> Error {
        match self {
            // A command whose answer was lost may have been run.
            Self::Unavailable(reason) => {
                Error::unreachable(format!("{what}: {reason}")).that_may_have_charged()
            }
            Self::Invalid(reason) => ConfigError::new(format!("{what}: {reason}")).into(),
        }
    }
}

/// Runs a command on the first lane's connection, and perhaps again. `prefix` begins the keys that
/// it needs, for the message of a missing right.
pub(super) async fn run<T: FromRedisValue>(
    lanes: &Lanes,
    command: &Cmd,
    prefix: &str,
) -> Result<T, CommandError> {
    in_time(lanes, run_where_the_key_is(lanes, command, prefix, true)).await
}

/// Runs a command that must not be carried out twice.
pub(super) async fn run_once(
    lanes: &Lanes,
    command: &Cmd,
    prefix: &str,
) -> Result<(), CommandError> {
    in_time(lanes, run_where_the_key_is(lanes, command, prefix, false)).await
}

async fn in_time<T>(
    lanes: &Lanes,
    answer: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    timeout(lanes.deadline(), answer).await.unwrap_or_else(|_| {
        let reason = "no answer within the deadline";
        Err(CommandError::Unavailable(reason.to_owned()))
    })
}

/// Runs a command, and again where a node of a cluster points to. If it `may_repeat`, also if the
/// connection is closed, which may have been so for long.
async fn run_where_the_key_is<T: FromRedisValue>(
    lanes: &Lanes,
    command: &Cmd,
    prefix: &str,
    may_repeat: bool,
) -> Result<T, CommandError> {
    let route = &lanes.all[0].route;
    let (mut node, mut handle) = route.connect().await.map_err(CommandError::Unavailable)?;
    let mut is_asking = false;
    let mut left = MOST_REDIRECTIONS;
    loop {
        let answer = call::send(command, &mut handle.connection(), is_asking).await;
        let error: RedisError = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let is_closed = error.is_unrecoverable_error();
        let may_pass = call::is_of_cluster(&error) || (is_closed && may_repeat);
        if !may_pass || left == 0 {
            return Err(CommandError::new(&error, prefix));
        }
        left = left.saturating_sub(1);
        if let Some((next, asks)) = pointed_at(route, &node, &error) {
            handle = next
                .connection
                .get()
                .await
                .map_err(CommandError::Unavailable)?;
            (node, is_asking) = (next, asks);
            continue;
        }
        if is_closed {
            node.connection.replace(&handle, &call::brief(&error));
        } else {
            route.refresh();
            sleep(PAUSE).await;
        }
        (node, handle) = route.connect().await.map_err(CommandError::Unavailable)?;
        is_asking = false;
    }
}

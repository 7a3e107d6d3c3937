//! A call of claims, in flight.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::time::{Instant, timeout_at};

use super::super::call::{self, CallFailure};
use super::super::lane::Lane;
use super::redirect::{MOST_REDIRECTIONS, pointed_at};
use super::watch::Watch;
use crate::nouns::Error;
use crate::telemetry::ObservedCall;

/// Sends a call that may be repeated, and awaits its reply until a deadline.
pub(in crate::store::redis) async fn send_claims(
    lane: &Lane,
    command: &redis::Cmd,
    claims: usize,
    deadline: Instant,
) -> Result<Vec<i64>, ClaimFailure> {
    let mut watch = Watch::begin(lane.route.node().as_deref());
    let (node, handle) = match timeout_at(deadline, lane.route.connect()).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(reason)) => {
            watch.end(true);
            return Err(ClaimFailure::unreachable(reason));
        }
        Err(_) => {
            watch.end(true);
            return Err(ClaimFailure::unreachable(
                "no connection within the deadline".to_owned(),
            ));
        }
    };
    let mut node = node;
    let mut handle = handle;
    let mut is_asking = false;
    let mut redirections = 0;
    loop {
        let events = Arc::clone(node.connections.events());
        let observed = ObservedCall::begin(&events, claims, std::iter::empty());
        let reply = call::run(command.clone(), handle.connection.clone(), is_asking);
        let answer = timeout_at(deadline, reply).await;
        observed.end(call::failure(answer.as_ref().ok()));
        let Ok(answer) = answer else {
            watch.end(true);
            node.connections.discard(&handle, &Error::timeout());
            lane.route.has_moved();
            return Err(ClaimFailure::timeout(node.connections.events().server()));
        };
        watch.end(
            matches!(&answer, Err(error) if CallFailure::from_redis(error) == CallFailure::Unknown),
        );
        let error = match answer {
            Ok(reply) => {
                node.connections.heard(&handle, true);
                return Ok(reply);
            }
            Err(error) => error,
        };
        if redirections < MOST_REDIRECTIONS
            && let Some((next, asks)) = pointed_at(&lane.route, &node, &error)
        {
            watch = Watch::begin(Some(&next));
            let Ok(Ok(connected)) = timeout_at(deadline, next.connections.get()).await else {
                watch.end(true);
                let server = next.connections.events().server();
                return Err(ClaimFailure::unreachable(format!(
                    "{server}: no connection"
                )));
            };
            (node, handle, is_asking) = (next, connected, asks);
            redirections += 1;
            continue;
        }
        if lane.route.is_of_cluster() && call::is_of_cluster(&error) {
            lane.route.has_moved();
        } else if call::ends_connection(&error) {
            node.connections.discard(&handle, &call::brief(&error));
            lane.route.has_moved();
        }
        return Err(ClaimFailure::from_redis(
            &error,
            node.connections.events().server(),
        ));
    }
}

/// Why a call failed.
pub(in crate::store::redis) struct ClaimFailure {
    pub(in crate::store::redis) error: Error,
    /// Whether the same call fails again.
    pub(in crate::store::redis) is_final: bool,
    /// Whether some of the keys are at fault: the user has no rights to them, or they are on another node while their slot
    /// moves.
    pub(in crate::store::redis) is_of_key: bool,
}

impl ClaimFailure {
    fn unreachable(reason: String) -> Self {
        Self::end(Error::unreachable(reason))
    }

    fn timeout(server: &str) -> Self {
        Self::end(Error::timeout().at_server(server))
    }

    pub(in crate::store::redis) fn end(error: Error) -> Self {
        Self {
            error,
            is_final: true,
            is_of_key: false,
        }
    }

    fn from_redis(error: &RedisError, server: &str) -> Self {
        let is_final = !call::is_of_cluster(error) && !call::ends_connection(error);
        let is_moving = error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain);
        let is_of_key = is_moving || call::is_of_key(error);
        let error = Error::store(format!("{server}: {}", call::brief(error)));
        Self {
            error,
            is_final,
            is_of_key,
        }
    }
}

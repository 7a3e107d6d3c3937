//! Calls that failed because of some of their keys, which are sent in parts.

use redis::RedisResult;
use tokio::time::Instant;

use super::super::call::{self, CallFailure};
use super::Call;
use crate::model::Error;

/// The divisions of a call, which are bounded, because if the user of the server has no rights to
/// any key, as after a mistake in its rules, a part for each key would be a flood.
#[derive(Default)]
struct Divisions {
    parts: usize,
    /// Parts in a row that failed because of a key.
    failures: usize,
}

impl Divisions {
    /// One key among 4,096 makes 13 parts fail in a row.
    const MOST_FAILURES: usize = 24;

    const MOST_PARTS: usize = 256;

    /// Counts the answer of a part. Returns why the rest is not asked, if the bound is reached.
    fn count(&mut self, answer: &Option<RedisResult<Vec<i64>>>) -> Option<String> {
        let error = answer.as_ref().and_then(|answer| answer.as_ref().err());
        let error = error.filter(|error| call::is_of_key(error));
        self.parts += 1;
        self.failures = if error.is_some() {
            self.failures + 1
        } else {
            0
        };
        let is_bound = self.failures > Self::MOST_FAILURES || self.parts > Self::MOST_PARTS;
        error.filter(|_| is_bound).map(call::brief)
    }
}

/// Returns whether a call failed because of some of its keys, and was not executed.
pub(super) fn has_to_be_divided(answer: &Option<RedisResult<Vec<i64>>>) -> bool {
    let error = answer.as_ref().and_then(|answer| answer.as_ref().err());
    error.is_some_and(|error| {
        CallFailure::from_redis(error) == CallFailure::NotExecuted
            && (call::has_code(error, "TRYAGAIN") || call::is_of_key(error))
    })
}

impl Call {
    /// Divides a call that failed because of some of its keys, until each of them fails by itself:
    /// keys that the server's user has no rights to, or keys that are partly on another node while
    /// their slot moves.
    pub(super) async fn complete_apart(&mut self, mut answer: Option<RedisResult<Vec<i64>>>) {
        self.is_divided = true;
        let mut divisions = Divisions::default();
        loop {
            let given_up = divisions.count(&answer);
            let was_halved = given_up.is_none() && has_to_be_divided(&answer) && self.place.halve();
            let is_handled = was_halved || self.leave_to_move(&mut answer);
            if !is_handled {
                self.answer_checks(answer);
            }
            if !self.take_part_to_send(given_up.as_deref()) {
                // It counts as a failure only if the division was given up. A part that succeeded
                // has ended the report.
                self.breaker_report.end(given_up.is_some());
                return;
            }
            self.return_to_owner().await;
            answer = self.observed_reply(Instant::now()).await;
            self.follow(&mut answer).await;
        }
    }

    /// Takes the next part that is to be sent. Returns whether there is one. If the division was
    /// given up, all parts are declined.
    fn take_part_to_send(&mut self, given_up: Option<&str>) -> bool {
        loop {
            self.place.unload();
            if !self.place.take_next_part() {
                return false;
            }
            if let Some(reason) = given_up {
                self.decline(reason);
            } else if self.place.is_worth_sending(Instant::now()) {
                return true;
            }
        }
    }

    /// Fails all checks, which were not asked.
    fn decline(&mut self, reason: &str) {
        let connection = &self.node.connection;
        let error = format!("{}: {reason}", connection.events.server());
        let failed = self
            .place
            .batch()
            .set_failure(|| Error::declined(error.clone()));
        connection.count_undecided(failed);
        self.place.deliver();
    }
}

//! Permits of concurrency limits on Redis.
//!
//! A claim can be repeated: it says what its holder has, and not what to change. So a call that fails is sent again until
//! its deadline, wherever its key went.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::flight::{self, ClaimFailure};
use super::lane::Lane;
use super::{RedisStore, call, wire};
use crate::nouns::{Error, Key, ManualClock, later};
use crate::store::permits::{Claim, Claimed, PermitStore};

/// The pause before a claim is sent again.
const PAUSE: Duration = Duration::from_millis(5);

/// The calls in a row that fail because of a key, before the rest of a lane's claims is not sent: a user without rights to
/// any key must not make a flood.
const MOST_FAILURES: usize = 24;

impl PermitStore for RedisStore {
    fn claim(&self, claims: Vec<Claim>) -> Claimed {
        // The claims of each lane, with their places.
        let mut by_lane: BTreeMap<usize, Vec<(usize, Claim)>> = BTreeMap::new();
        let count = claims.len();
        for (place, claim) in claims.into_iter().enumerate() {
            by_lane
                .entry(self.lanes.index(&claim.key))
                .or_default()
                .push((place, claim));
        }
        let lanes = self.lanes.clone();
        Box::pin(async move {
            let mut answers: Vec<_> = (0..count).map(|_| Ok(0)).collect();
            for (index, part) in by_lane {
                for (place, answer) in claim_part(&lanes.lanes[index], &part).await {
                    answers[place] = answer;
                }
            }
            answers
        })
    }

    fn parts(&self) -> usize {
        self.lanes.lanes.len()
    }

    fn part(&self, key: &Key) -> usize {
        self.lanes.index(key)
    }
}

/// The answers to the claims of one lane, with their places.
async fn claim_part(lane: &Lane, part: &[(usize, Claim)]) -> Vec<(usize, Result<u64, Error>)> {
    let failed = |part: &[(usize, Claim)], error: &Error| -> Vec<_> {
        part.iter()
            .map(|(place, _)| (*place, Err(error.repeated())))
            .collect()
    };
    if let Err(error) = lane.route.admit() {
        return failed(part, &error);
    }
    let mut answers = Vec::with_capacity(part.len());
    let mut failures = 0;
    let mut left = vec![part];
    while let Some(part) = left.pop() {
        // Each call has its own deadline: one that is sent too late would look like an outage.
        let deadline = later(Instant::now(), lane.settings.deadline);
        match send(lane, part, deadline).await {
            Ok(granted) => {
                failures = 0;
                answers.extend(
                    granted
                        .into_iter()
                        .map(|(place, number)| (place, Ok(number))),
                );
            }
            Err(failure) if failure.is_of_key && failures < MOST_FAILURES => {
                failures += 1;
                // Until each key that fails does so alone.
                match part {
                    [_] => answers.extend(failed(part, &failure.error)),
                    _ => {
                        let (first, second) = part.split_at(part.len() / 2);
                        left.extend([second, first]);
                    }
                }
            }
            Err(failure) => {
                answers.extend(failed(part, &failure.error));
                left.drain(..)
                    .for_each(|part| answers.extend(failed(part, &failure.error)));
            }
        }
    }
    answers
}

async fn send(
    lane: &Lane,
    part: &[(usize, Claim)],
    deadline: Instant,
) -> Result<Vec<(usize, u64)>, ClaimFailure> {
    let keys: Vec<String> = part
        .iter()
        .map(|(_, claim)| lane.key_of_permits(claim))
        .collect();
    let bytes = keys.iter().map(String::len).sum();
    let body = wire::permits(part.iter().map(|(_, claim)| claim));
    let time = lane.settings.clock.as_ref().map(ManualClock::now);
    let command = call::by_hash(keys.iter().map(String::as_str), bytes, &body, time);
    loop {
        match flight::send_claims(lane, &command, part.len(), deadline).await {
            Ok(reply) => return read(lane, &keys, part, &reply).map_err(ClaimFailure::end),
            Err(failure)
                if failure.is_final
                    || (failure.is_of_key && part.len() > 1)
                    || later(Instant::now(), PAUSE) >= deadline =>
            {
                return Err(failure);
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// The reply: the time, and a number for each claim.
fn read(
    lane: &Lane,
    keys: &[String],
    part: &[(usize, Claim)],
    reply: &[i64],
) -> Result<Vec<(usize, u64)>, Error> {
    let numbers = reply.get(1..).filter(|numbers| numbers.len() == part.len());
    let Some(numbers) = numbers else {
        return Err(Error::store(format!(
            "malformed reply of {} numbers",
            reply.len()
        )));
    };
    let granted = numbers
        .iter()
        .zip(part)
        .zip(keys)
        .map(|((number, (place, _)), key)| {
            if *number < 0 {
                lane.route.events().unreadable(key);
            }
            let granted = if *number < 0 { -1 - *number } else { *number };
            (*place, u64::try_from(granted).unwrap_or(0))
        });
    Ok(granted.collect())
}

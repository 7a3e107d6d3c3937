//! Permits of concurrency limits on Redis.
//!
//! A claim can be repeated: it says what its holder has, and not what to change. So a call that fails is sent again until
//! its deadline, wherever its key went.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep};

use super::lane::Lane;
use super::{RedisStore, call, flight, wire};
use crate::nouns::{Error, Key, ManualClock, later};
use crate::store::permits::{Claim, Claimed, PermitStore};

/// The pause before a claim is sent again.
const PAUSE: Duration = Duration::from_millis(5);

impl PermitStore for RedisStore {
    fn claim(&self, claims: Vec<Claim>) -> Claimed {
        // The claims of each lane, with their places.
        let mut by_lane: BTreeMap<usize, Vec<(usize, Claim)>> = BTreeMap::new();
        let count = claims.len();
        for (place, claim) in claims.into_iter().enumerate() {
            by_lane.entry(self.lanes.index(&claim.key)).or_default().push((place, claim));
        }
        let lanes = self.lanes.clone();
        Box::pin(async move {
            if let Err(error) = Runtime::try_current() {
                return (0..count).map(|_| Err(Error::misuse(error.to_string()))).collect();
            }
            let mut answers: Vec<_> = (0..count).map(|_| Ok(0)).collect();
            for (index, part) in by_lane {
                let places: Vec<_> = part.iter().map(|(place, _)| *place).collect();
                match claim_part(Arc::clone(&lanes.lanes[index]), part).await {
                    Ok(granted) => {
                        granted.into_iter().for_each(|(place, number)| answers[place] = Ok(number));
                    }
                    Err(error) => places.into_iter().for_each(|place| {
                        answers[place] = Err(error.repeated());
                    }),
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

/// The claims of one lane.
async fn claim_part(
    lane: Arc<Lane>,
    part: Vec<(usize, Claim)>,
) -> Result<Vec<(usize, u64)>, Error> {
    lane.route.admit()?;
    let deadline = later(Instant::now(), lane.settings.deadline);
    let together = send(&lane, &part, deadline).await;
    let mut answers = Vec::with_capacity(part.len());
    match together {
        // The keys of a slot that moves are partly on another node. Each alone is on one of the two.
        Err(failure) if failure.has_to_be_split && part.len() > 1 => {
            for one in part.chunks(1) {
                answers.extend(send(&lane, one, deadline).await.map_err(|failure| failure.error)?);
            }
        }
        together => answers.extend(together.map_err(|failure| failure.error)?),
    }
    Ok(answers)
}

async fn send(
    lane: &Lane,
    part: &[(usize, Claim)],
    deadline: Instant,
) -> Result<Vec<(usize, u64)>, ClaimFailure> {
    let keys: Vec<String> = part.iter().map(|(_, claim)| lane.key_of_permits(claim)).collect();
    let bytes = keys.iter().map(String::len).sum();
    let body = wire::permits(part.iter().map(|(_, claim)| claim));
    let time = lane.settings.clock.as_ref().map(ManualClock::now);
    let command = call::by_hash(keys.iter().map(String::as_str), bytes, &body, time);
    loop {
        match flight::send_claims(lane, &command, part.len(), deadline).await {
            Ok(reply) => return read(lane, &keys, part, &reply).map_err(ClaimFailure::end),
            Err(failure)
                if failure.is_final
                    || (failure.has_to_be_split && part.len() > 1)
                    || later(Instant::now(), PAUSE) >= deadline =>
            {
                return Err(failure);
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Why a call failed.
pub(super) struct ClaimFailure {
    error: Error,
    /// Whether the same call fails again.
    is_final: bool,
    has_to_be_split: bool,
}

impl ClaimFailure {
    pub(super) fn unreachable(reason: String) -> Self {
        Self::end(Error::unreachable(reason))
    }

    pub(super) fn timeout(server: &str) -> Self {
        Self::end(Error::timeout().of(server))
    }

    fn end(error: Error) -> Self {
        Self { error, is_final: true, has_to_be_split: false }
    }

    pub(super) fn of(error: &RedisError, server: &str) -> Self {
        let is_final = !call::is_of_cluster(error) && !call::ends_connection(error);
        let has_to_be_split = error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain);
        let error = Error::store(format!("{server}: {}", call::brief(error)));
        Self { error, is_final, has_to_be_split }
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
        return Err(Error::store(format!("malformed reply of {} numbers", reply.len())));
    };
    let granted = numbers.iter().zip(part).zip(keys).map(|((number, (place, _)), key)| {
        if *number < 0 {
            lane.route.events().unreadable(key);
        }
        let granted = if *number < 0 { -1 - *number } else { *number };
        (*place, u64::try_from(granted).unwrap_or(0))
    });
    Ok(granted.collect())
}

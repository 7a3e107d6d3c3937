//! The scenarios: their contenders, keys, concurrency and quotas.

use std::error::Error;
use std::time::Duration;

use crate::child::{Job, Role};
use crate::contenders::{self, Allowance, Contender, Setup, Side};
use crate::load::Load;
use crate::progress::Progress;
use crate::redis_server::Server;
use crate::sample::Sample;
use crate::{http, replicas};

/// The number of turns of each contender.
pub const ROUNDS: usize = 5;

/// One at a time on Redis, the scheduler's choices weigh more than the limiter's code.
pub const ROUNDS_ALONE: usize = 25;

/// In memory, two runs of five rounds differ by 0.1 in a ratio.
pub const ROUNDS_IN_MEMORY: usize = 11;

pub const ROUNDS_OF_GROWTH: usize = 3;

/// The measured time of a turn.
const TURN: Duration = Duration::from_millis(500);

const WARM_UP: Duration = Duration::from_millis(50);

/// Enough for some requests of each of 10,000 keys, one at a time.
const WARM_UP_OF_KEYS: Duration = Duration::from_secs(5);

/// So that each of 10,000 keys has had the requests in which its blocks of units grow.
const WARM_UP_OVER_HTTP: Duration = Duration::from_secs(8);

/// A quota that no key exhausts with its share of the load.
const SPREAD: Allowance = Allowance {
    burst: 60_000,
    every_ms: 100,
};

/// A quota that not even a hot key exhausts.
const PLENTY: Allowance = Allowance {
    burst: 100_000_000,
    every_ms: 1,
};

/// A quota that one key does not exhaust in a turn, and that every window supports.
const ENOUGH: Allowance = Allowance {
    burst: 2_000_000,
    every_ms: 1,
};

/// A quota that no key exhausts in a turn, and whose budgets are not full again before its end.
/// Those of the quotas above are soon, and sweeps delete them between two requests.
const SLOW: Allowance = Allowance {
    burst: 2_000_000,
    every_ms: 1_000,
};

/// A quota that a hot key exhausts at once, and that does not replenish within a turn.
const SCARCE: Allowance = Allowance {
    burst: 1_000,
    every_ms: 3_600_000,
};

/// A quota that no key exhausts, and under which no key expires within a turn.
const LASTING: Allowance = SCARCE;

/// The limiters that wait for Redis only until they know a key.
const DECIDED_HERE: &str = "decided in the process";

/// Where a turn runs.
#[derive(Clone, Copy)]
enum Way {
    /// In this process.
    Loop,
    /// A server of its own, and wrk.
    Http,
    /// This number of processes on one Redis.
    Replicas(usize),
    /// In a process of its own: each key once, and then at random.
    Growth,
}

pub struct Scenario {
    pub title: String,
    way: Way,
    contenders: fn() -> Vec<Contender>,
    concurrency: usize,
    keys: usize,
    allowance: Allowance,
    /// Whether the load exceeds the quota.
    is_scarce: bool,
    /// The contender that the others are compared with, if not the fastest peer.
    compared_with: Option<&'static str>,
    rounds: usize,
    warm_up: Duration,
}

/// The samples of a contender, one for each round.
pub struct Outcome {
    pub name: String,
    pub side: Side,
    pub samples: Vec<Sample>,
    /// The most requests that may be allowed in a round, if the load exceeds the quota.
    pub quota: Option<u64>,
}

/// The length of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// All rounds, for the published results.
    Full,
    /// One short round, to verify that everything works.
    Short,
}

pub fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    for at_once in [1, 64, 256, 1_024] {
        let scenario = on_redis(at_once, "10,000 keys", contenders::on_redis, 10_000, SPREAD);
        let rounds = if at_once == 1 { ROUNDS_ALONE } else { ROUNDS };
        all.push(Scenario { rounds, ..scenario });
    }
    all.extend([1, 64, 256].map(without_asking));
    let three = "three limits (in one check; peers in three layers)";
    all.extend([
        on_redis(
            256,
            "one hot key",
            contenders::without_a_round_trip,
            1,
            PLENTY,
        ),
        on_redis(
            256,
            "one key that is denied",
            contenders::denying_on_redis,
            1,
            SCARCE,
        )
        .scarce(),
        on_redis(
            256,
            "each algorithm",
            contenders::algorithms_on_redis,
            10_000,
            SPREAD,
        ),
        on_redis(
            256,
            three,
            contenders::three_limits_on_redis,
            10_000,
            PLENTY,
        ),
    ]);
    for at_once in [1, 64] {
        all.extend([
            in_memory(at_once, "one key", 1, ENOUGH),
            in_memory(at_once, "100,000 keys", 100_000, SPREAD),
        ]);
    }
    for (at_once, title, keys) in [
        (1, "100 keys that last", 100),
        (1, "10,000 keys that last", 10_000),
        (64, "10,000 keys that last", 10_000),
    ] {
        let scenario = in_memory(at_once, title, keys, SLOW);
        let contenders = contenders::buckets_in_memory;
        all.push(Scenario {
            contenders,
            ..scenario
        });
    }
    all.extend([
        over_http("in memory", contenders::axum_in_memory).against_governor(),
        over_http("on Redis", contenders::axum_on_redis),
        Scenario {
            warm_up: WARM_UP_OVER_HTTP,
            rounds: ROUNDS_IN_MEMORY,
            ..over_http(DECIDED_HERE, contenders::axum_without_a_round_trip)
        },
    ]);
    for count in [2, 4] {
        all.extend([
            of_replicas(count, "10,000 keys", 10_000, SPREAD),
            of_replicas(count, "one key that is denied", 1, SCARCE).scarce(),
        ]);
    }
    for (title, keys) in [("10,000 keys", 10_000), ("1,000,000 keys", 1_000_000)] {
        all.extend([
            of_growth("in memory", title, contenders::in_memory, keys).against_governor(),
            of_growth(
                "on Redis",
                title,
                contenders::algorithms_on_redis_and_fast_peers,
                keys,
            ),
        ]);
    }
    all.push(Scenario {
        compared_with: Some("tollgate, fixed window"),
        rounds: ROUNDS_IN_MEMORY,
        ..of_growth(
            DECIDED_HERE,
            "300,000 keys",
            contenders::with_and_without_a_round_trip,
            300_000,
        )
    });
    all
}

/// The contender of this name, from any scenario.
pub fn contender(name: &str) -> Option<Contender> {
    all()
        .iter()
        .flat_map(|it| (it.contenders)())
        .find(|it| it.name == name)
}

fn on_redis(
    concurrency: usize,
    title: &str,
    contenders: fn() -> Vec<Contender>,
    keys: usize,
    allowance: Allowance,
) -> Scenario {
    Scenario {
        title: format!("{concurrency} at once, {title}"),
        way: Way::Loop,
        contenders,
        concurrency,
        keys,
        allowance,
        is_scarce: false,
        compared_with: None,
        rounds: ROUNDS,
        warm_up: WARM_UP,
    }
}

/// Limiters that decide in the process, when they know the keys.
fn without_asking(at_once: usize) -> Scenario {
    Scenario {
        warm_up: WARM_UP_OF_KEYS,
        ..on_redis(
            at_once,
            &format!("10,000 keys, {DECIDED_HERE}"),
            contenders::without_a_round_trip,
            10_000,
            SPREAD,
        )
    }
}

fn in_memory(concurrency: usize, title: &str, keys: usize, allowance: Allowance) -> Scenario {
    let title = format!("in memory, {title}");
    let scenario = on_redis(concurrency, &title, contenders::in_memory, keys, allowance);
    Scenario {
        rounds: ROUNDS_IN_MEMORY,
        ..scenario
    }
    .against_governor()
}

/// wrk sends the keys itself: 10,000 of them.
fn over_http(title: &str, contenders: fn() -> Vec<Contender>) -> Scenario {
    let title = format!("HTTP {title}, 64 connections, 10,000 keys");
    Scenario {
        title,
        way: Way::Http,
        ..on_redis(64, "", contenders, 10_000, SPREAD)
    }
}

fn of_replicas(count: usize, title: &str, keys: usize, allowance: Allowance) -> Scenario {
    let title = format!("in each of {count} replicas, {title}");
    let way = Way::Replicas(count);
    Scenario {
        way,
        ..on_redis(64, &title, contenders::fast_on_redis, keys, allowance)
    }
}

fn of_growth(place: &str, title: &str, who: fn() -> Vec<Contender>, keys: usize) -> Scenario {
    let title = format!("growth {place}, {title}");
    // The first requests of a million keys take long enough to be measured once.
    let rounds = if keys < 1_000_000 {
        ROUNDS_OF_GROWTH
    } else {
        1
    };
    Scenario {
        title,
        way: Way::Growth,
        rounds,
        ..on_redis(256, "", who, keys, LASTING)
    }
}

impl Scenario {
    fn against_governor(self) -> Self {
        Self {
            compared_with: Some("tower_governor, headers"),
            ..self
        }
    }

    fn scarce(self) -> Self {
        Self {
            is_scarce: true,
            ..self
        }
    }

    pub fn compared_with(&self) -> Option<&str> {
        self.compared_with
    }

    pub fn shortened(self, length: Length) -> Self {
        match length {
            Length::Full => self,
            Length::Short => Self { rounds: 1, ..self },
        }
    }

    /// Verifies that the programs of the scenario are installed.
    ///
    /// # Errors
    ///
    /// Returns an error if wrk is needed and cannot be started.
    pub async fn check(&self) -> Result<(), Box<dyn Error>> {
        if matches!(self.way, Way::Http) {
            http::check().await
        } else {
            Ok(())
        }
    }

    /// The expected time.
    pub fn expected(&self) -> Duration {
        self.expected_turn() * (self.rounds * (self.contenders)().len()) as u32
    }

    fn expected_turn(&self) -> Duration {
        match self.way {
            Way::Loop => Duration::from_millis(50) + TURN + self.warm_up,
            Way::Http => Duration::from_millis(1_050) + self.warm_up,
            Way::Replicas(_) => Duration::from_millis(700),
            Way::Growth => Duration::from_millis(700) + Duration::from_micros(6) * self.keys as u32,
        }
    }

    /// Runs all contenders in turn, in several rounds: a disturbance of the machine affects all of
    /// them.
    ///
    /// # Errors
    ///
    /// Returns an error if a turn over HTTP fails.
    pub async fn run(
        &self,
        server: &Server,
        progress: &mut Progress,
    ) -> Result<Vec<Outcome>, Box<dyn Error>> {
        let contenders = (self.contenders)();
        let mut samples: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
        for _ in 0..self.rounds {
            for (contender, samples) in contenders.iter().zip(&mut samples) {
                progress.show(&self.title, &contender.name);
                server.clear().await;
                samples.push(self.turn(contender, server).await?);
                progress.advance(self.expected_turn());
            }
        }
        let quota = self.is_scarce.then_some(u64::from(self.allowance.burst));
        let outcome = |(Contender { name, side, .. }, samples)| Outcome {
            name,
            side,
            samples,
            quota,
        };
        Ok(contenders.into_iter().zip(samples).map(outcome).collect())
    }

    async fn turn(&self, contender: &Contender, server: &Server) -> Result<Sample, Box<dyn Error>> {
        let setup = Setup {
            redis_url: server.url(),
            allowance: self.allowance,
        };
        let grows = matches!(self.way, Way::Growth);
        let load = Load {
            concurrency: self.concurrency,
            keys: self.keys,
            warm_up: self.warm_up,
            time: TURN,
            grows,
        };
        let job = |role| Job {
            role,
            contender: contender.name.clone(),
            setup: setup.clone(),
        };
        Ok(match self.way {
            Way::Loop => contender.measure(setup, load).await,
            Way::Http => http::turn(&job(Role::Server), contender.on_redis, load).await?,
            Way::Replicas(count) => replicas::turn(&job(Role::Replica(load)), count).await,
            Way::Growth => replicas::turn(&job(Role::Replica(load)), 1).await,
        })
    }
}

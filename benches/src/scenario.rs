//! What is measured: who, how many at once, on which keys, and what they are allowed.

use std::time::Duration;

use crate::contenders::{self, Allowance, Contender};
use crate::load::{Load, Sample};
use crate::redis_server::Server;

/// How often everybody gets a turn.
pub const ROUNDS: usize = 5;

/// How long a turn is measured.
const TURN: Duration = Duration::from_millis(600);

/// What no key comes to the end of, at its share of the load.
const SPREAD: Allowance = Allowance { burst: 60_000, every_ms: 100 };

/// What not even a hot key comes to the end of.
const PLENTY: Allowance = Allowance { burst: 100_000_000, every_ms: 1 };

/// What one key does not come to the end of within a turn, and every window can count.
const ENOUGH: Allowance = Allowance { burst: 2_000_000, every_ms: 1 };

/// What a hot key comes to the end of at once, and not back within a turn.
const SCARCE: Allowance = Allowance { burst: 1_000, every_ms: 3_600_000 };

pub struct Scenario {
    /// In a few words.
    pub title: String,
    who: fn(&Server) -> Vec<Contender>,
    concurrency: usize,
    keys: usize,
    allowance: Allowance,
    /// Whether more is asked for than is allowed.
    is_scarce: bool,
}

/// How somebody did: a sample for each round.
pub struct Result {
    pub name: String,
    pub is_peer: bool,
    pub samples: Vec<Sample>,
    /// How many requests may be admitted in a round, if that is fewer than are asked for.
    pub allowed: Option<u64>,
}

pub fn all() -> Vec<Scenario> {
    let scenario = |title: &str, who, concurrency, keys, allowance| {
        let title = format!("{concurrency} at once, {title}");
        Scenario { title, who, concurrency, keys, allowance, is_scarce: false }
    };
    let mut all = Vec::new();
    for concurrency in [1, 64, 256, 1_024] {
        all.push(scenario("10,000 keys", contenders::on_redis, concurrency, 10_000, SPREAD));
    }
    all.extend([
        scenario("one hot key", contenders::on_redis_and_leased, 256, 1, PLENTY),
        Scenario {
            is_scarce: true,
            ..scenario("one key that is refused", contenders::refusing_on_redis, 256, 1, SCARCE)
        },
        scenario("each algorithm", contenders::algorithms_on_redis, 256, 10_000, SPREAD),
        scenario(
            "three limits (in one check; peers in three layers)",
            contenders::three_limits_on_redis,
            256,
            10_000,
            PLENTY,
        ),
    ]);
    for concurrency in [1, 64] {
        let in_memory = contenders::in_memory;
        all.extend([
            scenario("in memory, one key", in_memory, concurrency, 1, ENOUGH),
            scenario("in memory, 100,000 keys", in_memory, concurrency, 100_000, SPREAD),
        ]);
    }
    all
}

impl Scenario {
    /// Everybody in turn, and that in several rounds: what disturbs the machine for a while
    /// disturbs all.
    pub async fn run(&self, server: &Server) -> Vec<Result> {
        let contenders = (self.who)(server);
        let mut samples: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (contender, samples) in contenders.iter().zip(&mut samples) {
                server.clear().await;
                let load = Load { concurrency: self.concurrency, keys: self.keys, time: TURN };
                samples.push((contender.measure)(load, self.allowance).await);
            }
        }
        let of = |(Contender { name, is_peer, .. }, samples)| {
            let allowed = self.is_scarce.then_some(u64::from(self.allowance.burst));
            Result { name, is_peer, samples, allowed }
        };
        contenders.into_iter().zip(samples).map(of).collect()
    }
}

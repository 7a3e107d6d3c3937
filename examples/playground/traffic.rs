//! Synthetic traffic: which clients send requests, how many, and when.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::message::Pattern;

/// The most requests a second.
pub(crate) const MOST: f64 = 200.0;

/// How often a burst comes.
const BETWEEN_BURSTS: f64 = 4.0;

/// The clients of a crowd.
const CROWD: u64 = 20;

/// The sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The visitor's own client.
    Own,
    /// A client of that name.
    Other(String),
}

pub(crate) struct Traffic {
    pattern: Pattern,
    per_second: f64,
    ticks: Interval,
    count: u64,
}

impl Traffic {
    /// `None` if it is off, or if the rate is out of its range: 0.1 to 200 requests a second.
    pub(crate) fn new(pattern: Pattern, per_second: f64) -> Option<Self> {
        if pattern == Pattern::Off || !(0.1..=MOST).contains(&per_second) {
            return None;
        }
        let period = match pattern {
            Pattern::Bursts => BETWEEN_BURSTS,
            Pattern::Crowd => CROWD as f64 / per_second,
            Pattern::Steady | Pattern::Attack | Pattern::Off => 1.0 / per_second,
        };
        let mut ticks = interval(Duration::from_secs_f64(period));
        // Ticks that a busy machine misses are dropped.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(Self {
            pattern,
            per_second,
            ticks,
            count: 0,
        })
    }

    /// The senders of the next requests, which are due when this returns.
    pub(crate) async fn next(&mut self) -> Vec<Sender> {
        self.ticks.tick().await;
        self.count += 1;
        match self.pattern {
            Pattern::Off => Vec::new(),
            Pattern::Steady => vec![Sender::Own],
            Pattern::Bursts => {
                let size = (self.per_second * BETWEEN_BURSTS).round().max(1.0);
                vec![Sender::Own; size as usize]
            }
            // All at once, each for itself.
            Pattern::Crowd => (1..=CROWD)
                .map(|number| Sender::Other(format!("crowd-{number}")))
                .collect(),
            // One client floods, and the visitor's goes on with a request in ten.
            Pattern::Attack => {
                let attacker = Sender::Other("attacker".to_owned());
                match self.count % 10 {
                    0 => vec![attacker, Sender::Own],
                    _ => vec![attacker],
                }
            }
        }
    }
}

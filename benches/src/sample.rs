//! The figures of one turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The figures of a contender in one turn.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    pub decisions: u64,
    /// Allowed requests since the first one, warm-up included.
    pub allowed_in_all: u64,
    /// All requests since the first one.
    pub asked_in_all: u64,
    pub wall: Duration,
    /// CPU time of the process with the limiter.
    pub app_cpu: Duration,
    pub redis_cpu: Duration,
    pub p50: Duration,
    pub p99: Duration,
    /// The figures of the first requests of all keys, if the turn starts with them.
    pub growth: Option<Growth>,
}

/// Figures of a store that grows by one key a request.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Growth {
    pub keys: u64,
    pub wall: Duration,
    /// Bytes by which the process grew.
    pub app_bytes: u64,
    /// Bytes by which Redis grew.
    pub redis_bytes: u64,
}

impl Sample {
    /// Decisions a second.
    pub fn rate(&self) -> f64 {
        self.decisions as f64 / self.wall.as_secs_f64()
    }

    /// App CPU, µs a decision.
    pub fn app_cpu(&self) -> f64 {
        self.app_cpu.as_secs_f64() * 1e6 / self.decisions as f64
    }

    /// Redis CPU, µs a decision.
    pub fn redis_cpu(&self) -> f64 {
        self.redis_cpu.as_secs_f64() * 1e6 / self.decisions as f64
    }

    /// The sum of two processes side by side, with the worse of their latencies. Each has measured
    /// all of Redis's time.
    pub fn beside(self, other: Self) -> Self {
        Self {
            decisions: self.decisions + other.decisions,
            allowed_in_all: self.allowed_in_all + other.allowed_in_all,
            asked_in_all: self.asked_in_all + other.asked_in_all,
            wall: self.wall.max(other.wall),
            app_cpu: self.app_cpu + other.app_cpu,
            redis_cpu: self.redis_cpu.max(other.redis_cpu),
            p50: self.p50.max(other.p50),
            p99: self.p99.max(other.p99),
            growth: self.growth.or(other.growth),
        }
    }
}

impl Growth {
    /// New keys a second.
    pub fn rate(&self) -> f64 {
        self.keys as f64 / self.wall.as_secs_f64()
    }
}

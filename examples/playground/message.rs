//! What a tab and the server tell each other, as JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate::limit::OnStoreFailure;
use tollgate::{ConfigError, Limit, Quota};

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Algorithm {
    TokenBucket,
    Gcra,
    LeakyBucket,
    SlidingWindow,
    SlidingLog,
    FixedWindow,
}

/// What the visitor chose.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) client: String,
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) limit: u64,
    pub(crate) period_ms: u64,
    /// Of the buckets. `None`: the limit.
    pub(crate) burst: Option<u64>,
    /// Of the sliding window.
    pub(crate) sub_windows: u32,
    /// Of the fixed window. `None`: windows of the period, from the first request.
    pub(crate) calendar: Option<CalendarSettings>,
    /// The replicas of the service. Requests go to each in turn.
    pub(crate) replicas: u32,
    pub(crate) when_unavailable: WhenUnavailable,
}

/// Windows of the calendar.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct CalendarSettings {
    pub(crate) unit: CalendarUnit,
    /// The first day of a month.
    pub(crate) start_day: u8,
    pub(crate) time_zone: String,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CalendarUnit {
    Day,
    Week,
    Month,
    Year,
}

impl CalendarSettings {
    fn quota(&self, limit: u64) -> Result<Quota, ConfigError> {
        let quota = match self.unit {
            CalendarUnit::Day => Quota::per_day(limit),
            CalendarUnit::Week => Quota::per_week(limit),
            CalendarUnit::Month => Quota::per_month(limit).starting_on_day(self.start_day)?,
            CalendarUnit::Year => Quota::per_year(limit),
        };
        quota.in_time_zone(&self.time_zone)
    }
}

/// The outcome of a request while the store does not answer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenUnavailable {
    FailOpen,
    FailClosed,
    /// Each replica decides by its share.
    Local,
}

impl Settings {
    /// Whether both have the same limits, maybe for other clients.
    pub(crate) fn has_limits_of(&self, other: &Self) -> bool {
        let client = self.client.clone();
        *self
            == Self {
                client,
                ..other.clone()
            }
    }

    pub(crate) fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }

    /// The limit of an algorithm. All have the same quota, and budgets of their own.
    pub(crate) fn limit_of(&self, algorithm: Algorithm) -> Result<Limit, ConfigError> {
        let quota = Quota::new(self.limit, self.period());
        let with_burst = self.burst.map_or(quota, |burst| quota.burst(burst));
        let limit = match algorithm {
            Algorithm::TokenBucket => Limit::token_bucket("token_bucket", with_burst),
            Algorithm::Gcra => Limit::gcra("gcra", with_burst),
            Algorithm::LeakyBucket => Limit::leaky_bucket("leaky_bucket", with_burst),
            Algorithm::SlidingWindow => {
                Limit::sliding_window_with("sliding_window", quota, self.sub_windows)
            }
            Algorithm::SlidingLog => Limit::sliding_log("sliding_log", quota),
            Algorithm::FixedWindow => {
                let calendar = self.calendar.as_ref();
                let on_calendar = calendar.map(|calendar| calendar.quota(self.limit));
                Limit::fixed_window("fixed_window", on_calendar.unwrap_or(Ok(quota))?)
            }
        };
        limit?.with_on_store_failure(match self.when_unavailable {
            WhenUnavailable::FailOpen => OnStoreFailure::FailOpen,
            WhenUnavailable::FailClosed => OnStoreFailure::FailClosed,
            WhenUnavailable::Local => OnStoreFailure::local(self.replicas),
        })
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pattern {
    Off,
    Steady,
    Bursts,
    Crowd,
    Attack,
}

/// From the tab.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    Configure(Settings),
    Send {
        count: u32,
    },
    Traffic {
        pattern: Pattern,
        per_second: f64,
    },
    Reset,
    /// Cuts the tab off from its budgets, or ends that.
    Outage {
        is_on: bool,
    },
}

/// To the tab. Times are in milliseconds since the tab connected.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub(crate) enum Event {
    /// The settings are in force.
    Configured {
        store: &'static str,
        services: Vec<Described>,
    },
    /// They are not, or a command was not followed.
    Invalid {
        message: String,
    },
    Response(Response),
    Levels {
        at_ms: f64,
        remaining: Vec<(Algorithm, u64)>,
    },
}

#[derive(Debug, Serialize)]
pub(crate) struct Described {
    pub(crate) algorithm: Algorithm,
    pub(crate) capacity: u64,
    pub(crate) code: String,
}

/// The response to one request under one algorithm.
#[derive(Debug, Serialize)]
pub(crate) struct Response {
    pub(crate) algorithm: Algorithm,
    /// Whether the visitor's own client sent it, or a synthetic one.
    pub(crate) is_own: bool,
    /// The replica that decided, from 1.
    pub(crate) replica: usize,
    pub(crate) arrived_ms: f64,
    pub(crate) answered_ms: f64,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    pub(crate) decided_by: Option<DecidedBy>,
    /// The time after which the same request would be allowed, for a denial.
    pub(crate) retry_after_ms: Option<f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DecidedBy {
    Store,
    /// This process, which remembers the denial.
    DenyCache,
    /// The store was unavailable, and the replica decided by its share.
    Local,
    /// The store was unavailable, and the limit failed open.
    FailOpen,
    /// The store was unavailable, and the limit failed closed.
    FailClosed,
}

//! The Rust code of a limit, to copy.

use std::time::Duration;

use crate::message::{Algorithm, CalendarSettings, CalendarUnit, Settings, WhenUnavailable};

/// A function that returns the layer of these settings.
pub(crate) fn of(algorithm: Algorithm, settings: &Settings) -> String {
    let calendar = settings.calendar.as_ref();
    let (quota, needs_duration) = match calendar.filter(|_| algorithm == Algorithm::FixedWindow) {
        Some(calendar) => (on_calendar(settings.limit, calendar), false),
        None => quota(settings.limit, settings.period()),
    };
    let burst = settings.burst.filter(|_| takes_burst(algorithm));
    let quota = burst.map_or(quota.clone(), |burst| format!("{quota}.burst({burst})"));
    let duration = if needs_duration {
        "use std::time::Duration;\n\n"
    } else {
        ""
    };
    let policy = policy(settings);
    let policy_import = if policy.is_empty() {
        ""
    } else {
        "use tollgate::limit::OnStoreFailure;\n"
    };
    let (limit_import, layer) = match (algorithm, settings.sub_windows) {
        (Algorithm::SlidingWindow, sub_windows @ 2..) => (
            "Limit, ",
            format!(
                "let limit = Limit::sliding_window_with(\"api\", {quota}, {sub_windows})?;
    RateLimitLayer::new(limiter, limit, PeerIp)"
            ),
        ),
        _ => {
            let name = name(algorithm);
            (
                "",
                format!("RateLimitLayer::{name}(limiter, \"api\", {quota}, PeerIp)"),
            )
        }
    };
    format!(
        "{duration}use tollgate::key::PeerIp;
{policy_import}use tollgate::{{ConfigError, {limit_import}Quota, RateLimitLayer, RateLimiter}};

fn rate_limit(limiter: &RateLimiter) -> Result<RateLimitLayer, ConfigError> {{
    {layer}{policy}
}}
"
    )
}

/// The call that sets the failure policy. Empty for the default, which is to fail open.
fn policy(settings: &Settings) -> String {
    let policy = match settings.when_unavailable {
        WhenUnavailable::FailOpen => return String::new(),
        WhenUnavailable::FailClosed => "FailClosed".to_owned(),
        WhenUnavailable::Local => format!("local({})", settings.replicas),
    };
    format!("?\n        .on_store_failure(OnStoreFailure::{policy})")
}

fn name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::TokenBucket => "token_bucket",
        Algorithm::Gcra => "gcra",
        Algorithm::LeakyBucket => "leaky_bucket",
        Algorithm::SlidingWindow => "sliding_window",
        Algorithm::SlidingLog => "sliding_log",
        Algorithm::FixedWindow => "fixed_window",
    }
}

fn takes_burst(algorithm: Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket
    )
}

fn on_calendar(limit: u64, calendar: &CalendarSettings) -> String {
    let quota = match calendar.unit {
        CalendarUnit::Day => format!("Quota::per_day({limit})"),
        CalendarUnit::Week => format!("Quota::per_week({limit})"),
        CalendarUnit::Month if calendar.start_day == 1 => format!("Quota::per_month({limit})"),
        CalendarUnit::Month => {
            format!(
                "Quota::per_month({limit}).starting_on_day({})?",
                calendar.start_day
            )
        }
        CalendarUnit::Year => format!("Quota::per_year({limit})"),
    };
    format!("{quota}.in_time_zone({:?})?", calendar.time_zone)
}

/// The quota, and whether it names a duration.
fn quota(limit: u64, period: Duration) -> (String, bool) {
    let named = [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("day", 86_400),
    ];
    for (name, seconds) in named {
        if period == Duration::from_secs(seconds) {
            return (format!("Quota::per_{name}({limit})"), false);
        }
    }
    let period = match (period.as_secs(), period.subsec_millis()) {
        (seconds, 0) => format!("Duration::from_secs({seconds})"),
        _ => format!("Duration::from_millis({})", period.as_millis()),
    };
    (format!("Quota::new({limit}, {period})"), true)
}

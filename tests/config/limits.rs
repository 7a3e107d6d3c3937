//! Limits in configuration files: periods have units, and errors name the accepted format.

#![cfg(feature = "serde")]

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{ConfigError, Limit, Quota};

const ALGORITHMS: [&str; 6] = [
    "token_bucket",
    "leaky_bucket",
    "gcra",
    "fixed_window",
    "sliding_window",
    "sliding_log",
];

fn error(json: &str) -> String {
    serde_json::from_str::<Limit>(json).unwrap_err().to_string()
}

/// A limit of one unit with these fields, in JSON.
fn with(fields: &str) -> String {
    format!(r#"{{"name":"login","algorithm":"gcra",{fields}}}"#)
}

fn of_period(period: &str) -> Result<Duration, serde_json::Error> {
    let json = with(&format!(r#""quota":"1/{period}""#));
    serde_json::from_str::<Limit>(&json).map(|limit| limit.quota().period().fixed().unwrap())
}

#[test]
fn quota_without_a_unit_is_an_error_under_every_algorithm() {
    for algorithm in ALGORITHMS {
        for (quota, why) in [
            (
                r#""quota":60"#,
                "invalid type: integer `60`, expected a string with a unit, such as",
            ),
            (
                r#""quota":0.5"#,
                "expected a string with a unit, such as the quota \"5/15m\" or the time \"15m\"",
            ),
            (
                r#""quota":"5/60""#,
                "limit `login`: the period `60` has no unit after 60; write",
            ),
            (
                r#""limit":5,"period":"60s""#,
                "unknown field `period`, expected one of",
            ),
            (
                r#""limit":5"#,
                "limit `login`: `limit` is a field of concurrency limits, and a rate has a `quota`",
            ),
        ] {
            let json = format!(r#"{{"name":"login","algorithm":"{algorithm}",{quota}}}"#);
            let error = error(&json);
            assert!(error.contains(why), "{error}");
        }
    }
}

#[test]
fn periods_are_numbers_with_units() {
    for (text, micros) in [
        ("1us", 1),
        ("500ms", 500_000),
        ("15m", 900_000_000),
        ("90m", 5_400_000_000),
        ("1h30m", 5_400_000_000),
        ("1d", 86_400_000_000),
        ("366d", 31_622_400_000_000),
        ("1d2h3m4s5ms6us", 93_784_005_006),
        ("1s0ms", 1_000_000),
        ("15min", 900_000_000),
        ("15 minutes", 900_000_000),
        (" 15m ", 900_000_000),
        ("1h 30min", 5_400_000_000),
        ("30m1h", 5_400_000_000),
        ("1.5h", 5_400_000_000),
        ("2 weeks", 1_209_600_000_000),
        ("10µs", 10),
    ] {
        let period = of_period(text).unwrap();
        assert_eq!(period, Duration::from_micros(micros), "{text}");
    }
}

#[test]
fn invalid_periods_are_errors_with_the_accepted_format() {
    for (text, why) in [
        ("", "is empty"),
        ("  ", "is empty"),
        ("s", "is not made of numbers with units"),
        ("-5m", "is not made of numbers with units"),
        ("+5m", "is not made of numbers with units"),
        ("1_000s", "is not made of numbers with units"),
        ("1.h", "is not made of numbers with units"),
        ("٣s", "is not made of numbers with units"),
        ("10μs", "is not made of numbers with units"),
        ("15", "has no unit after 15"),
        ("1h30", "has no unit after 30"),
        ("15x", "has an unknown unit `x`"),
        ("15MIN", "has an unknown unit `MIN`"),
        ("15M", "has months or years"),
        ("1 month", "has months or years"),
        ("1y 2d", "has months or years"),
        ("18446744073709551615s 1000000000ns", "is longer than 366d"),
        ("18446744073709551616us", "is longer than 366d"),
        ("0.3333333333us", "is too long or too precise"),
    ] {
        let retry_after = format!(r#""limit":1,"retry_after":"{text}""#);
        let error = error(&with(&retry_after).replace("gcra", "concurrency"));
        let start = format!("limit `login`: the period `{text}` {why}");
        assert!(
            error.starts_with(&start) && error.contains("write numbers with"),
            "{error}"
        );
    }
    for (text, why) in [
        ("0s", "the period is 0"),
        ("0d0us", "the period is 0"),
        ("367d", "longer than 366 days"),
        ("366d1us", "longer than 366 days"),
        ("999999999999d", "longer than 366 days"),
        ("10ns", "microsecond"),
    ] {
        let error = of_period(text).unwrap_err().to_string();
        assert!(
            error.starts_with("limit `login`: ") && error.contains(why),
            "{error}"
        );
    }
}

#[test]
fn quota_string_is_a_limit_a_slash_and_a_period() {
    for (text, quota) in [
        ("5/15m", Quota::new(5, Duration::from_secs(900))),
        ("10/s", Quota::per_second(10)),
        ("10/1s", Quota::per_second(10)),
        ("100/m", Quota::per_minute(100)),
        ("1000/d", Quota::per_day(1_000)),
        ("7/1h30m", Quota::new(7, Duration::from_secs(5_400))),
        ("100/min", Quota::per_minute(100)),
        ("5 / 15 min", Quota::new(5, Duration::from_secs(900))),
        ("3/week", Quota::new(3, Duration::from_secs(7 * 86_400))),
    ] {
        assert_eq!(text.parse::<Quota>().unwrap(), quota, "{text}");
        let json = with(&format!(r#""quota":"{text}""#));
        assert_eq!(
            serde_json::from_str::<Limit>(&json).unwrap().quota(),
            quota,
            "{text}"
        );
    }
    let json = with(r#""quota":"10/s","burst":20"#);
    let limit: Limit = serde_json::from_str(&json).unwrap();
    assert_eq!(
        limit,
        Limit::gcra("login", Quota::per_second(10).burst(20)).unwrap()
    );
}

#[test]
fn invalid_quotas_are_errors_with_the_accepted_format() {
    for (text, why) in [
        (
            "",
            "the quota `` has no slash; write a limit, a slash and a period, such as `5/15m`",
        ),
        ("5", "the quota `5` has no slash"),
        ("5 per minute", "has no slash"),
        ("5 in 1m", "has no slash"),
        ("/15m", "does not start with a whole number"),
        ("-5/15m", "does not start with a whole number"),
        ("1.5/s", "does not start with a whole number"),
        ("18446744073709551616/s", "has a limit of more than 64 bits"),
        ("5/15", "the period `15` has no unit after 15"),
        ("5/", "the period `` is empty"),
        (
            "5/minuet",
            "the period `minuet` has an unknown unit `minuet`",
        ),
        ("5/1m/1m", "the period `1m/1m` is not made"),
        ("5/2 months", "the period `2 months` has months or years"),
        ("5/month in UTC", "write them there, such as `starts = 15`"),
        ("5/day in UTC", "write them there, such as `starts = 15`"),
        ("0/s", "the limit is 0"),
        ("5/0s", "the period is 0"),
    ] {
        let error = error(&with(&format!(r#""quota":"{text}""#)));
        assert!(
            error.starts_with("limit `login`: ") && error.contains(why),
            "{error}"
        );
    }
    assert!(error(&with(r#""quota":5"#)).contains("such as the quota \"5/15m\""));
}

#[test]
fn missing_conflicting_and_unknown_fields_are_errors() {
    for (fields, why) in [
        (r#""burst":1"#, "limit `login`: `quota` is missing; write"),
        (
            r#""quota":"1/s","limit":1"#,
            "`limit` is a field of concurrency limits",
        ),
        (r#""quota":"1/s","brust":1"#, "unknown field `brust`"),
        (r#""limit":-1"#, "invalid value: integer `-1`"),
        (r#""limit":1.5"#, "expected u64"),
        (
            r#""quota":"1/s","sub_windows":1"#,
            "`sub_windows` is a field of sliding_window only",
        ),
        (
            r#""quota":"1/s","mode":"queue""#,
            "`mode` is a field of leaky_bucket only",
        ),
        (
            r#""quota":"1/s","anchor":"clock""#,
            "`anchor` is a field of fixed_window only",
        ),
    ] {
        let error = error(&with(fields));
        assert!(error.contains(why), "{error}");
    }
    let window = r#"{"name":"a","algorithm":"fixed_window","quota":"1/s","burst":1}"#;
    assert!(error(window).contains("has no burst"));
    assert!(error(&with(r#""quota":"1/s""#).replace("gcra", "gcr")).contains("unknown variant"));
}

#[test]
fn serialized_period_has_units() {
    let bursty = Limit::gcra("api", Quota::new(30, Duration::from_secs(5_400)).burst(7)).unwrap();
    assert_eq!(
        serde_json::to_string(&bursty).unwrap(),
        r#"{"name":"api","algorithm":"gcra","quota":"30/1h30m","burst":7}"#
    );
}

/// Limits of every algorithm that are in range.
fn limits() -> impl Strategy<Value = Limit> {
    type Constructor = fn(&str, Quota) -> Result<Limit, ConfigError>;
    const CONSTRUCTORS: [Constructor; 9] = [
        Limit::token_bucket,
        Limit::leaky_bucket,
        Limit::leaky_bucket_meter,
        Limit::gcra,
        Limit::fixed_window,
        Limit::fixed_window_aligned,
        Limit::sliding_window,
        Limit::sliding_log,
        |name, quota| Limit::sliding_window_with(name, quota, 4),
    ];
    let numbers = || (0..46_u32, any::<u64>()).prop_map(|(bits, any)| 1 + any % (1 << bits));
    let burst = prop::option::of(numbers());
    (
        prop::sample::select(CONSTRUCTORS.to_vec()),
        numbers(),
        numbers(),
        burst,
    )
        .prop_filter_map("out of range", |(constructor, limit, period_us, burst)| {
            let quota = Quota::new(limit, Duration::from_micros(period_us));
            constructor("api", burst.map_or(quota, |burst| quota.burst(burst))).ok()
        })
}

proptest! {
    #[test]
    fn limits_round_trip_through_json_and_toml(limit in limits()) {
        let json = serde_json::to_string(&limit).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Limit>(&json).unwrap(), &limit, "{}", json);
        let toml = toml::to_string(&limit).unwrap();
        prop_assert_eq!(&toml::from_str::<Limit>(&toml).unwrap(), &limit, "{}", toml);
    }

    #[test]
    fn parsing_arbitrary_text_does_not_panic(text in prop::collection::vec(any::<char>(), 0..12)) {
        let text: String = text.into_iter().collect();
        drop(text.parse::<Quota>());
        drop(format!("1/{text}").parse::<Quota>());
    }
}

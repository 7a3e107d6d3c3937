//! Invalid names, quotas and sub-windows are errors when a limit is built.

use std::time::Duration;

use tollgate::{ConfigError, Limit, Quota};

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
    |name, quota| Limit::sliding_window_with(name, quota, 7),
];

fn message(result: Result<Limit, ConfigError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn quotas_out_of_range_are_errors_under_every_algorithm() {
    let day = Duration::from_secs(24 * 60 * 60);
    for limit in CONSTRUCTORS {
        for (quota, why) in [
            (Quota::per_second(0), "the limit is 0"),
            (Quota::new(1, Duration::ZERO), "the period is 0"),
            (
                Quota::new(1, Duration::from_nanos(1_500)),
                "not a whole number of microseconds",
            ),
            (Quota::new(1, 367 * day), "longer than 366 days"),
            (
                Quota::new(1, Duration::MAX),
                "not a whole number of microseconds",
            ),
            (
                Quota::new(1, Duration::from_secs(u64::MAX)),
                "longer than 366 days",
            ),
            (Quota::per_second(u64::MAX), "beyond exact arithmetic"),
        ] {
            let message = message(limit("api", quota));
            assert!(
                message.starts_with("limit `api`: ") && message.contains(why),
                "{message}"
            );
        }
        assert!(limit("api", Quota::new(1, 366 * day)).is_ok());
        assert!(limit("api", Quota::new(1, Duration::from_micros(7))).is_ok());
    }
}

#[test]
fn names_unfit_for_a_header_value_are_errors() {
    for limit in CONSTRUCTORS {
        for name in [
            "",
            "a\nb",
            "a\0b",
            "ä",
            "a\"b",
            "a\\b",
            " a",
            "a ",
            &"x".repeat(65),
        ] {
            let message = message(limit(name, Quota::per_second(1)));
            assert!(message.contains("name"), "{message}");
            assert!(message.chars().all(|it| !it.is_control()), "{message:?}");
        }
        for name in ["a", "5-in-1min", "per client", "a:b{c}/d", &"x".repeat(64)] {
            assert!(limit(name, Quota::per_second(1)).is_ok());
        }
    }
}

#[test]
fn burst_is_an_error_under_algorithms_without_one() {
    let quota = Quota::per_second(10).burst(20);
    for limit in &CONSTRUCTORS[..4] {
        assert!(limit("api", quota).is_ok());
        assert!(message(limit("api", Quota::per_second(10).burst(0))).contains("the burst is 0"));
    }
    for limit in &CONSTRUCTORS[4..] {
        assert!(message(limit("api", quota)).contains("has no burst"));
    }
}

#[test]
fn numbers_beyond_exact_arithmetic_are_errors() {
    // In lowest terms, a million a day is 1 in 86,400 us.
    assert!(Limit::token_bucket("api", Quota::per_day(1_000_000)).is_ok());
    let message_of = message(Limit::token_bucket("api", Quota::per_day(1_000_001)));
    assert!(message_of.contains("use a rounder limit"), "{message_of}");
    let message_of = message(Limit::sliding_window("api", Quota::per_day(1_000_000)));
    assert!(message_of.contains("use 20 sub-windows"), "{message_of}");
    assert!(Limit::sliding_window_with("api", Quota::per_day(1_000_000), 20).is_ok());
    assert!(Limit::sliding_window_with("api", Quota::per_day(1_000_000), 19).is_err());
    let message_of = message(Limit::sliding_window("api", Quota::per_hour(1_000_000_000)));
    assert!(message_of.contains("use a fixed window"), "{message_of}");
    assert!(Limit::sliding_window_with("api", Quota::per_day(1_000_000), 24).is_ok());
    let slow = Quota::new(1, Duration::from_secs(86_400)).burst(5_000);
    assert!(message(Limit::gcra("api", slow)).contains("more than ten years to refill"));
}

#[test]
fn invalid_sub_windows_are_errors() {
    for (sub_windows, period, why) in [
        (0, 1_000, "`sub_windows` is 0; use 1 to 100"),
        (101, 1_000, "`sub_windows` is 101; use 1 to 100"),
        (u32::MAX, 1_000, "use 1 to 100"),
        (7, 6, "a sub-window lasts at least one microsecond"),
    ] {
        let quota = Quota::new(1, Duration::from_micros(period));
        assert!(message(Limit::sliding_window_with("api", quota, sub_windows)).contains(why));
    }
}

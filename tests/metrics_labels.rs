//! The labels of metrics are bounded. A process has them in common, so this is one of its own.

#![cfg(feature = "metrics")]

mod support;

use tollgate::{Key, Limit, Quota, RateLimiter};

use self::support::recorded::Recorded;

#[tokio::test]
async fn limits_beyond_a_thousand_share_a_label() {
    let recorded = Recorded::start();
    let limiter = RateLimiter::in_memory();
    for round in 0..2 {
        for number in 0..1_500 {
            let limit = Limit::gcra(&format!("of-user-{number}"), Quota::per_hour(9)).unwrap();
            drop(limiter.check(&limit, &Key::global()).await.unwrap());
        }
        let decisions = recorded.of("tollgate_decisions_total");
        assert_eq!(decisions.len(), 1_001);
        assert_eq!(
            decisions["other allowed store"],
            f64::from(500 * (round + 1))
        );
        assert_eq!(decisions["of-user-999 allowed store"], f64::from(round + 1));
    }
}

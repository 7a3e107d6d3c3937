//! One budget without a store: the pure decision and its state, at times in microseconds.

use std::time::Duration;

use tollgate::decision::Receipt;
use tollgate::store::{Op, State, decide};
use tollgate::{Check, Decision, Key, Limit, Quota};

pub const SECOND: u64 = 1_000_000;

/// A day in 2026, with odd microseconds.
pub const START: u64 = 1_790_000_123_456_789;

pub fn quota(limit: u64, period_us: u64) -> Quota {
    Quota::new(limit, Duration::from_micros(period_us))
}

/// One key under one limit.
#[derive(Clone)]
pub struct Budget {
    pub limit: Limit,
    pub state: [Option<State>; 1],
}

impl Budget {
    pub fn new(limit: Limit) -> Self {
        Self {
            limit,
            state: [None],
        }
    }

    pub fn apply(&mut self, op: Op, now: u64, cost: u32) -> Decision {
        let key = Key::new("k");
        let check = Check::new(&self.limit, &key).with_cost(cost);
        decide(op, &check.into(), &mut self.state, now).unwrap()
    }

    pub fn refund(&mut self, now: u64, units: u32, receipt: Receipt) -> Decision {
        let key = Key::new("k");
        let refund = Check::new(&self.limit, &key)
            .with_cost(units)
            .with_receipt(receipt);
        decide(Op::Refund, &refund.into(), &mut self.state, now).unwrap()
    }

    /// Settles a charge at `cost`, or charges it whole if there is no receipt.
    pub fn settle(&mut self, now: u64, cost: u32, receipt: Option<Receipt>) -> Decision {
        let settled = Check::new(&self.limit, "k")
            .with_cost(cost)
            .with_receipt(receipt);
        decide(Op::Settle, &settled.into(), &mut self.state, now).unwrap()
    }

    /// Charges units that the caller waits for.
    pub fn reserve(&mut self, now: u64, cost: u32, max_wait_us: u64) -> Decision {
        let max_wait = Duration::from_micros(max_wait_us);
        let check = Check::new(&self.limit, "k")
            .with_cost(cost)
            .with_max_wait(max_wait);
        decide(Op::Charge, &check.into(), &mut self.state, now).unwrap()
    }

    pub fn charge(&mut self, now: u64, cost: u32) -> Decision {
        self.apply(Op::Charge, now, cost)
    }
}

pub fn every_algorithm(limit: u64, period_us: u64) -> Vec<Limit> {
    let quota = quota(limit, period_us);
    vec![
        Limit::token_bucket("token_bucket", quota).unwrap(),
        Limit::leaky_bucket("leaky_bucket", quota).unwrap(),
        Limit::leaky_bucket_meter("leaky_bucket_meter", quota).unwrap(),
        Limit::gcra("gcra", quota).unwrap(),
        Limit::fixed_window("fixed_window", quota).unwrap(),
        Limit::fixed_window_aligned("fixed_window_aligned", quota).unwrap(),
        Limit::sliding_window("sliding_window", quota).unwrap(),
        Limit::sliding_window_with("sliding_window_with_5", quota, 5).unwrap(),
        Limit::sliding_log("sliding_log", quota).unwrap(),
    ]
}

//! One budget without a store: the pure decision and its state, at times in microseconds.

use std::time::Duration;

use tollgate::decision::Receipt;
use tollgate::store::{self, Change, Operation, State, decide};
use tollgate::{Check, Decision, Limit, Quota};

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

    fn decide(&mut self, now: u64, operation: &Operation) -> Decision {
        decide(operation, &mut self.state, Duration::from_micros(now)).unwrap()
    }

    fn change(&mut self, now: u64, change: Change) -> Decision {
        let budget = store::Budget::new(&self.limit, "k");
        self.decide(now, &Operation::Change(budget, change))
    }

    pub fn charge(&mut self, now: u64, cost: u32) -> Decision {
        let check = Check::new(&self.limit, "k").with_cost(cost);
        self.decide(now, &Operation::Charge(check.into()))
    }

    pub fn peek(&mut self, now: u64, cost: u32) -> Decision {
        let check = Check::new(&self.limit, "k").with_cost(cost);
        self.decide(now, &Operation::Peek(check.into()))
    }

    pub fn refund(&mut self, now: u64, units: u32, receipt: Receipt) -> Decision {
        let cost = receipt.cost().saturating_sub(units);
        self.settle(now, cost, receipt)
    }

    /// Settles a charge at `cost`, or charges it whole if there is no receipt.
    pub fn settle(&mut self, now: u64, cost: u32, receipt: impl Into<Option<Receipt>>) -> Decision {
        let receipt = receipt.into().unwrap_or_default();
        self.change(now, Change::Settle { receipt, cost })
    }

    pub fn reset(&mut self, now: u64) -> Decision {
        self.change(now, Change::Reset)
    }

    /// Charges units that the caller waits for.
    pub fn reserve(&mut self, now: u64, cost: u32, max_wait_us: u64) -> Decision {
        let max_wait = Duration::from_micros(max_wait_us);
        let check = Check::new(&self.limit, "k")
            .with_cost(cost)
            .with_max_wait(max_wait);
        self.decide(now, &Operation::Charge(check.into()))
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

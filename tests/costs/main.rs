//! Costs that are refunded or settled.

mod interactions;
mod refunds;
mod settled_costs;
mod settlement;

#[path = "../support/mod.rs"]
mod support;

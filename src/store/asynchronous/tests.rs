mod every_order;
mod every_order_on_credit;
mod explorer;
#[cfg(feature = "test-util")]
mod fleets;

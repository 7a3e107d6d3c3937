mod every_order;
#[cfg(feature = "test-util")]
mod fleets;

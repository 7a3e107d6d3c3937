mod every_order;
mod every_order_on_credit;
mod explorer;
mod fleets;
mod rounds;

/// The number of random histories that a test runs. `make histories` runs more.
fn histories(usual: u32) -> u32 {
    let more = std::env::var("HISTORIES").ok();
    more.map_or(usual, |it| it.parse().expect("HISTORIES is a number"))
}

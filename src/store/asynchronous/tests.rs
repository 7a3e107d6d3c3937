mod every_order;
mod every_order_on_credit;
mod explorer;
mod fleets;

//! Checks and requests that wait for units.

mod acquire_bounds;
mod distant_store;
mod interactions;
mod overrides;
mod queue_places;
mod requests;
mod reservations;
mod reserved_turns;

#[path = "../support/mod.rs"]
mod support;

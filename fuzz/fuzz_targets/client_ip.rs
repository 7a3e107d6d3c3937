//! Any bytes as forwarding headers: nothing panics, and `ClientIp` finds the client of the
//! reference.

#![no_main]

#[path = "../../tests/support/client_ip_reference.rs"]
mod reference;

libfuzzer_sys::fuzz_target!(|input: &[u8]| reference::compare(input));

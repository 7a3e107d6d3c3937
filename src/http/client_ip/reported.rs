//! The addresses that were reported.

use std::net::IpAddr;
use std::sync::OnceLock;

/// The most addresses that are reported. A service with more private clients than that has no use
/// for further events.
const MOST: usize = 16;

/// The first addresses that were reported, without a lock, because every request of a private
/// client asks.
#[derive(Debug, Default)]
pub(super) struct ReportedAddresses([OnceLock<IpAddr>; MOST]);

impl ReportedAddresses {
    /// Returns whether an address has to be reported, because it was not, and few others were.
    pub(super) fn is_new(&self, address: IpAddr) -> bool {
        for place in &self.0 {
            let mut is_own = false;
            let taken_by = place.get_or_init(|| {
                is_own = true;
                address
            });
            if is_own || *taken_by == address {
                return is_own;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_first_addresses_is_new_once() {
        let reported = ReportedAddresses::default();
        for last in 0..20_u8 {
            let address = IpAddr::from([10, 0, 1, last]);
            assert_eq!(reported.is_new(address), last < 16, "{address}");
            assert!(!reported.is_new(address), "{address} again");
        }
    }
}

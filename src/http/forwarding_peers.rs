//! Untrusted proxies on the Internet, such as a CDN, found by the many clients that they name.
//!
//! All clients behind such a proxy share one budget, and each answer looks right.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use crate::units::Mutex;

/// The clients that a peer has named when it is taken for a proxy.
pub(super) const MANY: usize = 20;

/// The peers that are watched at once.
const MOST_PEERS: usize = 32;

/// The peers that sent a forwarding header, each with hashes of the clients that it named first.
#[derive(Debug, Default)]
pub(super) struct ForwardingPeers(Mutex<Vec<(IpAddr, Vec<u64>)>>);

impl ForwardingPeers {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Sees the first entry of a header. Returns whether the peer has now named [`MANY`] clients.
    pub(super) fn see(&self, peer: IpAddr, header: &[u8]) -> bool {
        // A request does not wait for another one, because there are more to come.
        let Some(mut peers) = self.0.try_lock() else {
            return false;
        };
        let client = header.split(|byte| *byte == b',').next();
        let mut hasher = DefaultHasher::new();
        client.unwrap_or_default().trim_ascii().hash(&mut hasher);
        let client = hasher.finish();
        let Some((_, clients)) = peers.iter_mut().find(|(known, _)| *known == peer) else {
            if peers.len() == MOST_PEERS {
                forget_one(&mut peers);
            }
            peers.push((peer, vec![client]));
            return false;
        };
        if clients.contains(&client) {
            return false;
        }
        clients.push(client);
        clients.len() == MANY
    }
}

/// Forgets the peer with the fewest clients, and the oldest of those. A proxy names others all the
/// time.
fn forget_one(peers: &mut Vec<(IpAddr, Vec<u64>)>) {
    let fewest = peers.iter().enumerate();
    let fewest = fewest.min_by_key(|(_, (_, clients))| clients.len());
    if let Some((place, _)) = fewest {
        peers.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        [198, 51, 100, last].into()
    }

    #[test]
    fn peer_is_reported_once_when_it_has_named_many_clients() {
        let peers = ForwardingPeers::new();
        for client in 0..100_usize {
            let header = format!(" 203.0.113.{client} , 10.0.0.1");
            for repeated in [false, true] {
                let is_proxy = client + 1 == MANY && !repeated;
                assert_eq!(peers.see(peer(1), header.as_bytes()), is_proxy, "{client}");
            }
        }
    }

    #[test]
    fn proxy_is_found_among_any_number_of_peers_that_name_one_client() {
        let peers = ForwardingPeers::new();
        assert!(!peers.see(peer(1), b"first"));
        let mut found = 0;
        for client in 0..MANY {
            found += u32::from(peers.see(peer(1), client.to_string().as_bytes()));
            for other in 2..=255 {
                assert!(!peers.see(peer(other), b"203.0.113.9"));
            }
        }
        assert_eq!(found, 1);
        assert_eq!(peers.0.lock().len(), MOST_PEERS);
    }
}

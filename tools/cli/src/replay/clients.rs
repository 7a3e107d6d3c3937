//! Who sent a request: the peer, or the client that trusted proxies name.

use std::collections::HashMap;
use std::net::IpAddr;

use anyhow::bail;
use ipnet::IpNet;
use serde::Serialize;

use super::request::{Request, address};

/// Where proxies are, unless `--trusted` says otherwise.
const PRIVATE: [&str; 6] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "127.0.0.0/8",
    "fc00::/7",
    "::1/128",
];

/// Networks that clients on the internet do not have, though nobody trusts them without being told
/// to.
const SHARED_AND_LINK_LOCAL: [&str; 3] = ["100.64.0.0/10", "169.254.0.0/16", "fe80::/10"];

/// The share of requests in percent from which private addresses are reported: a service of the
/// internet has few.
const NEARLY_ALL: u64 = 90;

/// How many addresses a report names.
const NAMED: usize = 5;

/// Finds clients, and counts those that may be proxies.
pub(super) struct Clients {
    trusted: Vec<IpNet>,
    is_told: bool,
    private: Vec<IpNet>,
    forwarded: u64,
    requests: u64,
    /// Requests of clients in private networks.
    of_private: HashMap<IpAddr, OfPrivate>,
}

#[derive(Default)]
struct OfPrivate {
    requests: u64,
    /// A trusted proxy named it, and it is not trusted itself.
    is_named: bool,
}

/// Clients in private networks: each may be a proxy, behind which all clients share a budget.
#[derive(Debug, Serialize)]
pub(super) struct PrivateClients {
    pub(super) requests: u64,
    pub(super) addresses: u64,
    /// Those with the most requests.
    pub(super) most: Vec<IpAddr>,
    /// Those that are no trusted proxies, but that a trusted proxy named.
    pub(super) named_by_proxies: Vec<IpAddr>,
    /// `true` if X-Forwarded-For was in the log.
    pub(super) has_forwarded_for: bool,
}

impl Clients {
    pub(super) fn new(trusted: &[IpNet]) -> Self {
        let networks = |texts: &[&str]| texts.iter().filter_map(|it| it.parse().ok()).collect();
        let private: Vec<IpNet> = networks(&PRIVATE);
        let is_told = !trusted.is_empty();
        Self {
            trusted: if is_told {
                trusted.to_vec()
            } else {
                private.clone()
            },
            is_told,
            private: [private, networks(&SHARED_AND_LINK_LOCAL)].concat(),
            forwarded: 0,
            requests: 0,
            of_private: HashMap::new(),
        }
    }

    /// Replaces the peer of a request by the client that proxies name, and counts it.
    pub(super) fn find(&mut self, request: &mut Request<'_>) {
        let peer = request.client_ip;
        let header = request.forwarded_for.as_deref();
        self.forwarded += u64::from(header.is_some());
        request.client_ip = self.client(peer, header);
        let Some(client) = request.client_ip else {
            return;
        };
        self.requests += 1;
        if contain(&self.private, client) {
            let is_named = peer != Some(client) && !contain(&self.trusted, client);
            let count = self.of_private.entry(client).or_default();
            count.requests += 1;
            count.is_named |= is_named;
        }
    }

    /// The last address that no trusted proxy has, of those in the header and then the peer: those
    /// before it are what the client says.
    fn client(&self, peer: Option<IpAddr>, forwarded_for: Option<&str>) -> Option<IpAddr> {
        let is_trusted = |address| contain(&self.trusted, address);
        if peer.is_some_and(|peer| !is_trusted(peer)) {
            return peer;
        }
        let mut client = peer;
        for entry in forwarded_for
            .into_iter()
            .flat_map(|header| header.rsplit(','))
        {
            client = Some(address(entry)?);
            if !client.is_some_and(is_trusted) {
                break;
            }
        }
        client
    }

    /// Trusted networks that no line needed are a mistake: the report would be another than was
    /// asked for.
    pub(super) fn check_trusted(&self, format: &str) -> anyhow::Result<()> {
        if self.is_told && self.forwarded == 0 {
            bail!(
                "--trusted has no effect: no line of this log ({format}) has X-Forwarded-For; log \
                 it (nginx: \"$http_x_forwarded_for\" at the end of log_format), or leave \
                 --trusted out"
            );
        }
        Ok(())
    }

    /// Clients that may be proxies, if there are so many that they hardly are anything else, or if
    /// a proxy named them.
    pub(super) fn private(&self) -> Option<PrivateClients> {
        let mut addresses: Vec<_> = self.of_private.iter().collect();
        addresses.sort_by_key(|(address, it)| (u64::MAX - it.requests, **address));
        let requests = addresses.iter().map(|(_, it)| it.requests).sum();
        let few = |is_listed: &dyn Fn(&OfPrivate) -> bool| {
            let listed = addresses.iter().filter(|(_, it)| is_listed(it));
            listed
                .map(|(address, _)| **address)
                .take(NAMED)
                .collect::<Vec<_>>()
        };
        let found = PrivateClients {
            requests,
            addresses: addresses.len() as u64,
            most: few(&|_| true),
            named_by_proxies: few(&|it| it.is_named),
            has_forwarded_for: self.forwarded > 0,
        };
        let is_reported = found.is_nearly_all(self.requests) || !found.named_by_proxies.is_empty();
        is_reported.then_some(found)
    }
}

impl PrivateClients {
    pub(super) fn is_nearly_all(&self, requests: u64) -> bool {
        self.requests > 0 && self.requests * 100 >= requests * NEARLY_ALL
    }
}

fn contain(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(peer: &str, forwarded_for: Option<&'a str>) -> Request<'a> {
        let forwarded_for = forwarded_for.map(Into::into);
        Request {
            client_ip: peer.parse().ok(),
            forwarded_for,
            ..Request::default()
        }
    }

    #[test]
    fn client_is_the_last_address_outside_of_the_trusted_networks() {
        let mut clients = Clients::new(&["10.0.0.0/8".parse().unwrap()]);
        for (peer, header, found) in [
            // The peer is in Envoy's header.
            ("-", "203.0.113.7", Some("203.0.113.7")),
            ("-", "6.6.6.6, 203.0.113.7,10.0.0.1", Some("203.0.113.7")),
            ("-", "10.0.0.2,10.0.0.1", Some("10.0.0.2")),
            ("-", "spoofed,10.0.0.1", None),
            ("10.0.0.1", "203.0.113.7", Some("203.0.113.7")),
            (
                "10.0.0.1",
                "6.6.6.6, 203.0.113.7, 10.0.0.2",
                Some("203.0.113.7"),
            ),
            ("203.0.113.7", "6.6.6.6", Some("203.0.113.7")),
            ("203.0.113.7", "spoofed", Some("203.0.113.7")),
        ] {
            let mut request = request(peer, Some(header));
            clients.find(&mut request);
            assert_eq!(
                request.client_ip,
                found.map(|it| it.parse().unwrap()),
                "{peer}, {header}"
            );
        }
        let mut direct = request("10.0.0.1", None);
        clients.find(&mut direct);
        assert_eq!(direct.client_ip, "10.0.0.1".parse().ok());
    }

    #[test]
    fn private_client_that_a_trusted_proxy_names_is_reported() {
        let mut clients = Clients::new(&["10.0.2.0/24".parse().unwrap()]);
        for client in ["198.51.100.1", "198.51.100.2", "198.51.100.3", "10.0.1.9"] {
            clients.find(&mut request("10.0.2.5", Some(client)));
        }
        let found = clients.private().unwrap();
        assert_eq!(
            found.named_by_proxies,
            ["10.0.1.9".parse::<IpAddr>().unwrap()]
        );
        assert!(!found.is_nearly_all(4));
    }

    #[test]
    fn few_private_clients_that_connect_themselves_are_not_reported() {
        let mut clients = Clients::new(&[]);
        for peer in ["198.51.100.1", "198.51.100.2", "100.64.0.9", "10.0.1.9"] {
            clients.find(&mut request(peer, None));
        }
        assert!(clients.private().is_none());
        for _ in 0..20 {
            clients.find(&mut request("100.64.0.9", None));
        }
        assert_eq!(clients.private().unwrap().most.len(), 2);
    }
}

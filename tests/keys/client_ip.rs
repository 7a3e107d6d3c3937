//! `ClientIp`: which address counts, behind which proxies.

#![cfg(feature = "http")]

use std::net::{IpAddr, SocketAddr};

use http::Request;
use http::request::Parts;
use tollgate::Key;
use tollgate::key::{ClientIp, KeyExtractor, Networks, PeerIp};

/// A proxy in `10.0.0.0/8`.
const PROXY: &str = "10.0.0.1";

fn head(peer: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::new(());
    for &(name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        let value = http::HeaderValue::from_bytes(value.as_bytes()).unwrap();
        request.headers_mut().append(name, value);
    }
    request
        .extensions_mut()
        .insert(SocketAddr::new(peer.parse().unwrap(), 4711));
    request.into_parts().0
}

/// The address, or the error message that clients get.
fn client(client: &ClientIp, peer: &str, headers: &[(&str, &str)]) -> Result<String, String> {
    let address = client.address(&head(peer, headers));
    address
        .map(|it| it.to_string())
        .map_err(|missing| missing.to_string())
}

fn unknown() -> Result<String, String> {
    Err("the client's address is unknown".to_owned())
}

fn found(address: &str) -> Result<String, String> {
    Ok(address.to_owned())
}

fn lines<'a>(name: &'a str, values: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    values.iter().map(|value| (name, *value)).collect()
}

#[test]
fn client_is_the_first_untrusted_address_from_the_right() {
    let behind = ClientIp::behind(["10.0.0.0/8", "203.0.113.0/24", "2606:4700::/32"]).unwrap();
    for (values, expected) in [
        (&["198.51.100.7"][..], "198.51.100.7"),
        (&["192.0.2.1, 198.51.100.7"], "198.51.100.7"),
        (&["192.0.2.1,198.51.100.7"], "198.51.100.7"),
        (&["198.51.100.7, 203.0.113.50"], "198.51.100.7"),
        (&["198.51.100.7, 203.0.113.50, 10.1.2.3"], "198.51.100.7"),
        (&["198.51.100.7, 203.0.113.0"], "198.51.100.7"),
        (&["198.51.100.7, 203.0.113.255"], "198.51.100.7"),
        (&["203.0.114.1, 203.0.113.1"], "203.0.114.1"),
        (&["198.51.100.7, 2606:4700::1, 203.0.113.5"], "198.51.100.7"),
        (&["203.0.113.1, 2001:db8::1"], "2001:db8::1"),
        // A private address between trusted proxies is a client.
        (&["192.168.1.50, 203.0.113.10"], "192.168.1.50"),
        // Several lines are one list.
        (&["192.0.2.1", "198.51.100.7"], "198.51.100.7"),
        (
            &["192.0.2.1", "198.51.100.7, 203.0.113.50", "10.1.2.3"],
            "198.51.100.7",
        ),
        // Empty entries count for nothing.
        (&["198.51.100.7, ,, 10.1.2.3,,", "", " , "], "198.51.100.7"),
        (&["oh, hi,,192.0.2.1,,,,"], "192.0.2.1"),
        // Ports, brackets, zones and IPv4-mapped addresses.
        (&["198.51.100.7:47011"], "198.51.100.7"),
        (&["[2001:db8::1]:47011"], "2001:db8::1"),
        (&["[2001:db8::1]"], "2001:db8::1"),
        (&["2001:db8::1%eth0"], "2001:db8::1"),
        (&["2001:0DB8:0000::0001"], "2001:db8::1"),
        (&["::ffff:198.51.100.7"], "198.51.100.7"),
        (&["198.51.100.7, ::ffff:10.0.0.5"], "198.51.100.7"),
        (&["198.51.100.7, [2606:4700::1%attacker]"], "198.51.100.7"),
        // What is to the left is not read.
        (&["garbage, 198.51.100.7, 10.1.2.3"], "198.51.100.7"),
        (&["garbage", "198.51.100.7, 10.1.2.3"], "198.51.100.7"),
        // All of them are trusted: the peer is the client.
        (&["10.1.1.1, 10.1.2.3"], PROXY),
        (&["::ffff:10.0.0.5, 10.0.0.1"], PROXY),
        (&["2606:4700::1%attacker, 2606:4700::5"], PROXY),
        (&[""], PROXY),
        (&[], PROXY),
    ] {
        let headers = lines("x-forwarded-for", values);
        assert_eq!(
            client(&behind, PROXY, &headers),
            found(expected),
            "{values:?}"
        );
    }
}

#[test]
fn entry_that_is_not_an_address_ends_the_walk() {
    let behind = ClientIp::behind(["10.0.0.0/8"]).unwrap();
    let forgiving = behind.clone().use_peer_if_invalid();
    for value in [
        "198.51.100.7, garbage",
        "198.51.100.7, garbage, 10.1.2.3",
        "198.51.100.7, unknown",
        "198.51.100.7, _hidden",
        "198.51.100.7, 192.0.2.1:",
        "198.51.100.7, 192.0.2.1:99999",
        "198.51.100.7, 192.0.2.1:+1",
        "198.51.100.7, 192.0.2.1:1:2",
        "198.51.100.7, 192.0.2",
        "198.51.100.7, 192.0.2.01",
        "198.51.100.7, 0xC0000201",
        "198.51.100.7, [2001:db8::1",
        "198.51.100.7, [2001:db8::1]x",
        "198.51.100.7, [192.0.2.1]",
        "198.51.100.7, 2001:db8::1%",
        "198.51.100.7, [2001:db8::1%a]b]",
        "198.51.100.7, 2001:db8::1%<zone>",
        "198.51.100.7, 192.0.2.1 192.0.2.2",
        "198.51.100.7, \"192.0.2.1\"",
        "198.51.100.7, caf\u{e9}",
        "198.51.100.7, http://192.0.2.1",
    ] {
        let headers = [("x-forwarded-for", value)];
        assert_eq!(client(&behind, PROXY, &headers), unknown(), "{value}");
        assert_eq!(client(&forgiving, PROXY, &headers), found(PROXY), "{value}");
    }
}

#[test]
fn untrusted_peer_is_the_client_whatever_it_sends() {
    let trusted = ["10.0.0.0/8"];
    for behind in [
        ClientIp::behind(trusted).unwrap(),
        ClientIp::behind(trusted).unwrap().forwarded(),
        ClientIp::behind(trusted)
            .unwrap()
            .header("X-Real-IP")
            .unwrap(),
        ClientIp::cloudflare(trusted).unwrap(),
        ClientIp::behind([""; 0]).unwrap(),
        ClientIp::direct(),
    ] {
        for name in [
            "x-forwarded-for",
            "forwarded",
            "x-real-ip",
            "cf-connecting-ip",
        ] {
            for value in ["203.0.113.9", "for=203.0.113.9", "10.0.0.1", "garbage", ""] {
                let headers = [(name, value)];
                assert_eq!(client(&behind, "192.0.2.1", &headers), found("192.0.2.1"));
                assert_eq!(
                    client(&behind, "::ffff:192.0.2.1", &headers),
                    found("192.0.2.1")
                );
            }
        }
    }
}

#[test]
fn nth_address_from_the_right_counts_behind_hops() {
    for (hops, values, expected) in [
        (1, &["192.0.2.1, 192.0.2.2"][..], found("192.0.2.2")),
        (2, &["192.0.2.1, 192.0.2.2, 192.0.2.3"], found("192.0.2.2")),
        (
            3,
            &["192.0.2.1, 192.0.2.2, 192.0.2.3, 192.0.2.4"],
            found("192.0.2.2"),
        ),
        (2, &["192.0.2.1, 192.0.2.2"], found("192.0.2.1")),
        (
            2,
            &["192.0.2.1", "192.0.2.2", "192.0.2.3"],
            found("192.0.2.2"),
        ),
        (
            2,
            &[",,, 192.0.2.3, 192.0.2.1, 192.0.2.2, ,"],
            found("192.0.2.1"),
        ),
        (2, &["192.0.2.1, garbage"], found("192.0.2.1")),
        (2, &["garbage, 192.0.2.2"], unknown()),
        (3, &["192.0.2.1, 192.0.2.2"], unknown()),
        (1, &[""], unknown()),
        (1, &[], unknown()),
    ] {
        let behind = ClientIp::behind_hops(hops).unwrap();
        let headers = lines("x-forwarded-for", values);
        assert_eq!(
            client(&behind, PROXY, &headers),
            expected,
            "{hops} {values:?}"
        );
    }
    let forwarded = ClientIp::behind_hops(2).unwrap().forwarded();
    let headers = [
        ("forwarded", "for=192.0.2.1, for=192.0.2.2"),
        ("forwarded", "for=192.0.2.3"),
    ];
    assert_eq!(client(&forwarded, PROXY, &headers), found("192.0.2.2"));
    // The number of elements of a malformed line is unknown.
    let open_quote = [
        ("forwarded", "for=6.6.6.6"),
        ("forwarded", "x=\", for=192.0.2.1, for=192.0.2.2"),
    ];
    assert_eq!(client(&forwarded, PROXY, &open_quote), unknown());
    let forgiving = ClientIp::behind_hops(2).unwrap().use_peer_if_missing();
    assert_eq!(
        client(&forgiving, PROXY, &[("x-forwarded-for", "192.0.2.1")]),
        found(PROXY)
    );
}

/// The example of `ngx_http_realip_module`, with `real_ip_recursive on`.
#[test]
fn documented_example_of_nginx() {
    let behind = ClientIp::nginx(["192.168.1.0/24", "192.168.2.1", "2001:0db8::/32"]).unwrap();
    for (peer, value, expected) in [
        ("192.168.1.9", "203.0.113.1, 198.51.100.7", "198.51.100.7"),
        (
            "192.168.1.9",
            "203.0.113.1, 198.51.100.7, 192.168.2.1",
            "198.51.100.7",
        ),
        (
            "192.168.2.1",
            "198.51.100.7:8080, 2001:db8::9",
            "198.51.100.7",
        ),
        ("192.168.2.2", "198.51.100.7", "192.168.2.2"),
        ("2001:db8:1::1", "198.51.100.7, 192.168.2.2", "192.168.2.2"),
    ] {
        let headers = [("x-forwarded-for", value)];
        assert_eq!(
            client(&behind, peer, &headers),
            found(expected),
            "{peer}: {value}"
        );
    }
}

/// `option forwardfor` adds a line at the end. `except 127.0.0.0/8` adds none for these peers.
#[test]
fn documented_example_of_haproxy() {
    let behind = ClientIp::haproxy(["10.0.0.0/8", "127.0.0.0/8"]).unwrap();
    let spoofed = lines("x-forwarded-for", &["127.0.0.1", "198.51.100.7"]);
    assert_eq!(client(&behind, PROXY, &spoofed), found("198.51.100.7"));
    // A local stunnel connects to HAProxy, and has added the client.
    let through_stunnel = lines("x-forwarded-for", &["198.51.100.7"]);
    assert_eq!(
        client(&behind, "127.0.0.1", &through_stunnel),
        found("198.51.100.7")
    );
    // `option forwarded`, from a Unix socket and from a client.
    let forwarded = behind.forwarded();
    let headers = [("forwarded", "proto=http;for=unknown")];
    assert_eq!(client(&forwarded, PROXY, &headers), unknown());
    let headers = [
        ("forwarded", "for=203.0.113.9"),
        ("forwarded", "proto=http;for=\"[2001:db8::7]\""),
    ];
    assert_eq!(client(&forwarded, PROXY, &headers), found("2001:db8::7"));
}

/// The six examples in the documentation of Envoy's `x-forwarded-for`.
#[test]
fn documented_examples_of_envoy() {
    let edge = "203.0.113.128, 203.0.113.10, 203.0.113.1";
    let internal = "203.0.113.128, 203.0.113.10, 203.0.113.1, 192.0.2.5";
    let hops = |hops| ClientIp::behind_hops(hops).unwrap().use_peer_if_missing();
    for (example, settings, peer, values, expected) in [
        (1, ClientIp::direct(), "192.0.2.5", &[edge][..], "192.0.2.5"),
        (2, hops(1), "10.11.12.13", &[internal], "192.0.2.5"),
        (3, hops(2), "192.0.2.5", &[edge], "203.0.113.10"),
        (4, hops(3), "10.11.12.13", &[internal], "203.0.113.10"),
        (5, hops(1), "10.20.30.40", &[], "10.20.30.40"),
        (6, hops(1), "10.20.30.50", &["10.20.30.40"], "10.20.30.40"),
    ] {
        let headers = lines("x-forwarded-for", values);
        assert_eq!(
            client(&settings, peer, &headers),
            found(expected),
            "example {example}"
        );
    }
}

#[test]
fn forwarded_elements_are_read_from_right_to_left() {
    let behind = ClientIp::behind(["10.0.0.0/8", "fd00::/8"])
        .unwrap()
        .forwarded();
    for (values, expected) in [
        (&["for=192.0.2.60"][..], found("192.0.2.60")),
        (
            &["For=192.0.2.60;proto=http;by=203.0.113.43"],
            found("192.0.2.60"),
        ),
        (&["FOR=\"192.0.2.43:47011\""], found("192.0.2.43")),
        (&["for=\"192.0.2.43:_secret\""], found("192.0.2.43")),
        (&["for=\"[2001:db8::1]\""], found("2001:db8::1")),
        (
            &["for=\"[2001:db8:cafe::17]:4711\""],
            found("2001:db8:cafe::17"),
        ),
        (
            &["for=192.0.2.43, for=198.51.100.17"],
            found("198.51.100.17"),
        ),
        (
            &["for=192.0.2.43", "for=198.51.100.17"],
            found("198.51.100.17"),
        ),
        (
            &["for=192.0.2.43, for=10.0.0.9;by=10.0.0.8"],
            found("192.0.2.43"),
        ),
        (&["for=192.0.2.43 , for=\"[fd00::1]\""], found("192.0.2.43")),
        (
            &[" for=192.0.2.43 ; proto=https ,, ", ""],
            found("192.0.2.43"),
        ),
        (
            &["host=\"a,b;for=1.2.3.4\";for=192.0.2.43"],
            found("192.0.2.43"),
        ),
        (&["for=\"\\192.0.2.43\""], found("192.0.2.43")),
        (&["by=\"\\\"\";for=192.0.2.43"], found("192.0.2.43")),
        (&["for=10.0.0.9"], found(PROXY)),
        (&[], found(PROXY)),
        // Obfuscated, unknown or missing: the entries to the left are not trusted.
        (&["for=192.0.2.43, for=unknown"], unknown()),
        (&["for=192.0.2.43, for=_gazonk"], unknown()),
        (&["for=192.0.2.43, for=\"_hidden:_secret\""], unknown()),
        (&["for=192.0.2.43, by=203.0.113.43;proto=http"], unknown()),
        (&["for=192.0.2.43, for="], unknown()),
        (&["for=192.0.2.43, for=\"\""], unknown()),
        (
            &["for=192.0.2.43, for=192.0.2.44;for=192.0.2.45"],
            unknown(),
        ),
        // An open quote does not swallow the next element.
        (&["for=192.0.2.43;by=\", for=198.51.100.17"], unknown()),
        (&["for=\"\\\"192.0.2.43\""], unknown()),
        (&["for=[2001:db8::1]"], unknown()),
        (&["for = 192.0.2.43"], unknown()),
        (&["192.0.2.43"], unknown()),
        (&["for=192.0.2.43 for=192.0.2.44"], unknown()),
        // A malformed line to the left is not read.
        (&["for=\"", "for=198.51.100.17"], found("198.51.100.17")),
    ] {
        let headers = lines("forwarded", values);
        assert_eq!(client(&behind, PROXY, &headers), expected, "{values:?}");
    }
}

#[test]
fn only_the_configured_header_is_read() {
    let headers = [
        ("x-forwarded-for", "192.0.2.1"),
        ("forwarded", "for=192.0.2.2"),
        ("x-real-ip", "192.0.2.3"),
        ("cf-connecting-ip", "192.0.2.4"),
        ("fly-client-ip", "192.0.2.5"),
        ("cloudfront-viewer-address", "192.0.2.6:443"),
        ("x_forwarded_for", "192.0.2.7"),
    ];
    let trusted = ["10.0.0.0/8"];
    for (settings, expected) in [
        (ClientIp::behind(trusted), "192.0.2.1"),
        (ClientIp::nginx(trusted), "192.0.2.1"),
        (ClientIp::haproxy(trusted), "192.0.2.1"),
        (ClientIp::envoy(trusted), "192.0.2.1"),
        (ClientIp::aws_alb(trusted), "192.0.2.1"),
        (ClientIp::kubernetes_ingress(trusted), "192.0.2.1"),
        (
            ClientIp::behind(trusted).map(ClientIp::forwarded),
            "192.0.2.2",
        ),
        (
            ClientIp::behind(trusted).and_then(|it| it.header("X-Real-IP")),
            "192.0.2.3",
        ),
        (ClientIp::cloudflare(trusted), "192.0.2.4"),
        (ClientIp::fly(trusted), "192.0.2.5"),
        (ClientIp::cloudfront(trusted), "192.0.2.6"),
        (
            ClientIp::behind(trusted).and_then(|it| it.header("x-envoy-external-address")),
            PROXY,
        ),
    ] {
        assert_eq!(client(&settings.unwrap(), PROXY, &headers), found(expected));
    }
}

#[test]
fn header_of_one_address_has_exactly_one() {
    let behind = ClientIp::behind(["10.0.0.0/8"])
        .unwrap()
        .header("X-Real-IP")
        .unwrap();
    for (values, expected) in [
        (&[" 192.0.2.3\t"][..], found("192.0.2.3")),
        (&["2001:db8::3"], found("2001:db8::3")),
        // A trusted address is an address here: the proxy says so.
        (&["10.0.0.9"], found("10.0.0.9")),
        (&["192.0.2.3", "192.0.2.3"], unknown()),
        (&["192.0.2.3, 192.0.2.4"], unknown()),
        (&[""], unknown()),
        (&["unknown"], unknown()),
        (&[], found(PROXY)),
    ] {
        assert_eq!(
            client(&behind, PROXY, &lines("x-real-ip", values)),
            expected,
            "{values:?}"
        );
    }
    let strict = behind.reject_if_missing();
    assert_eq!(client(&strict, PROXY, &[]), unknown());
    let cloudfront = ClientIp::cloudfront(["10.0.0.0/8"]).unwrap();
    for (value, expected) in [
        ("198.51.100.10:46532", found("198.51.100.10")),
        ("2001:db8::1:443", found("2001:db8::1")),
        (
            "2001:db8:85a3:0:0:8a2e:370:7334:443",
            found("2001:db8:85a3::8a2e:370:7334"),
        ),
        ("[2001:db8::1]:443", found("2001:db8::1")),
        ("198.51.100.10", unknown()),
    ] {
        let headers = [("cloudfront-viewer-address", value)];
        assert_eq!(client(&cloudfront, PROXY, &headers), expected, "{value}");
    }
}

#[test]
fn work_is_bounded_on_any_header() {
    let behind = ClientIp::behind(["10.0.0.0/8"]).unwrap();
    let trusted = vec!["10.0.0.9"; 10_000].join(",");
    let long = "9".repeat(1 << 20);
    for value in [
        format!("192.0.2.1,{trusted}"),
        format!("192.0.2.1{}", ",".repeat(10_000)),
        format!("192.0.2.1,{}", " ".repeat(1 << 20)),
        format!("192.0.2.1,{long}"),
        long.clone(),
    ] {
        let headers = [("x-forwarded-for", &*value)];
        assert_eq!(
            client(&behind, PROXY, &headers),
            unknown(),
            "{} bytes",
            value.len()
        );
    }
    // What the client sent is long. What the proxies wrote decides.
    let value = format!("{long}, 192.0.2.1, 10.0.0.9");
    assert_eq!(
        client(&behind, PROXY, &[("x-forwarded-for", &value)]),
        found("192.0.2.1")
    );
    let many = vec![("x-forwarded-for", "10.0.0.9"); 1_000];
    assert_eq!(client(&behind, PROXY, &many), unknown());
    let forwarded = behind.forwarded();
    for value in [
        format!("for=\"{long}\", for=192.0.2.1"),
        vec!["for=10.0.0.9"; 500].join(","),
    ] {
        let headers = [("forwarded", &*value)];
        assert_eq!(
            client(&forwarded, PROXY, &headers),
            unknown(),
            "{} bytes",
            value.len()
        );
    }
}

#[test]
fn clients_are_counted_by_network() {
    let key = |client: &ClientIp, peer| client.extract(&head(peer, &[])).unwrap();
    let default = ClientIp::direct();
    assert_eq!(
        key(&default, "192.0.2.1"),
        PeerIp::key_of("192.0.2.1".parse().unwrap())
    );
    assert_eq!(
        key(&default, "2001:db8::1"),
        PeerIp::key_of("2001:db8::2".parse().unwrap())
    );
    let wide = ClientIp::direct()
        .ipv6_prefix(48)
        .unwrap()
        .ipv4_prefix(24)
        .unwrap();
    for (peer, network) in [
        ("192.0.2.200", "192.0.2.0/24"),
        ("::ffff:192.0.2.1", "192.0.2.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("64:ff9b::192.0.2.1", "64:ff9b::/48"),
    ] {
        let address: IpAddr = peer.parse().unwrap();
        assert_eq!(wide.network_of(address).to_string(), network);
        assert_eq!(
            key(&wide, peer),
            Key::from(wide.network_of(address)),
            "{peer}"
        );
    }
    let whole = ClientIp::direct().ipv6_prefix(128).unwrap();
    assert_ne!(key(&whole, "2001:db8::1"), key(&whole, "2001:db8::2"));
    assert_eq!(
        default
            .network_of("2001:db8::9".parse().unwrap())
            .to_string(),
        "2001:db8::/64"
    );
    let network = wide.network_of("2001:db8:1:2::3".parse().unwrap());
    assert_eq!(
        (network.address().to_string(), network.prefix_len()),
        ("2001:db8:1::".to_owned(), 48)
    );
    assert_ne!(
        key(&wide, "192.0.2.1"),
        key(&ClientIp::direct(), "192.0.2.0")
    );
}

#[test]
fn networks_convert_from_strings_and_lists_of_them() {
    let list = vec!["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()];
    for behind in [
        ClientIp::behind(&list),
        ClientIp::behind(list.as_slice()),
        ClientIp::behind(&["10.0.0.0/8", "fd00::/8"]),
        ClientIp::behind(list.clone()),
        ClientIp::behind("10.0.0.0/8"),
    ] {
        let headers = [("x-forwarded-for", "192.0.2.1")];
        assert_eq!(
            client(&behind.unwrap(), PROXY, &headers),
            found("192.0.2.1")
        );
    }
    assert!(Networks::default().is_empty() && !Networks::new(list).unwrap().is_empty());
}

/// For an unknown client, `is_in` (for `skip`) is false, and `may_be_in` (for `forbid`) is true.
#[test]
fn unknown_client_is_in_no_network_and_may_be_in_any() {
    let networks = ["10.0.0.0/8", "203.0.113.0/24"];
    let behind = ClientIp::behind(["10.0.0.0/8"]).unwrap();
    let lenient = behind.clone().use_peer_if_invalid();
    let strict = behind.clone().reject_if_missing();
    for (client, value, is_in, may_be_in) in [
        (&behind, Some("203.0.113.7"), true, true),
        (&behind, Some("192.0.2.1"), false, false),
        (&behind, Some("garbage"), false, true),
        // The proxy's own address is in the networks. It is not the client.
        (&behind, Some("10.0.0.9"), false, false),
        (&behind, None, false, false),
        (&strict, None, false, true),
        (&lenient, Some("garbage"), false, false),
    ] {
        let headers: Vec<_> = value
            .map(|value| ("x-forwarded-for", value))
            .into_iter()
            .collect();
        let parts = head(PROXY, &headers);
        assert_eq!(client.is_in(networks).unwrap()(&parts), is_in, "{value:?}");
        assert_eq!(
            client.may_be_in(networks).unwrap()(&parts),
            may_be_in,
            "{value:?}"
        );
    }
    // Without a proxy, the peer is the client.
    let parts = head("10.0.0.1", &[]);
    assert!(ClientIp::direct().is_in(networks).unwrap()(&parts));
}

#[test]
fn networks_are_replaced_while_the_service_runs() {
    let networks = Networks::new(["10.0.0.0/8"]).unwrap();
    let behind = ClientIp::behind(&networks).unwrap();
    let headers = [("x-forwarded-for", "192.0.2.1")];
    assert_eq!(client(&behind, "172.16.0.1", &headers), found("172.16.0.1"));
    networks.replace(["172.16.0.0/12"]).unwrap();
    assert_eq!(client(&behind, "172.16.0.1", &headers), found("192.0.2.1"));
    assert_eq!(client(&behind, PROXY, &headers), found(PROXY));
    // An invalid set changes nothing.
    assert!(networks.replace(["10.0.0.0/33"]).is_err());
    assert_eq!(client(&behind, "172.16.0.1", &headers), found("192.0.2.1"));
}

#[test]
fn networks_contain_their_first_and_last_address_in_any_notation() {
    let networks = Networks::new(vec![
        "10.0.0.0/8",
        "10.1.0.0/16",
        "192.0.2.1",
        "192.0.2.2/31",
        "::ffff:198.51.100.0/120",
        "::ffff:203.0.113.7",
        "fd00::/8",
        "2001:db8::/32",
    ])
    .unwrap();
    for inside in [
        "10.0.0.0",
        "10.255.255.255",
        "::ffff:10.1.2.3",
        "192.0.2.1",
        "192.0.2.3",
        "198.51.100.0",
        "198.51.100.255",
        "203.0.113.7",
        "fd00::",
        "fdff:ffff::1",
        "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
    ] {
        assert!(networks.contains(inside.parse().unwrap()), "{inside}");
    }
    for outside in [
        "9.255.255.255",
        "11.0.0.0",
        "192.0.2.0",
        "192.0.2.4",
        "198.51.101.0",
        "fc00::",
        "2001:db9::",
        "::a00:1",
    ] {
        assert!(!networks.contains(outside.parse().unwrap()), "{outside}");
    }
    assert!(!Networks::default().contains("10.0.0.1".parse().unwrap()));
}

#[test]
fn networks_are_read_from_a_file() {
    let path = std::env::temp_dir().join(format!("tollgate-networks-{}", std::process::id()));
    std::fs::write(
        &path,
        "# proxies\n10.0.0.0/8\n\n  fd00::/8 # internal\r\n192.0.2.1\n",
    )
    .unwrap();
    let networks = Networks::from_file(&path).unwrap();
    for inside in ["10.1.2.3", "fd00::1", "192.0.2.1"] {
        assert!(networks.contains(inside.parse().unwrap()), "{inside}");
    }
    std::fs::write(&path, "10.0.0.0/8\nexample.com\n").unwrap();
    let error = Networks::from_file(&path).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "line 2: `example.com` is not a network; use a network such as `10.0.0.0/8` or \
             `fd00::/8`, or an address"
        ),
        "{error}"
    );
    // As a file is for a moment while it is written.
    std::fs::write(&path, "# none\n").unwrap();
    let error = Networks::from_file(&path).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "has no networks; write one to a line, or use `Networks::default()` for none"
        ),
        "{error}"
    );
    std::fs::write(&path, "0.0.0.0/0\n").unwrap();
    let error = Networks::from_file(&path).unwrap_err().to_string();
    assert!(
        error.contains("`: the networks contain every IPv4 address"),
        "{error}"
    );
    std::fs::remove_file(&path).unwrap();
    let error = Networks::from_file(&path).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read the networks in `"),
        "{error}"
    );
}

#[test]
fn invalid_settings_are_errors() {
    let message = |result: Result<ClientIp, tollgate::ConfigError>| result.unwrap_err().to_string();
    let every = "the networks contain every IPv4 address, and so every client; use smaller ones";
    let every_v6 = "the networks contain every IPv6 address, and so every client; use smaller ones";
    for (result, expected) in [
        (
            ClientIp::behind(["10.0.0.1/8"]),
            "`10.0.0.1/8` has bits beyond its prefix; use `10.0.0.0/8` for the network, or \
             `10.0.0.1` for the address",
        ),
        (ClientIp::behind(["0.0.0.0/0"]), every),
        (ClientIp::behind(["10.0.0.0/8", "::/0"]), every_v6),
        (ClientIp::behind(["::ffff:0:0/96"]), every),
        (ClientIp::behind(["0.0.0.0/1", "128.0.0.0/1"]), every),
        (
            ClientIp::behind(["10.0.0.0/8", "ten"]),
            "`ten` is not a network; use a network such as `10.0.0.0/8` or `fd00::/8`, or an \
             address",
        ),
        (ClientIp::behind_hops(0), "`hops` is 0; use 1 to 32"),
        (ClientIp::behind_hops(33), "`hops` is 33; use 1 to 32"),
        (
            ClientIp::direct().ipv6_prefix(31),
            "`ipv6_prefix` is 31; use 32 to 128",
        ),
        (
            ClientIp::direct().ipv6_prefix(129),
            "`ipv6_prefix` is 129; use 32 to 128",
        ),
        (
            ClientIp::direct().ipv4_prefix(7),
            "`ipv4_prefix` is 7; use 8 to 32",
        ),
        (
            ClientIp::direct().ipv4_prefix(33),
            "`ipv4_prefix` is 33; use 8 to 32",
        ),
        (
            ClientIp::direct().header("X Real IP"),
            "`X Real IP` is not a header name (invalid HTTP header name); use a name such as \
             `x-real-ip`",
        ),
        (
            ClientIp::direct().header("X-Forwarded-For"),
            "`x-forwarded-for` is a list of addresses, of which clients can send the first; use \
             `ClientIp::behind` without `header`, or with `forwarded`",
        ),
        (
            ClientIp::behind_hops(1).unwrap().header("X-Real-IP"),
            "`x-real-ip` has one address, and hops count the addresses of a list; name the proxy's \
             networks with `ClientIp::behind`",
        ),
    ] {
        assert_eq!(message(result), expected);
    }
}

#[test]
fn address_of_the_peer_can_come_from_an_extension() {
    #[derive(Clone)]
    struct Proxied(IpAddr);

    let from = |client: ClientIp| {
        client.peer_from(|parts: &Parts| parts.extensions.get::<Proxied>().map(|it| it.0))
    };
    let mut parts = head(PROXY, &[("x-forwarded-for", "192.0.2.1")]);
    assert_eq!(
        from(ClientIp::direct())
            .address(&parts)
            .unwrap_err()
            .to_string(),
        unknown().unwrap_err()
    );
    parts
        .extensions
        .insert(Proxied("::ffff:198.51.100.7".parse().unwrap()));
    assert_eq!(
        from(ClientIp::direct())
            .address(&parts)
            .unwrap()
            .to_string(),
        "198.51.100.7"
    );
    let behind = from(ClientIp::behind(["198.51.100.0/24"]).unwrap());
    assert_eq!(behind.address(&parts).unwrap().to_string(), "192.0.2.1");
}

#[test]
fn unknown_peer_is_an_error_except_behind_hops() {
    let parts = Request::builder()
        .header("x-forwarded-for", "192.0.2.1")
        .body(())
        .unwrap();
    let parts = parts.into_parts().0;
    for unknown in [
        ClientIp::direct(),
        ClientIp::behind(["10.0.0.0/8"]).unwrap(),
    ] {
        let error = unknown.address(&parts).unwrap_err();
        assert_eq!(error.to_string(), "the peer's address is unknown");
    }
    // Behind a Unix socket, no peer has an address.
    let hops = ClientIp::behind_hops(1).unwrap();
    assert_eq!(hops.address(&parts).unwrap().to_string(), "192.0.2.1");
}

//! The parsers of forwarding headers against a straightforward reference: on random headers, and on
//! the corpus of the fuzzer.

#![cfg(feature = "http")]

#[path = "../support/client_ip_reference.rs"]
mod reference;

use proptest::prelude::*;

/// Pieces of which headers are made, so that random headers are often almost valid.
const PIECES: [&str; 44] = [
    "192.0.2.1",
    "10.0.0.9",
    "198.51.100.7:80",
    "2001:db8::1",
    "[2001:db8::1]",
    "[fd00::1]:8080",
    "::ffff:10.0.0.9",
    "::ffff:192.0.2.1",
    "fe80::1%eth0",
    "unknown",
    "_hidden",
    "garbage",
    ",",
    ", ",
    ",,",
    ";",
    "; ",
    "=",
    "for=",
    "For=",
    "by=",
    "host=",
    "proto=http",
    "\"",
    "\\",
    "\\\"",
    ":",
    ":_x",
    ":80",
    " ",
    "\t",
    "\n",
    "for=192.0.2.1",
    "for=\"[2001:db8::1]:4711\"",
    "for=10.0.0.9",
    "for=unknown",
    "for=\"10.0.0.9\"",
    ", for=192.0.2.2",
    "[",
    "]",
    "%",
    "%]",
    "0",
    "\u{e9}",
];

fn headers() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(&PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    (0u8..8, prop::collection::vec(piece, 0..14)).prop_map(|(settings, pieces)| {
        let mut input = vec![settings];
        pieces.iter().for_each(|piece| input.extend(piece));
        input
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_headers_name_the_client_of_the_reference(input in headers()) {
        reference::compare(&input);
    }
}

#[test]
fn corpus_of_the_fuzzer_names_the_client_of_the_reference() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client_ip_corpus");
    let mut count = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        reference::compare(&std::fs::read(file.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 20, "{count} files in {corpus}");
}

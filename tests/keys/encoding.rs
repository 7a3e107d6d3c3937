//! Encoded keys: two keys are equal only if they are made of the same parts in the same structure.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use proptest::prelude::*;
use tollgate::Key;

/// The structure of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Tree {
    Parts(Vec<Vec<u8>>),
    Join(Box<Tree>, Box<Tree>),
    Fallback(Box<Tree>),
}

use Tree::{Fallback, Join, Parts};

impl Tree {
    fn key(&self) -> Key {
        match self {
            Parts(parts) => Key::from_parts(parts),
            Join(a, b) => a.key().join(&b.key()),
            Fallback(key) => key.key().fallback(),
        }
    }
}

/// The trees, and all their joins and fallbacks.
fn grown(trees: &[Tree]) -> Vec<Tree> {
    let mut all = trees.to_vec();
    for a in trees {
        all.push(Fallback(a.clone().into()));
        all.extend(
            trees
                .iter()
                .map(|b| Join(a.clone().into(), b.clone().into())),
        );
    }
    all
}

#[test]
fn keys_of_all_small_trees_are_distinct() {
    let atoms: [&[u8]; 2] = [b"", b"a"];
    let mut lists: Vec<Vec<Vec<u8>>> = vec![vec![]];
    for _ in 0..3 {
        let longer = lists
            .iter()
            .flat_map(|list| atoms.map(|atom| [&**list, &[atom.to_vec()]].concat()));
        lists = longer
            .chain(lists.iter().cloned())
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
    }
    let leaves: Vec<Tree> = lists.into_iter().map(Parts).collect();
    let trees: HashSet<Tree> = grown(&grown(&leaves)).into_iter().collect();
    let keys: HashSet<Key> = trees.iter().map(Tree::key).collect();
    assert_eq!(
        (leaves.len(), trees.len(), keys.len()),
        (15, 65_295, 65_295)
    );
}

#[test]
fn parts_cannot_move_between_joined_keys() {
    let org = |name: &str, region: &str| Key::from_parts([name, region]);
    assert_ne!(
        org("acme", "eu").join(&"bob".into()),
        Key::new("acme").join(&org("eu", "bob"))
    );
    assert_ne!(
        Key::new("acme").join(&Key::from_parts(["bob", "phone"])),
        Key::from_parts(["acme", "bob"]).join(&"phone".into())
    );
}

#[test]
fn encoded_keys_stay_readable() {
    let (a, b) = (Key::new("a"), Key::from_parts(["b", "c"]));
    for (key, text) in [
        (Key::new("x"), "x"),
        (Key::from(-7), "-7"),
        (Key::from_parts(["a", "b"]), "a:b"),
        (Key::new(""), "~"),
        (Key::from_parts(["", "a"]), "~:a"),
        (Key::global(), "*"),
        (a.join(&b), "(a&b:c)"),
        (a.join(&b).join(&Key::global()), "((a&b:c)&*)"),
        (b.clone().fallback(), "|b:c"),
        (a.join(&b).fallback().fallback(), "||(a&b:c)"),
        (a.clone().fallback().join(&b), "(|a&b:c)"),
    ] {
        assert_eq!(key.as_str(), text);
    }
}

#[test]
fn one_part_is_a_plain_key_and_no_part_is_the_global_key() {
    assert_eq!(Key::from_parts(["a"]), Key::new("a"));
    assert_eq!(Key::from_parts([""; 0]), Key::global());
    assert_eq!(Key::from(42), Key::new("42"));
}

#[test]
fn ipv4_address_has_one_key_in_either_notation() {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(
        Key::from(address("::ffff:192.0.2.1")),
        Key::new("192.0.2.1")
    );
    assert_ne!(Key::from(address("::192.0.2.1")), Key::new("192.0.2.1"));
}

#[test]
fn separators_within_parts_are_escaped() {
    assert_ne!(Key::from_parts(["a:b", "c"]), Key::from_parts(["a", "b:c"]));
    assert_ne!(Key::from_parts(["a", ""]), Key::new("a"));
    assert_ne!(Key::from_parts(["", "a"]), Key::new("a"));
    assert_ne!(Key::from_parts(["", ""]), Key::new(""));
    assert_ne!(Key::new("~"), Key::new(""));
    assert_ne!(Key::new("*"), Key::global());
}

#[test]
fn hash_tags_control_bytes_and_unicode_are_escaped() {
    let key = Key::new("{user}\r\n\0%ü ");
    assert_eq!(key.as_str(), "%7buser%7d%0d%0a%00%25%c3%bc%20");
}

#[test]
fn long_keys_become_hashes_that_no_part_can_imitate() {
    let key = Key::new("x".repeat(1 << 20));
    assert_eq!(key.as_str().len(), 65);
    assert_ne!(key, Key::new("x".repeat((1 << 20) + 1)));
    assert_ne!(key, Key::new(key.as_str()));
}

/// A part: short parts of special bytes, long parts around the maximum length of a key, and encoded
/// keys that a client could send.
fn part() -> impl Strategy<Value = Vec<u8>> {
    let special = prop::sample::select(b"a:&|()~#*%\0\xff{".to_vec());
    let hostile = [
        Key::new("x".repeat(200)).as_str().to_owned(),
        Key::new("a").join(&Key::new("a")).as_str().to_owned(),
        Key::new("a").fallback().as_str().to_owned(),
        Key::global().as_str().to_owned(),
        "a:a".to_owned(),
    ];
    prop_oneof![
        4 => prop::collection::vec(special, 0..3),
        1 => (55..70_usize).prop_map(|length| b"x".repeat(length)),
        1 => (118..132_usize).prop_map(|length| b"x".repeat(length)),
        1 => prop::sample::select(hostile.to_vec()).prop_map(String::into_bytes),
    ]
}

fn tree() -> impl Strategy<Value = Tree> {
    prop::collection::vec(part(), 0..4)
        .prop_map(Parts)
        .prop_recursive(4, 12, 2, |inner| {
            prop_oneof![
                3 => (inner.clone(), inner.clone()).prop_map(|(a, b)| Join(a.into(), b.into())),
                1 => inner.prop_map(|key| Fallback(key.into())),
            ]
        })
}

/// The same pieces in another structure: the likeliest to be encoded alike.
fn rotated(tree: &Tree) -> Vec<Tree> {
    let joined = |a: &Tree, b: &Tree| Join(a.clone().into(), b.clone().into());
    match tree {
        Join(ab, c) => {
            let mut all = vec![joined(c, ab)];
            if let Join(a, b) = &**ab {
                all.push(joined(a, &joined(b, c)));
            }
            if let Fallback(a) = &**ab {
                all.push(Fallback(joined(a, c).into()));
            }
            if let (Parts(a), Parts(b)) = (&**ab, &**c) {
                all.push(Parts([&**a, &**b].concat()));
                if let Some((first, rest)) = b.split_first() {
                    let moved = Parts([&**a, std::slice::from_ref(first)].concat());
                    all.push(joined(&moved, &Parts(rest.to_vec())));
                }
            }
            all
        }
        Fallback(a) => vec![(**a).clone(), Fallback(tree.clone().into())],
        Parts(parts) => match parts.split_last() {
            Some((last, rest)) => vec![joined(&Parts(rest.to_vec()), &Parts(vec![last.clone()]))],
            None => vec![],
        },
    }
}

fn is_safe(key: &Key) -> bool {
    let safe = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
    (1..=128).contains(&key.as_str().len()) && key.as_str().bytes().all(safe)
}

#[test]
fn text_that_no_key_is_encoded_as_is_an_error() {
    for text in [
        "",
        " ",
        "a b",
        "(a&b",
        "(a,b)",
        "(a&b)c",
        "a&b",
        "a:",
        ":a",
        "%41",
        "%2f",
        "%2G",
        "%2",
        "%",
        "#",
        "#12",
        "~a",
        "a~",
        "*a",
        "|",
        "{a}",
        "\u{e9}",
        "((((",
        &"a".repeat(129),
        &"(".repeat(100_000),
    ] {
        let error = Key::from_encoded(text).unwrap_err().to_string();
        assert!(error.contains("copy it from an event"), "{error}");
        assert!(error.len() < 700, "{} bytes", error.len());
    }
}

proptest! {
    #[test]
    fn keys_are_equal_only_if_their_trees_are(trees in prop::collection::vec(tree(), 2..60)) {
        let others: Vec<Tree> = trees.iter().flat_map(rotated).collect();
        let mut known: HashMap<Key, &Tree> = HashMap::new();
        for tree in trees.iter().chain(&others) {
            let key = tree.key();
            prop_assert!(is_safe(&key), "{}", key);
            let first = *known.entry(key.clone()).or_insert(tree);
            prop_assert_eq!(first, tree, "{}", key);
        }
    }

    #[test]
    fn different_parts_make_different_keys(
        a in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 1..4),
        b in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 1..4),
    ) {
        prop_assert_eq!(a == b, Key::from_parts(&a) == Key::from_parts(&b));
    }

    #[test]
    fn keys_of_any_bytes_are_bounded_printable_and_without_braces(
        part in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let key = Key::new(part);
        prop_assert!(is_safe(&key), "{}", key);
    }

    #[test]
    fn no_part_can_imitate_a_composite_key(tree in tree()) {
        let key = tree.key();
        let plain = Key::new(key.as_str());
        let one_plain_part = matches!(&tree, Parts(parts) if parts.len() == 1);
        prop_assert!(one_plain_part || plain != key, "{}", key);
    }

    #[test]
    fn encoded_form_of_a_key_is_that_key(tree in tree()) {
        let key = tree.key();
        prop_assert_eq!(Key::from_encoded(key.as_str()).unwrap(), key);
    }

    #[test]
    fn any_other_text_is_an_error_or_the_key_with_that_encoded_form(
        text in "[a-c~%:&()*|#0-9 ]{0,12}",
    ) {
        if let Ok(key) = Key::from_encoded(&text) {
            prop_assert_eq!(key.as_str(), text);
        }
    }
}

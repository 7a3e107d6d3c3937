//! The program prints the expected answers of the test vectors, on both stores.

#[path = "../../../tests/support/redis_server.rs"]
mod redis_server;
mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;

use self::redis_server::RedisServer;
use self::support::{Output, replay};

/// The vectors, by the names of their files.
fn vectors() -> Vec<(String, Vec<Value>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors");
    let vectors: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            (path.display().to_string(), lines)
        })
        .collect();
    assert!(vectors.len() >= 10, "the vectors are there");
    vectors
}

/// Replays the checks of a vector under its limits, without the expected answers.
fn replay_vector(lines: &[Value], store: &str) -> Output {
    let (about, checks) = lines.split_first().unwrap();
    let mut arguments = vec!["--store".to_owned(), store.to_owned()];
    for limit in about["limits"].as_array().unwrap() {
        arguments.extend(["--limit".to_owned(), limit.to_string()]);
    }
    let input: String = checks
        .iter()
        .map(|check| {
            let mut check = check.as_object().unwrap().clone();
            check.remove("expect");
            Value::from(check).to_string() + "\n"
        })
        .collect();
    replay(&arguments, &input)
}

fn assert_expected_on(store: &str) {
    for (name, lines) in vectors() {
        let output = replay_vector(&lines, store);
        assert!(output.success, "{name}: {}", output.errors);
        assert_eq!(output.lines().len(), lines.len() - 1, "{name}");
        for (number, (answer, line)) in output.lines().iter().zip(&lines[1..]).enumerate() {
            assert_eq!(*answer, line["expect"], "{name}, line {}", number + 2);
        }
    }
}

#[test]
fn vectors_have_the_expected_answers_in_memory() {
    assert_expected_on("memory");
}

#[test]
fn vectors_have_the_expected_answers_on_redis() {
    assert_expected_on(&RedisServer::start().url());
}

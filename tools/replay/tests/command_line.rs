//! The options, the errors and the summary of the program.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use serde_json::json;

use self::support::replay;

const LIMIT: &str = r#"{"name":"api","algorithm":"token_bucket","quota":"1/s","burst":2}"#;
const QUEUE: &str = r#"{"name":"api","algorithm":"leaky_bucket","quota":"1/s","burst":2}"#;

#[test]
fn help_lists_the_options() {
    let output = replay(&["--help"], "");
    assert!(output.success);
    for option in ["--limit", "--store", "--summary", "at_us"] {
        assert!(output.text.contains(option), "{option}");
    }
}

#[test]
fn each_line_is_answered_before_the_next_is_read() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_replay"))
        .args(["--limit", LIMIT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    for (at_us, allowed) in [(0, true), (0, true), (0, false), (1_000_000, true)] {
        writeln!(input, r#"{{"at_us":{at_us}}}"#).unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        assert!(
            answer.contains(&format!(r#""allowed":{allowed}"#)),
            "{answer}"
        );
    }
    drop(input);
    assert!(program.wait().unwrap().success());
}

#[test]
fn errors_name_the_line_and_follow_earlier_answers() {
    for (line, reason) in [
        ("no json", "line 3: expected ident, at column 2"),
        (
            r#"{"at_us":0,"limit":{"name":"b","algorithm":"gcra","quota":"1/s"}}"#,
            "line 3: no --limit has the name `b`",
        ),
    ] {
        let output = replay(&["--limit", LIMIT], &format!("{{\"at_us\":0}}\n\n{line}\n"));
        assert!(!output.success);
        assert_eq!(output.lines().len(), 1);
        assert!(output.errors.contains(reason), "{}", output.errors);
    }
}

#[test]
fn invalid_options_are_errors() {
    for (arguments, reason) in [
        (&[][..], "replay: no limit"),
        (
            &["--limit", LIMIT, "--store", "redis://127.0.0.1:1/"],
            "replay: ",
        ),
    ] {
        let output = replay(arguments, "");
        assert!(!output.success);
        assert!(output.errors.starts_with(reason), "{}", output.errors);
    }
}

#[test]
fn summary_counts_charges_and_finds_the_peak() {
    let input = r#"
        {"at_us":0,"key":"alice"}
        {"at_us":0,"key":"alice"}
        {"at_us":0,"key":"alice"}
        {"at_us":0,"key":"alice","op":"peek"}
        {"at_us":900000,"key":"bob"}
    "#;
    let summary = |limit: &str| {
        let output = replay(&["--summary", "--limit", limit], input);
        serde_json::from_str::<serde_json::Value>(&output.text).unwrap()
    };
    let keys = json!({
        "alice": {"admitted": 2, "refused": 1},
        "bob": {"admitted": 1, "refused": 0},
    });
    assert_eq!(
        summary(LIMIT),
        json!({
            "checks": 4, "admitted": 3, "refused": 1, "keys": keys,
            "peak_rate": {"units_per_second": 3, "from_us": 0},
        })
    );
    // Alice's second check leaves after a second.
    assert_eq!(
        summary(QUEUE)["peak_rate"],
        json!({"units_per_second": 2, "from_us": 0})
    );
}

//! `tollgate replay` on logs of every format.

mod support;

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use self::support::{tollgate, tollgate_with};

/// Requests of several clients: their seconds since 2025-10-10 00:00 UTC, and their addresses.
fn requests() -> Vec<(u64, String)> {
    let mut requests = Vec::new();
    for second in 0..600 {
        requests.push((second, "203.0.113.1".to_owned()));
        if second % 3 == 0 {
            requests.push((second, "203.0.113.2".to_owned()));
        }
        if second % 60 == 7 {
            requests.extend((0..25).map(|_| (second, "203.0.113.3".to_owned())));
        }
        if second % 90 == 0 {
            requests.push((second, format!("198.51.100.{}", second / 90)));
        }
    }
    requests
}

fn clock(second: u64) -> String {
    format!(
        "{:02}:{:02}:{:02}",
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

fn combined() -> String {
    let line = |(second, ip): &(u64, String)| {
        let time = clock(*second);
        format!("{ip} - - [10/Oct/2025:{time} +0000] \"GET /a HTTP/1.1\" 200 12 \"-\" \"curl\"\n")
    };
    requests().iter().map(line).collect()
}

/// The same requests in each format.
fn logs() -> [(&'static str, String); 5] {
    let of = |line: &dyn Fn(String, &str) -> String| {
        requests()
            .iter()
            .map(|(second, ip)| line(clock(*second), ip) + "\n")
            .collect()
    };
    [
        ("combined", combined()),
        (
            "caddy",
            of(&|time, ip| {
                format!(
                    r#"{{"level":"info","ts":"2025-10-10T{time}Z","request":{{"client_ip":"{ip}","method":"GET","uri":"/a"}}}}"#
                )
            }),
        ),
        (
            "envoy",
            of(&|time, ip| {
                format!(
                    r#"[2025-10-10T{time}.000Z] "GET /a HTTP/2" 200 - 0 226 100 98 "9.9.9.9, {ip}, 10.0.0.1" "agent" "id" "shop.example" "10.0.2.1:80""#
                )
            }),
        ),
        (
            "alb",
            of(&|time, ip| {
                format!(
                    r#"https 2025-10-10T{time}.000000Z app/lb/50 {ip}:48160 10.0.0.66:9000 0.0 0.0 0.0 200 200 5 257 "GET https://shop.example:443/a HTTP/2.0" "curl" - -"#
                )
            }),
        ),
        (
            "json",
            of(&|time, ip| {
                format!(r#"{{"time":"2025-10-10T{time}Z","client_ip":"{ip}","path":"/a"}}"#)
            }),
        ),
    ]
}

fn temporary(name: &str, bytes: &[u8]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(name);
    fs::write(&file, bytes).unwrap();
    file
}

fn gzipped(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// What a fixed window of `limit` a minute denies, counted in the simplest way: by key, and by
/// minute.
fn denied_by_fixed_window(limit: u64) -> (HashMap<String, u64>, HashMap<u64, u64>) {
    let mut windows: HashMap<String, (u64, u64)> = HashMap::new();
    let (mut by_key, mut by_minute) = (HashMap::new(), HashMap::new());
    for (second, ip) in requests() {
        let window = windows.entry(ip.clone()).or_insert((second, 0));
        if second >= window.0 + 60 {
            *window = (second, 0);
        }
        if window.1 < limit {
            window.1 += 1;
        } else {
            *by_key.entry(ip).or_insert(0) += 1;
            *by_minute.entry(second / 60).or_insert(0) += 1;
        }
    }
    (by_key, by_minute)
}

#[test]
fn report_counts_what_a_fixed_window_denies() {
    let log = combined();
    let arguments = ["replay", "--limit", "fixed_window 20/min", "--json"];
    let report = tollgate_with(&arguments, log.as_bytes()).json();
    let (by_key, by_minute) = denied_by_fixed_window(20);
    let denied: u64 = by_key.values().sum();
    assert!(denied > 100, "there is something to count");

    assert_eq!(report["requests"], requests().len());
    assert_eq!(report["keys"], 3 + 7);
    assert_eq!(report["from"], "2025-10-10T00:00:00Z");
    assert_eq!(report["to"], "2025-10-10T00:09:59Z");
    let limit = &report["limits"][0];
    assert_eq!(limit["limit"], "fixed_window 20/min");
    assert_eq!(limit["denied"], denied);
    assert_eq!(limit["allowed"], requests().len() as u64 - denied);
    assert_eq!(limit["keys_denied"], by_key.len());
    for key in limit["most_denied"].as_array().unwrap() {
        assert_eq!(key["denied"], by_key[key["key"].as_str().unwrap()], "{key}");
    }
    let most = by_minute.values().max().unwrap();
    assert_eq!(limit["worst_minute"]["denied"], *most);
}

#[test]
fn every_format_gives_the_same_report() {
    let mut reports = Vec::new();
    for (format, log) in logs() {
        let run = tollgate_with(&["replay", "--limit", "20/min", "--json"], log.as_bytes());
        assert_eq!(run.code, 0, "{format}: {run:?}");
        let mut report = run.json();
        assert_eq!(report["lines"]["format"], format);
        report["lines"]["format"] = Value::Null;
        reports.push(report);
    }
    assert!(
        reports.windows(2).all(|pair| pair[0] == pair[1]),
        "{reports:#?}"
    );
}

#[test]
fn gzip_and_several_files_and_standard_input_are_read_alike() {
    let log = combined();
    let (first, second) =
        log.split_at(log.len() / 2 + log[log.len() / 2..].find('\n').unwrap() + 1);
    let first = temporary("access.log.1.gz", &gzipped(first));
    let second = temporary("access.log", second.as_bytes());
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let arguments = ["replay", "--limit", "20/min", "--json"];
    let expected = tollgate_with(&arguments, log.as_bytes()).json();
    let of_files = tollgate(&[&arguments[..], &[first, second]].concat()).json();
    assert_eq!(of_files, expected);
    assert_eq!(tollgate_with(&arguments, &gzipped(&log)).json(), expected);
    let mixed = fs::read(second).unwrap();
    assert_eq!(
        tollgate_with(&[&arguments[..], &[first, "-"]].concat(), &mixed).json(),
        expected
    );
}

#[test]
fn what_follows_the_data_of_gzip_is_left_out() {
    let (log, expected) = (
        combined(),
        tollgate_with(&["replay", "--limit", "1/s"], combined().as_bytes()),
    );
    for tail in [&[0; 512][..], b"garbage\n"] {
        let bytes = [&gzipped(log.trim_end())[..], tail].concat();
        let run = tollgate_with(&["replay", "--limit", "1/s"], &bytes);
        assert_eq!((run.code, &run.out), (0, &expected.out), "{run:?}");
        assert!(
            run.err
                .contains("standard input: what follows the gzip data is left out"),
            "{run:?}"
        );
    }
    let mut corrupt = gzipped(&log);
    let middle = corrupt.len() / 2;
    corrupt.truncate(middle);
    let run = tollgate_with(&["replay", "--limit", "1/s"], &corrupt);
    assert!(
        run.code == 2 && run.err.contains("cannot read standard input"),
        "{run:?}"
    );
}

#[test]
fn burst_that_denies_too_much_is_named() {
    let log = combined();
    let arguments = ["replay", "--limit", "5/s burst 2", "--suggest", "0%"];
    let run = tollgate_with(&arguments, log.as_bytes());
    assert!(
        run.code == 2 && run.err.contains("a burst larger than 2, or none, may help"),
        "{run:?}"
    );
}

#[test]
fn several_limits_are_compared_on_the_same_requests() {
    let arguments = [
        "replay",
        "--limit",
        "20/min burst 5",
        "--compare",
        "40/min",
        "--compare",
        "sliding_log",
        "--compare",
        "fixed_window 20/min",
        "--json",
    ];
    let report = tollgate_with(&arguments, combined().as_bytes()).json();
    let limits = report["limits"].as_array().unwrap();
    let names: Vec<_> = limits
        .iter()
        .map(|it| it["limit"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "token_bucket 20/min burst 5",
            "token_bucket 40/min",
            "sliding_log 20/min",
            "fixed_window 20/min"
        ]
    );
    let (by_key, _) = denied_by_fixed_window(20);
    assert_eq!(limits[3]["denied"], by_key.values().sum::<u64>());
    let denied = |number: usize| limits[number]["denied"].as_u64().unwrap();
    assert!(denied(1) < denied(2) && denied(2) <= denied(0), "{names:?}");
}

#[test]
fn suggested_limit_is_the_smallest_that_denies_no_more_than_the_share() {
    let log = combined();
    let share = |limit: &str| {
        let arguments = ["replay", "--limit", limit, "--json"];
        let report = tollgate_with(&arguments, log.as_bytes()).json();
        let of = |name: &str| report["limits"][0][name].as_f64().unwrap();
        (of("denied_share"), of("keys_denied_share"))
    };
    for (wanted, most) in [
        ("requests=5%", 0.05),
        ("clients=10%", 0.1),
        ("requests=0%", 0.0),
    ] {
        let arguments = ["replay", "--limit", "20/min", "--suggest", wanted, "--json"];
        let found = tollgate_with(&arguments, log.as_bytes()).json()["suggestion"].clone();
        let limit = found["limit"].as_str().unwrap();
        let smaller = found["smaller"]["limit"].as_str().unwrap();
        let (of_limit, of_smaller) = (share(limit), share(smaller));
        let pick = |it: (f64, f64)| {
            if wanted.starts_with("clients") {
                it.1
            } else {
                it.0
            }
        };
        assert!(
            pick(of_limit) <= most && pick(of_smaller) > most,
            "{wanted}: {limit}, {smaller}"
        );
        assert_eq!(found["denied_share"].as_f64().unwrap(), of_limit.0);
        let number = |text: &str| {
            text.split([' ', '/'])
                .nth(1)
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        assert_eq!(number(limit), number(smaller) + 1);
    }
}

#[test]
fn table_names_the_most_denied_and_html_has_a_plot() {
    let html = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("report.html");
    let arguments = [
        "replay",
        "--limit",
        "20/min",
        "--top",
        "1",
        "--html",
        html.to_str().unwrap(),
    ];
    let run = tollgate_with(&arguments, combined().as_bytes());
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.out.contains("| token_bucket 20/min |"), "{}", run.out);
    assert!(
        run.out.contains("Most denied by token_bucket 20/min"),
        "{}",
        run.out
    );
    assert!(
        run.out.contains("203.0.113.1") && !run.out.contains("203.0.113.2"),
        "{}",
        run.out
    );
    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("<svg") && page.contains("203.0.113.1") && page.ends_with("</html>\n"));
}

#[test]
fn hostile_lines_are_counted_and_shown_without_their_power() {
    let mut log = combined().into_bytes();
    log.extend(b"\xff\xfe not a line \x1b[2J\n\n# a comment\n");
    log.extend(
        b"203.0.113.9 - <script>\x1b[31m [10/Oct/2025:00:20:00 +0000] \"GET / HTTP/1.1\" 200 1\n"
            .repeat(30),
    );
    let html = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("hostile.html");
    let arguments = [
        "replay",
        "--limit",
        "1/min",
        "--key",
        "user",
        "--html",
        html.to_str().unwrap(),
    ];
    let run = tollgate_with(&arguments, &log);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(
        !run.out.contains('\u{1b}') && run.out.contains("\\u{1b}"),
        "{}",
        run.out
    );
    assert!(
        run.out.contains("1 line could not be read as combined"),
        "{}",
        run.out
    );
    assert!(
        run.out.contains("1,057 requests without user"),
        "{}",
        run.out
    );
    assert!(!run.err.contains('\u{1b}'), "{}", run.err);
    let unknown = tollgate_with(&["replay", "--limit", "1/min"], b"\x1b[2J no log\n");
    assert!(
        unknown.code == 2 && !unknown.err.contains('\u{1b}'),
        "{unknown:?}"
    );
    let page = fs::read_to_string(html).unwrap();
    assert!(!page.contains("<script>") && page.contains("&lt;script&gt;"));
    assert!(
        !page.contains('\u{1b}') && page.contains("1 line could not be read"),
        "{page}"
    );
    // However long a line is, the error is short.
    for line in [
        [b'x'; 3_000_000].to_vec(),
        [b"{\"time\":\"", &[0x1b; 900_000][..], b"\"}"].concat(),
    ] {
        let run = tollgate_with(&["replay", "--limit", "1/min"], &line);
        assert!(
            run.code == 2 && run.err.len() < 5_000,
            "{} bytes",
            run.err.len()
        );
    }
}

#[test]
fn mistakes_are_errors_that_say_what_to_do() {
    for (arguments, input, why) in [
        (&["--limit", "20"][..], "", "has no slash"),
        (
            &["--limit", "20/min", "/no/such/file"],
            "",
            "cannot read /no/such/file",
        ),
        (&["--limit", "20/min"], "", "the log is empty"),
        (
            &["--limit", "20/min"],
            "hello\n",
            "none of the known formats",
        ),
        (
            &["--limit", "20/min", "--key", "ip"],
            "",
            "use client_ip, user",
        ),
        (
            &["--limit", "20/min", "--compare", "x"],
            "",
            "--compare `x`",
        ),
        (&["--limit", "20/min", "--suggest", "1"], "", "percentage"),
        (
            &["--limit", "20/min", "--format", "json"],
            "{}\n",
            "no field of a time",
        ),
        (
            &["--limit", "20/min", "--format", "json"],
            "{\"when\":1,\"src\":2}\n",
            "its fields are: src, when",
        ),
        (
            &["--limit", "20/min", "--key", "user"],
            "203.0.113.9 - - [10/Oct/2025:00:20:00 +0000] \"GET / HTTP/1.1\" 200 1\n",
            "1 have no user",
        ),
        (
            &["--limit", "20/min", "--key", "user", "--format", "json"],
            "{\"time\":1760000000,\"login\":\"alice\"}\n",
            "the fields of the first are: login, time",
        ),
        (&[], "", "--limit"),
    ] {
        let run = tollgate_with(&[&["replay"], arguments].concat(), input.as_bytes());
        assert!(
            run.code == 2 && run.err.contains(why),
            "{arguments:?}: {run:?}"
        );
    }
}

#[test]
fn lines_out_of_order_are_decided_in_the_order_of_their_times() {
    let line = |second: u64| {
        let time = clock(second);
        format!("203.0.113.1 - - [10/Oct/2025:{time} +0000] \"GET / HTTP/1.1\" 200 1\n")
    };
    let log: String = [10, 12, 11, 12, 5].map(line).concat();
    let run = tollgate_with(&["replay", "--limit", "fixed_window 3/10s"], log.as_bytes());
    assert!(
        run.out
            .contains("2 lines older than a line before, put in the order of their times"),
        "{}",
        run.out
    );
    assert!(
        run.out
            .contains("from 2025-10-10T00:00:05Z to 2025-10-10T00:00:12Z"),
        "{}",
        run.out
    );
    let report = tollgate_with(
        &["replay", "--limit", "fixed_window 3/10s", "--json"],
        log.as_bytes(),
    );
    let limit = &report.json()["limits"][0];
    assert_eq!(
        (&limit["allowed"], &limit["denied"]),
        (&3.into(), &2.into())
    );
}

#[test]
fn requests_that_waited_for_a_slow_one_are_not_a_burst() {
    // A request a second, and each tenth takes 60 s. Lines are written when requests end.
    let mut lines: Vec<(u64, String)> = (0..300)
        .map(|second| {
            let time = clock(second);
            let end = second + if second % 10 == 0 { 60 } else { 0 };
            let line =
                format!("203.0.113.1 - - [10/Oct/2025:{time} +0000] \"GET / HTTP/1.1\" 200 1\n");
            (end, line)
        })
        .collect();
    let log_of = |lines: &[(u64, String)]| -> String {
        lines.iter().map(|(_, line)| line.as_str()).collect()
    };
    let sorted = log_of(&lines);
    lines.sort_by_key(|(end, _)| *end);
    let written = log_of(&lines);
    assert_ne!(written, sorted);
    for more in [&["--compare", "sliding_log"][..], &["--suggest", "0%"]] {
        let replayed = |log: &str| {
            let arguments = ["replay", "--limit", "gcra 61/min burst 1", "--json"];
            let mut report = tollgate_with(&[&arguments, more].concat(), log.as_bytes()).json();
            report["lines"] = serde_json::Value::Null;
            report
        };
        let report = replayed(&written);
        assert_eq!(report, replayed(&sorted), "{more:?}");
        assert_eq!(report["limits"][0]["denied"], 0, "{more:?}");
    }
}

#[test]
fn lines_within_lines_of_docker_are_the_requests_and_other_output_is_not() {
    let output = |text: String| {
        let line = serde_json::json!({
            "log": text + "\n", "stream": "stdout", "time": "2025-10-10T00:00:00.1Z",
        });
        line.to_string() + "\n"
    };
    let mut log: String = (0..15)
        .map(|step| output(format!("/docker-entrypoint.sh: step {step}")))
        .collect();
    for second in 0..10 {
        let time = clock(second);
        let line = format!("203.0.113.1 - - [10/Oct/2025:{time} +0000] \"GET / HTTP/1.1\" 200 1");
        log += &output(line);
    }
    let arguments = ["replay", "--limit", "1/min", "--key", "global", "--json"];
    let report = tollgate_with(&arguments, log.as_bytes()).json();
    assert_eq!(report["requests"], 10);
    assert_eq!(report["lines"]["skipped"], 15);
    assert_eq!(report["lines"]["format"], "combined in lines of Docker");
}

#[test]
fn first_line_after_a_byte_order_mark_is_a_request() {
    let log = combined();
    let plain = tollgate_with(&["replay", "--limit", "1/s", "--json"], log.as_bytes()).json();
    let marked = format!("\u{feff}{log}");
    let marked = tollgate_with(&["replay", "--limit", "1/s", "--json"], marked.as_bytes()).json();
    assert_eq!(plain, marked);
}

#[test]
fn file_of_another_compression_is_an_error_that_says_how_to_read_it() {
    for (magic, remedy) in [
        (
            &b"\x28\xb5\x2f\xfd\x04\x00"[..],
            "zstd -dc FILE | tollgate replay",
        ),
        (b"\xfd7zXZ\0\0\x04", "xz -dc FILE"),
        (b"BZh91AY&SY", "bzip2 -dc FILE"),
        (b"\xff\xfe2\x000\x00", "iconv -f UTF-16"),
    ] {
        let run = tollgate_with(&["replay", "--limit", "1/s"], magic);
        assert!(run.code == 2 && run.err.contains(remedy), "{run:?}");
    }
}

#[test]
fn files_in_the_wrong_order_are_an_error() {
    let log = combined();
    let (first, second) =
        log.split_at(log.len() / 8 + log[log.len() / 8..].find('\n').unwrap() + 1);
    // The later file is of the next hour.
    let second = second.replace(":00:0", ":01:0");
    let wrong = format!("{second}{first}");
    let run = tollgate_with(&["replay", "--limit", "1/s"], wrong.as_bytes());
    assert!(
        run.code == 2 && run.err.contains("give the oldest file first"),
        "{run:?}"
    );
    assert_eq!(
        tollgate_with(
            &["replay", "--limit", "1/s"],
            format!("{first}{second}").as_bytes()
        )
        .code,
        0
    );
}

#[test]
fn reader_that_leaves_early_is_no_error() {
    use std::io::Read;
    use std::process::{Command, Stdio};

    let log = temporary("pipe.log", combined().as_bytes());
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["replay", "--limit", "1/min", "--json"])
        .arg(log)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    assert_eq!(
        (child.wait().unwrap().code(), errors.as_str()),
        (Some(0), "")
    );

    // Nor is one of the notes.
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["replay", "--limit", "1/min", "--json", "--html"])
        .arg(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("unnoticed.html"))
        .arg(temporary("notes.log", combined().as_bytes()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && !output.stdout.is_empty(),
        "{output:?}"
    );
}

/// A log of nginx's `main` format: the peer, and X-Forwarded-For.
fn nginx_main(of: &dyn Fn(u64) -> (&'static str, String)) -> String {
    let line = |second| {
        let (peer, forwarded_for) = of(second);
        let time = clock(second);
        format!(
            "{peer} - - [10/Oct/2025:{time} +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"curl\" \
             \"{forwarded_for}\"\n"
        )
    };
    (0..300).map(line).collect()
}

#[test]
fn client_of_nginx_behind_a_proxy_is_in_x_forwarded_for() {
    let log = nginx_main(&|second| ("10.0.2.5", format!("6.6.6.6, 203.0.113.{}", second % 50)));
    let run = tollgate_with(&["replay", "--limit", "20/min", "--json"], log.as_bytes());
    let report = run.json();
    assert_eq!(
        (&report["keys"], &report["limits"][0]["denied"]),
        (&50.into(), &0.into())
    );
    assert!(report["lines"].get("private_clients").is_none(), "{report}");
}

#[test]
fn proxy_that_is_not_trusted_inside_of_a_trusted_chain_is_a_warning() {
    let log = nginx_main(&|second| ("10.0.2.5", format!("203.0.113.{}, 10.0.1.9", second % 50)));
    let arguments = ["replay", "--limit", "20/min", "--trusted", "10.0.2.0/24"];
    let run = tollgate_with(&arguments, log.as_bytes());
    let warning = "trusted proxies named clients in private networks: 10.0.1.9;";
    assert!(run.code == 0 && run.out.contains(warning), "{run:?}");
    let report = tollgate_with(&[&arguments[..], &["--json"]].concat(), log.as_bytes()).json();
    assert_eq!(
        report["lines"]["private_clients"]["named_by_proxies"][0],
        "10.0.1.9"
    );
    let both = [
        "replay",
        "--limit",
        "20/min",
        "--trusted",
        "10.0.2.0/24,10.0.1.0/24",
    ];
    let run = tollgate_with(&both, log.as_bytes());
    assert!(
        run.out.contains("50 keys") && !run.out.contains("warning"),
        "{run:?}"
    );
}

#[test]
fn log_of_proxies_instead_of_clients_is_a_warning() {
    let log = combined()
        .replace("203.0.113.", "10.0.2.")
        .replace("198.51.100.", "192.168.0.");
    let run = tollgate_with(&["replay", "--limit", "20/min"], log.as_bytes());
    let warning = "1,057 of 1,057 requests are of private addresses (10.0.2.1, 10.0.2.3, 10.0.2.2";
    assert!(run.out.contains(warning), "{run:?}");
    assert!(run.out.contains("$http_x_forwarded_for"), "{run:?}");
    let by_path = ["replay", "--limit", "20/min", "--key", "path"];
    assert!(
        !tollgate_with(&by_path, log.as_bytes())
            .out
            .contains("warning")
    );
}

#[test]
fn trusted_networks_without_effect_are_an_error() {
    let log = combined();
    let trusted = ["replay", "--limit", "20/min", "--trusted", "10.0.0.0/8"];
    let run = tollgate_with(&trusted, log.as_bytes());
    let why = "no line of this log (combined) has X-Forwarded-For";
    assert!(run.code == 2 && run.err.contains(why), "{run:?}");
    let of_user = [&trusted[..], &["--key", "user"]].concat();
    let run = tollgate_with(&of_user, log.as_bytes());
    assert!(
        run.code == 2 && run.err.contains("which has no client_ip"),
        "{run:?}"
    );
}

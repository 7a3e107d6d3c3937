//! `tollgate doctor`: servers that are set up well, and servers that are not.

mod support;

use self::support::{RedisServer, tollgate};

#[test]
fn doctor_finds_nothing_wrong_with_a_server_that_is_set_up_well() {
    let server =
        RedisServer::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]);
    let run = tollgate(&["doctor", &server.url()]);
    assert_eq!(run.code, 0, "{run:?}");
    for part in [
        "ok       eviction: noeviction",
        "ok       start: a service can start",
        "ok       latency: ",
        "ok       clock: ",
    ] {
        assert!(run.out.contains(part), "{part}: {}", run.out);
    }
    assert!(!run.out.contains("PROBLEM"), "{}", run.out);
    let json = tollgate(&["doctor", &server.url(), "--json"]).json();
    assert!(
        json.as_array()
            .unwrap()
            .iter()
            .all(|it| it["level"] != "problem"),
        "{json}"
    );
}

#[test]
fn doctor_says_what_is_wrong_and_what_to_do() {
    let problems = |arguments: &[&str]| {
        let server = RedisServer::start_with(arguments);
        let run = tollgate(&["doctor", &server.url()]);
        (run.code, run.out)
    };
    let (code, out) = problems(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    assert!(
        code == 1 && out.contains("PROBLEM  eviction: allkeys-lru"),
        "{out}"
    );
    assert!(out.contains("set maxmemory-policy noeviction"), "{out}");
    let (code, out) = problems(&["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"]);
    assert!(code == 1 && out.contains("PROBLEM  memory"), "{out}");

    let primary = RedisServer::start();
    let of = primary.port().to_string();
    let (code, out) = problems(&["--replicaof", "127.0.0.1", &of]);
    assert!(
        code == 1 && out.contains("PROBLEM  replication: this server is a read-only replica"),
        "{out}"
    );

    let server = RedisServer::start();
    let user = [
        "SETUSER",
        "app",
        "on",
        ">secret",
        "~tollgate:*",
        "+@all",
        "-pexpire",
    ];
    redis::cmd("ACL")
        .arg(&user)
        .exec(&mut server.connection())
        .unwrap();
    let url = server.url().replace("//", "//app:secret@");
    let run = tollgate(&["doctor", &url]);
    assert!(
        run.code == 1 && run.out.contains("PROBLEM  start") && run.out.contains("+pexpire"),
        "{run:?}"
    );
    assert!(
        !run.out.contains("secret") && !run.err.contains("secret"),
        "{run:?}"
    );
    let run = tollgate(&["doctor", &url.replace("secret", "guess")]);
    let text = &run.out;
    assert!(
        run.code == 1 && text.contains("PROBLEM  connection: cannot connect to 127.0.0.1"),
        "{run:?}"
    );
    assert!(
        !text.contains("secret") && !text.contains("guess"),
        "{run:?}"
    );
    let mine = server.url().replace("//", "//limiter:secret@");
    let user = [
        "SETUSER",
        "limiter",
        "on",
        ">secret",
        "~limits:*",
        "&limits:*",
        "+@all",
    ];
    redis::cmd("ACL")
        .arg(&user)
        .exec(&mut server.connection())
        .unwrap();
    let run = tollgate(&["doctor", &mine, "--prefix", "limits"]);
    assert_eq!(run.code, 0, "{run:?}");
    let run = tollgate(&["keys", "--url", "redis://127.0.0.1:1/"]);
    assert!(
        run.code == 2 && run.err.contains("cannot connect to 127.0.0.1:1"),
        "{run:?}"
    );
}

#[test]
fn doctor_compares_round_trips_with_the_deadline_of_checks() {
    let server = RedisServer::start();
    for (deadline, code, found) in [
        ("10s", 0, "ok       latency: "),
        ("15ms", 0, "advice   latency: "),
        ("1us", 1, "PROBLEM  latency: "),
    ] {
        let run = tollgate(&["doctor", &server.url(), "--deadline", deadline]);
        assert!(
            run.code == code && run.out.contains(found),
            "{deadline}: {run:?}"
        );
    }
    let run = tollgate(&["doctor", &server.url(), "--deadline", "1us"]);
    assert!(run.out.contains("RedisStoreBuilder::deadline"), "{run:?}");
    let run = tollgate(&["doctor", &server.url(), "--deadline", "soon"]);
    assert!(run.code == 2 && run.err.contains("--deadline"), "{run:?}");
}

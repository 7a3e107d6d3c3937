//! `tollgate doctor`: servers that are set up well, and servers that are not.

mod support;

use self::support::fake_redis::FakeRedis;
use self::support::pass_on::Upstream;
use self::support::{RedisServer, Run, tollgate};

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
fn doctor_names_a_limit_that_has_two_quotas() {
    let server = RedisServer::start();
    let prefix = ["--prefix", "shop"];
    let examine = |minutes: u64| {
        let (now, _): (u64, u64) = redis::cmd("TIME").query(&mut server.connection()).unwrap();
        let since = now - minutes * 60;
        let notes = format!(
            r#"{{"b:api":{{"10 per 1s (gcra)":[{},{now}],"20 per 1s (gcra)":[{since},{now}]}},
                "w:daily":{{"5 per 1d (fixed_window)":[{since},{now}],"gone":[1,2]}}}}"#,
            since - 7_200
        );
        let () = redis::cmd("SET")
            .arg("shop:limits")
            .arg(notes)
            .query(&mut server.connection())
            .unwrap();
        tollgate(&["doctor", &server.url(), prefix[0], prefix[1]])
    };
    let run = examine(62);
    let found = "limits: `api` has two quotas for 62 min: 10 per 1s (gcra), and 20 per 1s (gcra)";
    assert!(run.out.contains(&format!("advice   {found}")), "{run:?}");
    let run = examine(3);
    assert!(
        run.out
            .contains("advice   limits: `api` has two quotas for 3 min"),
        "{run:?}"
    );
    assert!(!run.out.contains("daily"), "{run:?}");
}

#[test]
fn doctor_does_not_compare_a_name_with_several_quotas() {
    let server = RedisServer::start();
    let (now, _): (u64, u64) = redis::cmd("TIME").query(&mut server.connection()).unwrap();
    let times = format!("[{},{now}]", now - 7_200);
    let notes = format!(r#"{{"b:api":{{"10 per 1s (gcra)":{times},"several":{times}}}}}"#);
    let () = redis::cmd("SET")
        .arg("shop:limits")
        .arg(notes)
        .query(&mut server.connection())
        .unwrap();
    let run = tollgate(&["doctor", &server.url(), "--prefix", "shop"]);
    assert!(
        run.out.contains("1 limit in use, none with two quotas"),
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

/// A proxy in front of some servers, which answers these commands by itself.
fn doctor_behind_a_proxy(
    servers: &[RedisServer],
    own: impl Fn(&str) -> Option<&'static str> + Send + Sync + 'static,
) -> Run {
    let servers: Vec<_> = servers.iter().map(Upstream::of).collect();
    let proxy = FakeRedis::start(move |command, arguments| {
        if let Some(reply) = own(command) {
            return Some(format!("{reply}\r\n").into_bytes());
        }
        let key = arguments.get(2).filter(|_| command.starts_with("EVAL"));
        let sum = key.map_or(0, |key| key.iter().map(|byte| usize::from(*byte)).sum());
        Some(servers[sum % servers.len()].pass_on(command, arguments))
    });
    tollgate(&["doctor", &proxy.url()])
}

#[test]
fn doctor_names_the_real_cause_behind_a_proxy() {
    let unknown = |command: &str| match command {
        "AUTH" => Some("+OK"),
        "CLIENT" | "SCRIPT" | "CONFIG" => Some("-ERR unknown command"),
        "TIME" => Some("*2\r\n$10\r\n3600000000\r\n$1\r\n0"),
        "INFO" => Some("$24\r\n# Proxy\r\nproxy_version:1"),
        _ => None,
    };
    let run = doctor_behind_a_proxy(&[RedisServer::start()], unknown);
    let text = &run.out;
    assert_eq!(run.code, 0, "{run:?}");
    for part in [
        "ok       clock: ",
        "ok       start: ",
        "the server does not say its role",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(
        !text.contains("read-only replica") && !text.contains("PROBLEM"),
        "{text}"
    );

    let no_info = |command: &str| match command {
        "AUTH" => Some("+OK"),
        "INFO" => Some("-ERR unknown command 'INFO'"),
        _ => None,
    };
    let run = doctor_behind_a_proxy(&[RedisServer::start()], no_info);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(
        run.out.contains("advice   INFO: ") && run.out.contains("a proxy"),
        "{run:?}"
    );
    assert!(!run.out.contains("within 250 ms"), "{run:?}");
}

#[test]
fn doctor_refuses_an_address_that_leads_to_several_servers() {
    let auth = |command: &str| (command == "AUTH").then_some("+OK");
    let servers = [(); 2].map(|()| RedisServer::start());
    let run = doctor_behind_a_proxy(&servers, auth);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.out.contains("PROBLEM  start") && run.out.contains("several servers"),
        "{run:?}"
    );
}

#[test]
fn doctor_repeats_what_a_server_says_that_turns_connections_away() {
    let server = RedisServer::start_with(&["--maxclients", "1"]);
    let _only_one = server.connection();
    let run = tollgate(&["doctor", &server.url()]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.out.contains("max number of clients reached"), "{run:?}");
}

#[test]
fn doctor_says_that_overrides_may_be_lost_and_which_rights_they_need() {
    let server = RedisServer::start_with(&["--save", ""]);
    let doctor = |url: &str| {
        let run = tollgate(&["doctor", url]);
        assert_eq!(run.code, 0, "{run:?}");
        run.out
    };
    let out = doctor(&server.url());
    assert!(out.contains("ok       overrides: 0 set"), "{out}");
    assert!(!out.contains("a restart loses them"), "{out}");
    let set = [
        "override",
        "acme",
        "--name",
        "api",
        "--unlimited",
        "--yes",
        "--url",
    ];
    assert_eq!(tollgate(&[&set[..], &[&server.url()]].concat()).code, 0);
    let out = doctor(&server.url());
    assert!(out.contains("ok       overrides: 1 set"), "{out}");
    let notes = r#"{"b:apii":{"5 per 1m (gcra)":[1,9e9]}}"#;
    let noted = redis::cmd("SET").arg("tollgate:limits").arg(notes).clone();
    noted.exec(&mut server.connection()).unwrap();
    let out = doctor(&server.url());
    let unknown = "advice   overrides: 1 set, also under `api`, which no running service has noted";
    assert!(out.contains(unknown), "{out}");
    assert!(out.contains("there are overrides"), "{out}");
    assert!(out.contains("a restart loses them"), "{out}");

    let user = ["SETUSER", "app", "on", ">secret", "~tollgate:*", "+@all"];
    redis::cmd("ACL")
        .arg(&user)
        .exec(&mut server.connection())
        .unwrap();
    let out = doctor(&server.url().replace("//", "//app:secret@"));
    assert!(out.contains("advice   overrides: "), "{out}");
    assert!(out.contains("~tollgate-config:*"), "{out}");
}

//! The commands that work on Redis, also next to other programs' keys.

mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::config::{Config, Format, LimitSet, Names, RedisSource};
use tollgate::key::PeerIp;
use tollgate::limit::BlockPolicy;
use tollgate::{Check, Key, Limit, Quota, RateLimitLayer, RateLimiter, RedisStore};

use self::support::budgets::{
    HOUR, charge, limiter, limits, run, shown, store, until_limits_are_noted,
};
use self::support::{RedisServer, tollgate};

#[tokio::test(flavor = "multi_thread")]
async fn budgets_of_every_kind_are_listed_and_shown() {
    let server = RedisServer::start();
    let url = server.url();
    let limiter = limiter(&url).await;
    charge(&limiter, "alice").await;
    charge(&limiter, "bob smith").await;
    let store = RedisStore::builder("tollgate")
        .url(&url)
        .connect()
        .await
        .unwrap();
    let exports = Limit::concurrency("exports", 3).unwrap();
    let in_flight = RateLimiter::new(store);
    let first = in_flight
        .try_acquire_permit(&exports, &Key::new("alice"))
        .await
        .unwrap()
        .unwrap();
    let second = in_flight
        .try_acquire_permit(&exports, &Key::new("alice"))
        .await
        .unwrap()
        .unwrap();

    let expected = [
        ("bucket", 7),
        ("exports", 2),
        ("fixed", 7),
        ("log", 7),
        ("sliding", 7),
    ];
    let expected: Vec<_> = expected.map(|(name, used)| (name.to_owned(), used)).into();
    assert_eq!(shown(&url, "alice"), expected);
    // A name as it is, and as it is encoded.
    assert_eq!(shown(&url, "bob smith"), shown(&url, "bob%20smith"));
    assert_eq!(shown(&url, "bob smith").len(), 4);
    assert_eq!(shown(&url, "bob"), []);

    let list = run(&url, &["keys"]);
    for part in [
        "alice",
        "bob%20smith",
        "sliding log",
        "1 in the last 1h",
        "requests in flight",
    ] {
        assert!(list.out.contains(part), "{part}: {}", list.out);
    }
    assert_eq!(run(&url, &["keys", "--json"]).json_lines().len(), 9);
    assert_eq!(
        run(&url, &["keys", "--json", "--name", "log"])
            .json_lines()
            .len(),
        2
    );
    assert_eq!(
        run(&url, &["keys", "--json", "--containing", "bob"])
            .json_lines()
            .len(),
        4
    );
    let some = run(&url, &["keys", "--json", "--max", "3"]);
    assert_eq!(some.json_lines().len(), 3);
    assert!(some.err.contains("there are more"), "{some:?}");
    assert_eq!(server.calls("keys"), 0, "SCAN, never KEYS");
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_a_client_is_shown_under_each_limit_of_a_file_or_of_a_key_in_redis() {
    let text = r#"
        [[limits]]
        name = "bucket"
        algorithm = "token_bucket"
        quota = "100/h"
        burst = 50
        key = "user"
        plan = "account"
        plans = { pro = { quota = "1000/h" }, internal = { unlimited = true } }

        [[limits]]
        name = "log"
        algorithm = "sliding_log"
        quota = "100/h"
        key = "user"
        shadow_percent = 100

        [[limits]]
        name = "exports"
        algorithm = "concurrency"
        limit = 3
        key = "user"
    "#;
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("usage.toml");
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let server = RedisServer::start();
    let url = server.url();
    charge(&limiter(&url).await, "alice").await;

    let table = run(&url, &["usage", "alice", "--limits", file]).out;
    for part in [
        "| bucket | user | 100 per 1h, burst 50 (token bucket)      |    7 |   43 |     14 |",
        "| in shadow mode |",
    ] {
        assert!(table.contains(part), "{table}");
    }
    assert!(!table.contains("exports"), "{table}");

    let json = |arguments: &[&str]| {
        let run = run(
            &url,
            &[&["usage", "alice", "--json"][..], arguments].concat(),
        );
        assert_eq!(run.code, 0, "{run:?}");
        run.json()
    };
    let pro = json(&["--limits", file, "--plan", "pro"]);
    assert_eq!(pro[0]["remaining"], 993, "a plan has the quota of its own");
    assert_eq!(
        (&pro[0]["used"], &pro[0]["used_percent"]),
        (&7.into(), &0.into())
    );
    assert!(pro[0]["reset_at"].as_u64() > Some(1_700_000_000));
    let internal = json(&["--limits", file, "--plan", "internal"]);
    assert_eq!(internal.as_array().unwrap().len(), 1);
    assert_eq!(internal[0]["limit"], "log");

    let source = RedisSource::new(&store(&url).await, "limits", Format::Toml);
    source.unwrap().publish(text).await.unwrap();
    let in_redis = json(&["--limits-in-redis", "limits"]);
    assert_eq!(in_redis[0]["remaining"], 43);

    let unknown = run(
        &url,
        &["usage", "alice", "--limits", file, "--plan", "porr"],
    );
    assert!(
        unknown.code == 2 && unknown.err.contains("a plan `porr`"),
        "{unknown:?}"
    );
    let full = run(&url, &["usage", "nobody", "--limits", file]);
    assert!(full.err.contains("no charge of this key"), "{full:?}");
    let neither = run(&url, &["usage", "alice"]);
    assert!(
        neither.code == 2
            && neither
                .err
                .contains("no running service has noted a limit of rates"),
        "{neither:?}"
    );
    let missing = run(&url, &["usage", "alice", "--limits-in-redis", "other"]);
    assert!(
        missing.code == 2 && missing.err.contains("other"),
        "{missing:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_without_a_file_is_of_the_limits_that_services_have_noted() {
    let server = RedisServer::start();
    let url = server.url();
    let month = Quota::per_month(100).starting_on_day(15).unwrap();
    let hourly = Quota::per_hour(60);
    let rates = [
        Limit::fixed_window_aligned("aligned", hourly),
        Limit::fixed_window("billed", month.in_time_zone("Europe/Berlin").unwrap()),
        Limit::fixed_window("day", Quota::per_day(7).in_time_zone("UTC").unwrap()),
        Limit::gcra("gcra", hourly),
        Limit::leaky_bucket_meter("leaky", hourly.burst(7)),
        Limit::sliding_log("log", Quota::new(60, Duration::from_millis(90_500))),
        Limit::sliding_window("plain", hourly),
        Limit::sliding_window_with("search", hourly, 6),
        Limit::token_bucket("writes", Quota::per_minute(5).burst(9)),
    ]
    .map(Result::unwrap);
    let exports = Limit::concurrency("exports", 3).unwrap();
    let limiter = limiter(&url).await;
    for limit in rates.iter().chain([&exports]) {
        limiter.register(limit).unwrap();
    }
    // A limit with a plan.
    let text = "[[limits]]\nname = 'zplans'\nalgorithm = 'gcra'\nquota = '50/h'\nkey = 'peer_ip'\n\
                plan = 'tier'\nplans = { pro = { quota = '100/h' } }\n";
    let config = Config::parse("limits.toml", text, Format::Toml).unwrap();
    let plans = LimitSet::new(config, Names::new().plan("tier", |_| Some("pro"))).unwrap();
    let layer = RateLimitLayer::from_config(&limiter, &plans).unwrap();
    for limit in &rates {
        drop(limiter.check_n(limit, "alice", 4).await.unwrap());
    }
    let blocking = BlockPolicy::after(1, HOUR).lasting(HOUR);
    let blocking = rates[8].clone().with_block_policy(blocking).unwrap();
    drop(limiter.check_n(&blocking, "mallory", 9).await.unwrap());
    assert!(!limiter.check(&blocking, "mallory").await.unwrap().allowed());
    until_limits_are_noted(&server).await;
    let usage = run(&url, &["usage", "alice", "--json"]);
    let excluded = "the plan of the client is not known, nor are overrides in files: give --limits \
                    or --limits-in-redis if the services have some\n";
    assert_eq!((usage.code, &*usage.err), (0, excluded), "{usage:?}");
    let expected = limiter
        .usage(rates.each_ref().map(|limit| Check::new(limit, "alice")))
        .await
        .unwrap();
    for (shown, expected) in usage.json().as_array().unwrap().iter().zip(&expected) {
        assert_eq!(shown["limit"], expected.limit);
        assert_eq!(shown["used"], expected.used, "{shown}");
        assert_eq!(shown["capacity"], expected.capacity, "{shown}");
        let seconds = expected.reset_at.as_secs();
        let reset_at = shown["reset_at"].as_u64().unwrap();
        assert!(reset_at.abs_diff(seconds) <= 15, "{shown}: {seconds}");
    }
    let json = usage.json();
    let shown: Vec<_> = json.as_array().unwrap().iter().collect();
    let names = shown.iter().map(|it| it["limit"].as_str().unwrap());
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            "aligned", "billed", "day", "gcra", "leaky", "log", "plain", "search", "writes",
            "zplans", "zplans"
        ]
    );
    assert_eq!([&shown[9]["capacity"], &shown[10]["capacity"]], [100, 50]);
    for (shown, limit) in shown.iter().zip(&rates) {
        assert_eq!(shown["quota"], limit.quota().to_string());
    }
    let raise = ["override", "alice", "--name", "zplans", "--quota", "70/h"];
    assert_eq!(run(&url, &raise).code, 0);
    let raised = run(&url, &["usage", "alice", "--json"]).json();
    let capacities = raised.as_array().unwrap()[9..]
        .iter()
        .map(|it| &it["capacity"]);
    assert_eq!(
        capacities.collect::<Vec<_>>(),
        [70],
        "one quota for all plans"
    );
    drop(layer);
    let table = run(&url, &["usage", "alice"]).out;
    assert!(
        table.contains("100 per month from 15 in Europe/Berlin (fixed_window)"),
        "{table}"
    );
    let blocked = run(&url, &["usage", "mallory"]).out;
    assert!(blocked.contains("| blocked for 59m"), "{blocked}");
    let peek = |more: &[&str]| {
        run(
            &url,
            &[&["peek", "alice", "--name", "billed"], more].concat(),
        )
    };
    let peeked = peek(&[]);
    assert!(
        peeked.out.starts_with("allowed: 96 of 100 left, full in "),
        "{peeked:?}"
    );
    assert_eq!(peeked.err, "");
    let other = peek(&["--limit", "100/month"]);
    let noted = "running services have `100 per month from 15 in Europe/Berlin (fixed_window)` \
                 under `billed`";
    assert!(other.err.contains(noted), "{other:?}");
    let same = peek(&["--limit", "100/month from 15 in Europe/Berlin"]);
    assert_eq!(same.err, "");
    assert!(
        same.out.starts_with("allowed: 96 of 100 left, full in "),
        "{same:?}"
    );
    let unknown = run(&url, &["peek", "alice", "--name", "bilied"]);
    assert!(
        unknown.code == 2 && unknown.err.contains("one quota of a limit named `bilied`"),
        "{unknown:?}"
    );
    // What services note again, another program may overwrite.
    let malformed = r#"{"b:a\"b": {"5 per 1m (gcra)": [1, 9e9]}, "b:api": {"x": [1, 9e9]},
                        "b:plans": {"several": [1, 9e9]}, "w:api": {"5 per 1h (fixed_window)": [1, 9e9]}}"#;
    let set = redis::cmd("SET")
        .arg("tollgate:limits")
        .arg(malformed)
        .clone();
    let () = set.query(&mut server.connection()).unwrap();
    let some = run(&url, &["usage", "alice", "--json"]);
    assert_eq!(some.json().as_array().unwrap().len(), 1, "{some:?}");
    for note in [
        "without `api`, whose note is malformed",
        "without `plans`, which has several quotas; give --limits",
    ] {
        assert!(some.err.contains(note), "{some:?}");
    }
    let plan = run(&url, &["usage", "alice", "--plan", "pro"]);
    assert!(
        plan.code == 2 && plan.err.contains("do not note their plans"),
        "{plan:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_other_programs_are_neither_shown_nor_changed() {
    let server = RedisServer::start();
    let (url, mut connection) = (server.url(), server.connection());
    for command in [
        &["SET", "tollgate:config", "limits"][..],
        &["SET", "tollgate:{alice}:q:other", "1"],
        &["HSET", "tollgate:{alice}:b:hash", "a", "1"],
        &["SET", "session:{alice}:b:api", "1"],
        &["SET", "tollgate:{alice}:b:corrupt", "five"],
    ] {
        redis::cmd(command[0])
            .arg(&command[1..])
            .exec(&mut connection)
            .unwrap();
    }
    let list = run(&url, &["keys", "--json"]);
    let rows = list.json_lines();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(
        (&rows[0]["limit"], &rows[0]["state"]),
        (&"corrupt".into(), &"unreadable".into())
    );
    let reset = run(&url, &["reset", "alice", "--yes"]);
    assert_eq!(reset.code, 0, "{reset:?}");
    let left: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    // Only the corrupt budget is reset.
    assert_eq!(left, 4);
    for key in [
        "tollgate:config",
        "tollgate:{alice}:q:other",
        "tollgate:{alice}:b:hash",
        "session:{alice}:b:api",
    ] {
        let found: bool = redis::cmd("EXISTS")
            .arg(key)
            .query(&mut connection)
            .unwrap();
        assert!(found, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_asks_first_and_gives_back_the_budgets_of_one_client() {
    let server = RedisServer::start();
    let url = server.url();
    let limiter = limiter(&url).await;
    charge(&limiter, "alice").await;
    charge(&limiter, "bob").await;
    let run_reset = run(&url, &["reset", "alice"]);
    assert!(
        run_reset.code == 2 && run_reset.err.contains("give --yes"),
        "{run_reset:?}"
    );
    assert_eq!(shown(&url, "alice").len(), 4, "nothing was changed");

    let one = run(&url, &["reset", "alice", "--name", "log", "--yes"]);
    assert_eq!((one.code, one.out.trim()), (0, "reset log"));
    assert_eq!(shown(&url, "alice").len(), 3);
    let all = run(&url, &["reset", "alice", "--yes"]);
    assert_eq!(all.out.trim(), "reset bucket\nreset fixed\nreset sliding");
    assert_eq!(shown(&url, "alice"), []);
    assert_eq!(shown(&url, "bob").len(), 4, "another client");
    let again = run(&url, &["reset", "alice", "--yes"]);
    assert!(
        again.code == 0 && again.out.contains("no budget of `alice`: it is full"),
        "{again:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn peek_says_what_is_left_and_consumes_nothing() {
    let server = RedisServer::start();
    let url = server.url();
    charge(&limiter(&url).await, "alice").await;
    let peek = [
        "peek",
        "alice",
        "--name",
        "log",
        "--limit",
        "sliding_log 100/h",
    ];
    for _ in 0..2 {
        let answer = run(&url, &[&peek[..], &["--json"]].concat()).json();
        assert_eq!(
            (&answer["allowed"], &answer["remaining"]),
            (&true.into(), &93.into())
        );
    }
    let denied = run(&url, &[&peek[..], &["--cost", "94"]].concat());
    assert!(
        denied
            .out
            .starts_with("denied: 93 of 100 left, 94 units after "),
        "{denied:?}"
    );
    let most = run(&url, &[&peek[..], &["--cost", "200"]].concat());
    assert_eq!(
        most.out.trim(),
        "denied: 200 units exceed the capacity of 100"
    );
    assert_eq!(most.err, "");
    let other = run(
        &url,
        &[
            "peek",
            "bob",
            "--name",
            "log",
            "--limit",
            "sliding_log 100/h",
        ],
    );
    assert_eq!(other.out.trim(), "allowed: 100 of 100 left, full in 0s");
    assert!(
        other
            .err
            .contains("Redis has no charge of this key under `log`"),
        "{other:?}"
    );
    let address = [
        "peek",
        "2001:db8::1",
        "--name",
        "log",
        "--limit",
        "sliding_log 100/h",
    ];
    let network = tollgate::key::PeerIp::key_of("2001:db8::1".parse().unwrap());
    assert!(
        run(&url, &address)
            .err
            .contains(&format!("try `{}`", network.as_str()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_printed_as_the_commands_take_them() {
    let server = RedisServer::start();
    let url = server.url();
    let limiter = limiter(&url).await;
    let long = Key::new("é".repeat(100));
    let keys = [
        Key::new("alice"),
        Key::new("alice").fallback(),
        Key::new("a|b c"),
        long,
    ];
    let limit = &limits()[0];
    for key in &keys {
        assert!(limiter.check(limit, key).await.unwrap().allowed());
    }
    let list = run(&url, &["keys"]);
    for key in &keys {
        assert!(
            list.out
                .lines()
                .any(|line| line.split_whitespace().next() == Some(key.as_str())),
            "{list:?}"
        );
        assert_eq!(
            run(&url, &["show", key.as_str(), "--json"])
                .json_lines()
                .len(),
            1
        );
    }
    let reset = run(&url, &["reset", "|alice", "--yes"]);
    assert_eq!(reset.out.trim(), "reset bucket");
    assert_eq!(
        (shown(&url, "alice").len(), shown(&url, "|alice").len()),
        (1, 0)
    );
    assert_eq!(run(&url, &["keys", "--json", "--name", "none"]).out, "");
    assert_eq!(run(&url, &["show", "carol", "--json"]).out, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_leaves_names_that_no_limit_has_and_resets_the_rest() {
    let server = RedisServer::start();
    let (url, mut connection) = (server.url(), server.connection());
    charge(&limiter(&url).await, "alice").await;
    for key in ["tollgate:{alice}:b:", "tollgate:{alice}:b:é"] {
        redis::cmd("SET")
            .arg(key)
            .arg("1")
            .exec(&mut connection)
            .unwrap();
    }
    let reset = run(&url, &["reset", "alice", "--yes"]);
    assert_eq!(reset.code, 0, "{reset:?}");
    assert_eq!(
        reset.out.trim(),
        "reset bucket\nreset fixed\nreset log\nreset sliding"
    );
    assert_eq!(
        reset.err.matches("no limit can have this name").count(),
        2,
        "{reset:?}"
    );
    let left: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert_eq!(left, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_need_only_the_documented_rights() {
    let server = RedisServer::start();
    // The rights of a service, and those that the commands need beside them.
    let service = include_str!("../../../src/store/redis/mod.rs").split("(with your prefix) and `");
    let service = service.clone().nth(1).unwrap().split('`').next().unwrap();
    let commands =
        include_str!("../../../src/guide/operating.md").split("The user of Redis needs `");
    let commands = commands.clone().nth(1).unwrap().split('`').next().unwrap();
    assert!(
        service.contains("+evalsha") && commands.contains("+scan"),
        "{service}, {commands}"
    );
    let rights = format!("{service} {commands}");
    let mut user = vec![
        "SETUSER",
        "operator",
        "on",
        ">secret",
        "~tollgate:*",
        "-@all",
    ];
    user.extend(rights.split_whitespace().filter(|word| *word != "///"));
    redis::cmd("ACL")
        .arg(&user)
        .exec(&mut server.connection())
        .unwrap();
    charge(&limiter(&server.url()).await, "alice").await;
    let url = server.url().replace("//", "//operator:secret@");
    for arguments in [
        &["keys"][..],
        &["show", "alice"],
        &[
            "peek",
            "alice",
            "--name",
            "log",
            "--limit",
            "sliding_log 100/h",
        ],
        &[
            "block",
            "alice",
            "--name",
            "log",
            "--algorithm",
            "sliding_log",
            "--for",
            "1h",
            "--yes",
        ],
        &["reset", "alice", "--yes"],
    ] {
        let run = run(&url, arguments);
        assert_eq!(run.code, 0, "{run:?}");
    }
    for (right, part) in [("-time", "clock"), ("-ping", "latency")] {
        redis::cmd("ACL")
            .arg(&["SETUSER", "operator", right])
            .exec(&mut server.connection())
            .unwrap();
        let doctor = tollgate(&["doctor", &url]);
        assert!(
            doctor.code == 1 && doctor.out.contains(&format!("PROBLEM  {part}: ")),
            "{doctor:?}"
        );
    }
    let get = ["SETUSER", "operator", "+time", "-get"];
    redis::cmd("ACL")
        .arg(&get)
        .exec(&mut server.connection())
        .unwrap();
    charge(&limiter(&server.url()).await, "alice").await;
    let keys = run(&url, &["keys"]);
    assert!(keys.code == 2 && keys.err.contains("get"), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_client_is_denied_by_services_until_the_block_ends() {
    let server = RedisServer::start();
    let url = server.url();
    let (limiter, alice) = (limiter(&url).await, Key::new("alice"));
    let algorithms = [
        "token_bucket",
        "fixed_window",
        "sliding_window",
        "sliding_log",
    ];
    for (limit, algorithm) in limits().into_iter().zip(algorithms) {
        let block = |length: &str, more: &[&str]| {
            let of = [
                "block",
                "alice",
                "--name",
                limit.name(),
                "--algorithm",
                algorithm,
                "--for",
            ];
            run(&url, &[&of[..], &[length], more].concat())
        };
        let asks = block("1h", &[]);
        assert!(
            asks.code == 2 && asks.err.contains("give --yes"),
            "{asks:?}"
        );
        assert!(limiter.check(&limit, &alice).await.unwrap().allowed());

        let blocked = block("1h", &["--yes"]);
        assert!(
            blocked.code == 0 && blocked.out.contains("for 1h"),
            "{blocked:?}"
        );
        let quota = format!("{algorithm} 100/h");
        let peek = ["peek", "alice", "--name", limit.name(), "--limit", &quota];
        assert!(run(&url, &peek).out.starts_with("blocked: "), "{algorithm}");
        assert_eq!(
            run(&url, &[&peek[..], &["--json"]].concat()).json()["blocked"],
            true
        );
        let decision = limiter.check(&limit, &alice).await.unwrap();
        assert!(decision.is_blocked(), "{algorithm}");
        assert!(decision.retry_after().unwrap() > HOUR - Duration::from_secs(60));

        let name = limit.name();
        let ended = run(&url, &["unblock", "alice", "--name", name, "--yes"]);
        assert!(
            ended.out.contains("is not blocked any more under"),
            "{ended:?}"
        );
        // The replica that denied it remembers that.
        let other = RateLimiter::new(
            RedisStore::builder("tollgate")
                .url(&url)
                .connect()
                .await
                .unwrap(),
        );
        assert!(
            other.check(&limit, &alice).await.unwrap().allowed(),
            "{algorithm}"
        );
        for (length, why) in [
            ("soon", "not a time"),
            ("s", "not a time"),
            ("400d", "366 days at most"),
            ("0s", "`tollgate unblock` ends one"),
            ("1", "not a time"),
        ] {
            let run = block(length, &["--yes"]);
            assert!(run.code == 2 && run.err.contains(why), "{length}: {run:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn budget_of_which_nothing_is_used_is_not_listed() {
    let server = RedisServer::start();
    let url = server.url();
    let (limiter, alice) = (limiter(&url).await, Key::new("alice"));
    let window = Limit::fixed_window("api", Quota::per_hour(5)).unwrap();
    let charged = limiter.check(&window, &alice).await.unwrap();
    assert!(run(&url, &["keys"]).out.contains("alice"));
    limiter
        .refund(&window, &alice, 1, charged.receipt().unwrap())
        .await
        .unwrap();
    let keys = run(&url, &["keys"]);
    assert!(
        keys.code == 0 && keys.out.starts_with("no keys"),
        "{keys:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn block_takes_the_algorithm_from_the_budgets_in_redis() {
    let server = RedisServer::start();
    let url = server.url();
    let (limiter, alice) = (limiter(&url).await, Key::new("alice"));
    for limit in limits() {
        let block = [
            "block",
            "alice",
            "--name",
            limit.name(),
            "--for",
            "1h",
            "--yes",
        ];
        let unknown = run(&url, &block);
        assert!(unknown.code == 3 && unknown.out.is_empty(), "{unknown:?}");
        assert!(unknown.err.contains("nothing was changed"), "{unknown:?}");

        // The budget of another client is enough.
        drop(limiter.check(&limit, &Key::new("bob")).await.unwrap());
        let blocked = run(&url, &block);
        assert_eq!(blocked.code, 0, "{blocked:?}");
        assert!(
            blocked.err.contains("`alice` has no budget under"),
            "{blocked:?}"
        );
        assert!(
            limiter.check(&limit, &alice).await.unwrap().is_blocked(),
            "{limit:?}"
        );
        let keys = run(&url, &["keys", "--containing", "alice"]);
        assert!(keys.out.contains("blocked for"), "{keys:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn block_of_a_name_with_two_algorithms_is_under_both() {
    let server = RedisServer::start();
    let url = server.url();
    let (limiter, alice) = (limiter(&url).await, Key::new("alice"));
    let by_operators = |limit: Result<Limit, _>| {
        limit
            .unwrap()
            .with_block_policy(BlockPolicy::by_operators())
            .unwrap()
    };
    let before = by_operators(Limit::fixed_window("api", Quota::per_hour(100)));
    let after = by_operators(Limit::gcra("api", Quota::per_hour(100)));
    for limit in [&before, &after] {
        drop(limiter.check(limit, &Key::new("bob")).await.unwrap());
    }
    let blocked = run(
        &url,
        &["block", "alice", "--name", "api", "--for", "1h", "--yes"],
    );
    assert_eq!(blocked.code, 0, "{blocked:?}");
    for limit in [&before, &after] {
        assert!(
            limiter.check(limit, &alice).await.unwrap().is_blocked(),
            "{limit:?}"
        );
    }
}

#[test]
fn block_of_a_limit_that_is_not_in_use_says_so() {
    let server = RedisServer::start();
    let block = [
        "block",
        "alice",
        "--name",
        "apix",
        "--algorithm",
        "gcra",
        "--for",
        "366d",
        "--yes",
    ];
    let at = |arguments: &[&str]| run(&server.url(), arguments);
    let run = at(&block);
    assert!(
        run.err
            .contains("no client has a budget of a limit named `apix` in Redis"),
        "{run:?}"
    );
    assert!(run.code == 0 && run.out.contains("for 366d"), "{run:?}");

    // The block does not pass for a budget, and can be ended.
    let again = at(&["block", "bob", "--name", "apix", "--for", "1h", "--yes"]);
    assert_eq!(again.code, 3, "{again:?}");
    let ended = at(&["unblock", "alice", "--name", "apix", "--yes"]);
    assert!(
        ended.code == 0 && ended.out.contains("is not blocked"),
        "{ended:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn block_of_a_key_that_no_service_uses_says_so_and_names_the_network() {
    let server = RedisServer::start();
    let url = server.url();
    let limiter = limiter(&url).await;
    let limit = Limit::gcra("api", Quota::per_hour(100)).unwrap();
    drop(
        limiter
            .check(&limit, &PeerIp::key_of("2001:db8::1".parse().unwrap()))
            .await
            .unwrap(),
    );
    let block = |key| {
        run(
            &url,
            &["block", key, "--name", "api", "--for", "1h", "--yes"],
        )
    };
    let address = block("2001:db8::1");
    assert!(
        address.err.contains("tollgate keys --name api"),
        "{address:?}"
    );
    assert!(address.err.contains("try `2001-db8--/64`"), "{address:?}");
    let network = block("2001-db8--/64");
    assert!(network.code == 0 && network.err.is_empty(), "{network:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn block_with_an_algorithm_is_also_under_the_one_that_is_in_use() {
    let server = RedisServer::start();
    let url = server.url();
    let (limiter, alice) = (limiter(&url).await, Key::new("alice"));
    let limit = Limit::sliding_window("api", Quota::per_hour(100)).unwrap();
    let limit = limit
        .with_block_policy(BlockPolicy::by_operators())
        .unwrap();
    drop(limiter.check(&limit, &alice).await.unwrap());
    let named = [
        "block",
        "alice",
        "--name",
        "api",
        "--algorithm",
        "gcra",
        "--for",
        "1h",
        "--yes",
    ];
    let blocked = run(&url, &named);
    assert_eq!(blocked.code, 0, "{blocked:?}");
    assert!(limiter.check(&limit, &alice).await.unwrap().is_blocked());
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_redis_do_not_command_the_terminal() {
    let server = RedisServer::start();
    let key = "tollgate:{a\u{1b}[2J}:b:api\u{202e}|";
    redis::cmd("SET")
        .arg(key)
        .arg("five")
        .exec(&mut server.connection())
        .unwrap();
    for arguments in [&["keys"][..], &["reset", "a\u{1b}[2J"], &["show", key]] {
        let run = run(&server.url(), arguments);
        let text = run.out + &run.err;
        assert!(
            !text.contains('\u{1b}') && !text.contains('\u{202e}'),
            "{arguments:?}: {text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copied_budgets_count_under_the_new_prefix_and_those_in_use_there_stay() {
    let server = RedisServer::start();
    let url = server.url();
    let old = limiter(&url).await;
    let new = RateLimiter::new(
        RedisStore::builder("shop")
            .url(&url)
            .connect()
            .await
            .unwrap(),
    );
    charge(&old, "alice").await;
    charge(&old, "bob").await;
    let mallory = Key::new("mallory");
    for limit in limits() {
        old.block(&limit, &mallory, HOUR).await.unwrap();
        drop(new.check_n(&limit, &Key::new("bob"), 2).await.unwrap());
    }
    let copy = ["copy", "--to-prefix", "shop"];
    let asks = run(&url, &copy);
    assert!(
        asks.code == 2
            && asks
                .err
                .contains("Copy the budgets of `tollgate` to `shop`"),
        "{asks:?}"
    );
    let copied = run(&url, &[&copy[..], &["--yes"]].concat());
    assert!(
        copied.code == 0 && copied.out.contains("copied 8, kept 4"),
        "{copied:?}"
    );
    for limit in limits() {
        let left = |limiter: &RateLimiter, client: &str| {
            let (limiter, limit, client) = (limiter.clone(), limit.clone(), Key::new(client));
            async move { limiter.peek(&limit, &client, 1).await.unwrap() }
        };
        let there = left(&new, "alice").await;
        assert_eq!(
            there.remaining(),
            left(&old, "alice").await.remaining(),
            "{limit}"
        );
        assert!(there.remaining() < limit.quota().capacity() - 6, "{limit}");
        let bob = left(&new, "bob").await.remaining();
        assert!(bob >= limit.quota().capacity() - 3, "{limit}: {bob}");
        assert!(left(&new, "mallory").await.is_blocked(), "{limit}");
    }
    let again = run(&url, &[&copy[..], &["--yes"]].concat());
    assert!(again.out.contains("copied 0, kept 12"), "{again:?}");
    let nowhere = run(&url, &["copy", "--yes"]);
    assert!(
        nowhere.code == 2 && nowhere.err.contains("--to-prefix"),
        "{nowhere:?}"
    );
}

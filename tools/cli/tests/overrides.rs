//! `tollgate override` and `tollgate overrides`.

mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use support::budgets::{until, until_limits_are_noted};
use support::{RedisServer, Run, tollgate};
use tollgate::overrides::Overrides;
use tollgate::{Limit, Quota, RateLimiter, RedisStore};

fn run(server: &RedisServer, arguments: &[&str]) -> Run {
    let url = server.url();
    let (command, rest) = arguments.split_first().unwrap();
    tollgate(&[&[*command, "--url", &url][..], rest].concat())
}

/// A service that follows the overrides.
async fn service(server: &RedisServer) -> (RateLimiter, Overrides) {
    let store = RedisStore::builder("tollgate").url(server.url());
    let store = store
        .deadline(Duration::from_secs(20))
        .connect()
        .await
        .unwrap();
    let overrides = Overrides::in_redis(&store).unwrap();
    let limiter = RateLimiter::builder(store)
        .overrides(&overrides)
        .build()
        .unwrap();
    (limiter, overrides)
}

#[tokio::test(flavor = "multi_thread")]
async fn customer_is_raised_for_a_week_listed_and_set_back() {
    let server = RedisServer::start();
    let (limiter, overrides) = service(&server).await;
    let api = Limit::token_bucket("api", Quota::per_minute(100)).unwrap();
    let capacity = async || limiter.peek(&api, "acme", 0).await.unwrap().capacity();
    assert_eq!(capacity().await, 100);
    let raise = |reason: &str| {
        let arguments = "override acme --name api --quota 1000/min --burst 300 --for 7d";
        let arguments: Vec<_> = arguments.split(' ').collect();
        let details = ["--author", "maria", "--reason", reason];
        run(&server, &[&arguments[..], &details].concat())
    };
    // A control character would command the terminal.
    let set = raise("launch | \u{1b}[2J of their shop");
    assert!(
        set.code == 2 && set.err.contains("the reason has"),
        "{set:?}"
    );
    let set = raise("launch | of their shop");
    assert_eq!(set.code, 0, "{set:?}");
    let start = "`acme` now has 1000 per 1m, burst 300 under `api`, until 20";
    assert!(set.out.starts_with(start), "{set:?}");
    until(|| overrides.get("api", "acme").is_some()).await;
    assert_eq!(capacity().await, 300);

    let list = run(&server, &["overrides"]).out;
    assert!(
        list.contains("| api   | acme | 1000 per 1m, burst 300 | 20"),
        "{list}"
    );
    assert!(
        list.contains("| maria | launch \\| of their shop |"),
        "{list}"
    );
    let json = &run(&server, &["overrides", "--json"]).json_lines()[0];
    assert_eq!(
        (&json["limit"], &json["key"]),
        (&"api".into(), &"acme".into())
    );
    assert!(
        run(&server, &["overrides", "--name", "other"])
            .out
            .contains("no client")
    );

    let remove = ["override", "acme", "--name", "api", "--remove"];
    let removed = run(&server, &remove);
    assert!(
        removed
            .out
            .contains("removed the override of `acme` under `api`"),
        "{removed:?}"
    );
    until(|| overrides.get("api", "acme").is_none()).await;
    assert_eq!(capacity().await, 100);
    let nothing = run(&server, &remove);
    assert!(nothing.out.contains("nothing was changed"), "{nothing:?}");
}

#[test]
fn end_is_a_day_in_utc_or_a_time_with_its_offset() {
    let server = RedisServer::start();
    let unlimited = |end: &[&str]| {
        let arguments = ["override", "acme", "--name", "api", "--unlimited", "--yes"];
        run(&server, &[&arguments[..], end].concat())
    };
    for (end, written) in [
        ("2150-12-03", "2150-12-03T00:00:00Z"),
        ("2150-12-03T18:00:00+01:00", "2150-12-03T17:00:00Z"),
        ("2150-12-03T18:00:00Z", "2150-12-03T18:00:00Z"),
    ] {
        let set = unlimited(&["--until", end]);
        assert!(set.out.contains(&format!("until {written}")), "{set:?}");
    }
    let set = unlimited(&[]);
    assert!(
        set.out
            .contains("`acme` is now unlimited under `api`, until the override is removed"),
        "{set:?}"
    );
    for (wrong, expected) in [
        (&["--until", "tomorrow"][..], "`tomorrow` is not a time"),
        (&["--until", "2020-01-01"], "has ended already"),
        (&["--for", "soon"], "`soon` is not a time"),
        (
            &["--for", "7d", "--until", "2150-12-03"],
            "cannot be used with",
        ),
        (&["--quota", "5/min"], "cannot be used with"),
        (&["--remove"], "cannot be used with"),
    ] {
        let run = unlimited(wrong);
        assert!(
            run.code == 2 && run.err.contains(expected),
            "{wrong:?}: {run:?}"
        );
    }
    let none = run(&server, &["override", "acme", "--name", "api"]);
    assert!(none.code == 2 && none.err.contains("--quota"), "{none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn override_that_may_have_no_effect_says_why() {
    let server = RedisServer::start();
    let deny = ["override", "mallory", "--name", "apii", "--deny"];
    let refused = run(&server, &deny);
    assert!(
        refused.code == 3
            && refused
                .err
                .contains("under the prefix `tollgate`, no service has"),
        "{refused:?}"
    );
    let alone = run(&server, &[&deny[..], &["--yes"]].concat());
    let text = "`mallory` is now denied (`this client is denied`) under `apii`";
    assert!(alone.out.contains(text), "{alone:?}");
    assert!(
        alone.err.contains("no process follows overrides now"),
        "{alone:?}"
    );
    assert!(
        alone
            .err
            .contains("the name and the quota were not checked"),
        "{alone:?}"
    );
    let (limiter, overrides) = service(&server).await;
    let api = Limit::gcra("api", Quota::per_minute(100)).unwrap();
    limiter.register(&api).unwrap();
    let billing = Quota::per_month(10).starting_on_day(15).unwrap();
    let billed = Limit::fixed_window("billed", billing).unwrap();
    limiter.register(&billed).unwrap();
    drop(limiter.check(&api, "alice").await.unwrap());
    until(|| overrides.get("apii", "mallory").is_some()).await;
    until_limits_are_noted(&server).await;
    let mistyped = run(&server, &deny);
    assert_eq!((mistyped.code, &*mistyped.out), (3, ""), "{mistyped:?}");
    assert!(
        mistyped
            .err
            .contains("no running service has noted a limit named `apii`"),
        "{mistyped:?}"
    );
    assert!(
        mistyped.err.contains("They have noted `api`, `billed`"),
        "{mistyped:?}"
    );
    let listed = run(&server, &["overrides", "--name", "bilied"]);
    assert!(
        listed
            .err
            .contains("no running service has noted a limit named `bilied`"),
        "{listed:?}"
    );
    let all_the_same = run(&server, &[&deny[..], &["--yes"]].concat());
    assert_eq!(
        (all_the_same.code, &*all_the_same.err),
        (0, ""),
        "{all_the_same:?}"
    );
    for (wrong, expected) in [
        (&["--quota", "0/min"][..], "the limit is 0"),
        (&["--quota", "5/month"], "fixed window"),
        (&["--quota", "5/month in UTC"], "leave them out"),
        (&["--permits", "4"], "use --quota"),
        (&["--unlimited", "--burst", "4"], "cannot be used with"),
    ] {
        let arguments = ["override", "acme", "--name", "api"];
        let run = run(&server, &[&arguments[..], wrong].concat());
        assert!(
            run.code == 2 && run.err.contains(expected),
            "{wrong:?}: {run:?}"
        );
    }
    let of_month = ["override", "acme", "--name", "billed", "--quota"];
    for (quota, yes, code) in [
        ("1000/min", "", 3),
        ("1000/day", "", 3),
        ("1000/min", "--yes", 0),
        ("50000/month", "", 0),
    ] {
        let more = [quota, yes];
        let more = more.iter().filter(|it| !it.is_empty()).copied();
        let run = run(
            &server,
            &of_month.into_iter().chain(more).collect::<Vec<_>>(),
        );
        assert_eq!(run.code, code, "{quota}: {run:?}");
        let is_told = run.err.contains("the limit `billed` counts per month");
        assert_eq!(is_told, code == 3, "{run:?}");
    }
    for (key, expected) in [
        ("", "it is empty"),
        ("acme ", "starts or ends with a blank"),
    ] {
        for command in [
            &["override", key, "--name", "api", "--unlimited"][..],
            &["usage", key],
            &["peek", key, "--name", "api"],
            &["block", key, "--name", "api", "--for", "1m"],
        ] {
            let run = run(&server, command);
            assert!(
                run.code == 2 && run.err.contains(expected),
                "{command:?}: {run:?}"
            );
        }
    }
    let set = run(
        &server,
        &["override", "acme", "--name", "api", "--quota", "9/h"],
    );
    assert!(
        set.err
            .contains("Redis has no charge of `acme` under `api` now"),
        "{set:?}"
    );
    let remove = ["override", "acme", "--name", "bilied", "--remove"];
    let not_removed = run(&server, &remove);
    assert_eq!((not_removed.code, &*not_removed.out), (3, ""));
    assert!(
        not_removed.err.contains("`acme` has overrides under `api`"),
        "{not_removed:?}"
    );
    drop(limiter.check(&api, "mallory").await.unwrap());
    let right = run(
        &server,
        &["override", "mallory", "--name", "api", "--deny=suspended"],
    );
    assert_eq!(right.err, "");
    until(|| overrides.get("api", "mallory").is_some()).await;
    assert!(!limiter.check(&api, "mallory").await.unwrap().allowed());
}

#[test]
fn usage_shows_the_overrides_of_redis_and_of_the_file() {
    let text = r#"
        [[limits]]
        name = "api"
        algorithm = "token_bucket"
        quota = "100/h"
        key = "user"

        [[limits]]
        name = "search"
        algorithm = "gcra"
        quota = "10/h"
        key = "user"
        overrides = { acme = { quota = "70/h" }, mallory = { deny = "suspended" } }

        [[limits]]
        name = "free"
        algorithm = "gcra"
        quota = "10/h"
        key = "user"
        overrides = { acme = { unlimited = true } }

        [[limits]]
        name = "month"
        algorithm = "fixed_window"
        quota = "100/month"
        starts = 15
        time_zone = "Europe/Berlin"
        key = "user"
    "#;
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("overrides.toml");
    fs::write(&file, text).unwrap();
    let server = RedisServer::start();
    for (name, quota) in [("api", "900/h"), ("month", "700/month")] {
        let arguments = [
            "override", "acme", "--name", name, "--quota", quota, "--yes",
        ];
        let set = run(&server, &arguments);
        assert_eq!(set.code, 0, "{set:?}");
    }
    let deny = ["override", "mallory", "--name", "api", "--deny", "--yes"];
    assert_eq!(run(&server, &deny).code, 0);
    let usage = ["usage", "acme", "--limits", file.to_str().unwrap()];
    let table = run(&server, &usage).out;
    for row in [
        "| api    | user | 900 per 1h (override) ",
        "| search | user | 70 per 1h (override in the file) ",
        "| free   | user | unlimited (override in the file) ",
        "| month  | user | 700 per month from 15 in Europe/Berlin (override) ",
    ] {
        assert!(table.contains(row), "{table}");
    }
    let denied = ["usage", "mallory", "--limits", file.to_str().unwrap()];
    let table = run(&server, &denied).out;
    for row in [
        "| api    | user | denied (override) ",
        "denied until the override is removed |",
        "| search | user | denied (override in the file) ",
    ] {
        assert!(table.contains(row), "{table}");
    }
    let json = run(&server, &[&denied[..], &["--json"]].concat()).json();
    assert_eq!(json[0]["denied"], true, "{json}");
    for (key, words) in [
        (
            "acme",
            "allowed: 900 of 900 left, full in 0s (override: 900 per 1h)",
        ),
        ("mallory", "(override: denied)"),
    ] {
        let peek = ["peek", key, "--name", "api", "--limit", "100/h"];
        let peeked = run(&server, &peek).out;
        assert!(peeked.contains(words), "{peeked}");
        let state = run(&server, &["show", key]);
        assert!(state.err.contains("override under `api`: "), "{state:?}");
    }
    let json = run(&server, &[&usage[..], &["--json"]].concat()).json();
    let shown = |number: usize| {
        let usage = &json[number];
        (
            usage["capacity"].as_u64().unwrap(),
            usage["overridden"].as_bool().unwrap(),
        )
    };
    assert_eq!([shown(0), shown(1)], [(900, true), (70, true)]);
}

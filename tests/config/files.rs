//! Files of limits: what they say, and what an error says about them.

#![cfg(all(feature = "yaml", feature = "schema", feature = "axum"))]

use serde_json::Value;
use tollgate::config::{Config, Format, LimitSet, Names};
use tollgate::key::Header;

const TOML: &str = r#"
[[limits]]
name = "clients"
algorithm = "token_bucket"
quota = "100/min"
burst = 20
key = "peer_ip"
except = { path = "/health" }

[[limits]]
name = "search"
algorithm = "sliding_window"
quota = "10/s"
sub_windows = 10
match = [{ path = "/search", method = ["GET", "POST"] }, { path = "/suggest" }]
key = ["user", "peer_ip"]
cost = "items"
shadow_percent = 100

[[limits]]
name = "accounts"
algorithm = "fixed_window"
anchor = "clock"
quota = "1000/day"
key = { first_of = ["user", ["peer_ip", "route"]] }
plan = "account"
on_store_failure = { local = { replicas = 3 } }
max_debt = 50
block = { after = "20/min", for = "10m", factor = 2, max = "1d" }

[limits.plans]
pro = { quota = "100000/day" }
internal = { unlimited = true }
closed = { deny = "this account is closed" }

[[limits]]
name = "uploads"
algorithm = "leaky_bucket"
mode = "meter"
quota = "5/s"
match = { method = "PUT" }
key = "global"
cost = 2
shadow_percent = 90
on_store_failure = "fail_closed"

[[limits]]
name = "exports"
algorithm = "concurrency"
limit = 3
key = ["user", "route"]
match = { path = "/export" }
except = { method = "HEAD" }
on_store_failure = { local = { replicas = 3 } }
retry_after = "30s"
plan = "account"
plans = { pro = { limit = 10 }, internal = { unlimited = true } }

[[limits]]
name = "all"
algorithm = "concurrency"
limit = 100
key = "global"
shadow_percent = 50

[[limits]]
name = "tried"
algorithm = "concurrency"
limit = 10
key = "peer_ip"
shadow_percent = 100
"#;

const YAML: &str = r#"
limits:
  - name: clients
    algorithm: token_bucket
    quota: 100/min
    burst: 20
    key: peer_ip
    except: { path: /health }
  - name: search
    algorithm: sliding_window
    quota: 10/s
    sub_windows: 10
    match:
      - { path: /search, method: [GET, POST] }
      - path: /suggest
    key: [user, peer_ip]
    cost: items
    shadow_percent: 100
  - name: accounts
    algorithm: fixed_window
    anchor: clock
    quota: 1000/day
    key:
      first_of: [user, [peer_ip, route]]
    plan: account
    on_store_failure:
      local:
        replicas: 3
    max_debt: 50
    block: { after: 20/min, for: 10m, factor: 2, max: 1d }
    plans:
      pro: { quota: 100000/day }
      internal: { unlimited: true }
      closed: { deny: this account is closed }
  - name: uploads
    algorithm: leaky_bucket
    mode: meter
    quota: 5/s
    match: { method: PUT }
    key: global
    cost: 2
    shadow_percent: 90
    on_store_failure: fail_closed
  - name: exports
    algorithm: concurrency
    limit: 3
    key: [user, route]
    match: { path: /export }
    except: { method: HEAD }
    on_store_failure: { local: { replicas: 3 } }
    retry_after: 30s
    plan: account
    plans: { pro: { limit: 10 }, internal: { unlimited: true } }
  - { name: all, algorithm: concurrency, limit: 100, key: global, shadow_percent: 50 }
  - { name: tried, algorithm: concurrency, limit: 10, key: peer_ip, shadow_percent: 100 }
"#;

fn names() -> Names {
    Names::new()
        .key("user", Header::new("x-user").unwrap())
        .plan("account", |_| None::<&str>)
        .cost("items", |_| 1)
}

fn parse(text: &str, format: Format) -> Result<LimitSet, String> {
    let name = if format == Format::Toml {
        "limits.toml"
    } else {
        "limits.yaml"
    };
    let config = Config::parse(name, text, format);
    config
        .and_then(|config| LimitSet::new(config, names()))
        .map_err(|error| error.to_string())
}

fn error(text: &str, format: Format) -> String {
    parse(text, format)
        .err()
        .unwrap_or_else(|| panic!("no error:\n{text}"))
}

/// The start of a limit, in four lines.
fn limit(rest: &str) -> String {
    format!("[[limits]]\nname = \"api\"\nalgorithm = \"token_bucket\"\n{rest}\n")
}

#[test]
fn toml_yaml_and_json_say_the_same() {
    let toml = Config::parse("limits.toml", TOML, Format::Toml).unwrap();
    let yaml = Config::parse("limits.yaml", YAML, Format::Yaml).unwrap();
    assert_eq!(toml, yaml);
    let json = serde_json::to_string(&toml).unwrap();
    assert_eq!(
        Config::parse("limits.json", &json, Format::Json).unwrap(),
        toml
    );
    assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), toml);
    let names = [
        "clients", "search", "accounts", "uploads", "exports", "all", "tried",
    ];
    assert_eq!(toml.names().collect::<Vec<_>>(), names);
}

#[test]
fn table_shows_the_limits_of_each_route() {
    let text = limit("quota = \"9/s\"\nkey = \"user\"\nexcept = { path = \"/health\" }")
        + "[[limits]]\nname = \"uploads\"\nalgorithm = \"leaky_bucket\"\nquota = \"5/s\"\n\
           match = { method = \"PUT\" }\nkey = [\"user\", \"route\"]\nshadow_percent = 100\n\
           [[limits]]\nname = \"files\"\nalgorithm = \"fixed_window\"\nquota = \"5/min\"\n\
           match = { path = \"/files/{name}\", method = [\"GET\", \"POST\"] }\n\
           key = { first_of = [\"user\", \"peer_ip\"] }\n\
           plan = \"account\"\nplans = { pro = { unlimited = true } }\n\
           [[limits]]\nname = \"writers\"\nalgorithm = \"concurrency\"\nlimit = 3\n\
           key = \"global\"\nshadow_percent = 80\n\
           match = { path = \"/files/{name}\", method = \"POST\" }\n";
    let table = "\
METHOD  PATH           LIMIT    KEY              QUOTA
GET     /files/{name}  api      user             9 per 1s (token bucket)
                       files    user or peer_ip  5 per 1m (fixed window), and 1 plan
POST    /files/{name}  api      user             9 per 1s (token bucket)
                       files    user or peer_ip  5 per 1m (fixed window), and 1 plan
                       writers  global           3 at once, in shadow mode for 80 % of the keys
PUT     /files/{name}  api      user             9 per 1s (token bucket)
                       uploads  user + route     5 per 1s (leaky bucket), in shadow mode
*       /files/{name}  api      user             9 per 1s (token bucket)
PUT     /health        uploads  user + route     5 per 1s (leaky bucket), in shadow mode
*       /health        none
PUT     *              api      user             9 per 1s (token bucket)
                       uploads  user + route     5 per 1s (leaky bucket), in shadow mode
*       *              api      user             9 per 1s (token bucket)";
    assert_eq!(parse(&text, Format::Toml).unwrap().to_string(), table);
}

#[test]
fn windows_of_the_calendar_have_a_start_and_a_time_zone_and_so_have_plans() {
    let text = limit(
        "quota = \"10000/month\"\ntime_zone = \"Europe/Berlin\"\nstarts = 15\nkey = \"user\"\n\
         plan = \"account\"\n[limits.plans]\nfirst = { quota = \"9/month\", starts = \"1 06:00\" }\n\
         large = { quota = \"90000/month\" }\nhourly = { quota = \"5/h\" }\ndaily = { quota = \"6/day\" }\n\
         weekly = { quota = \"7/week\", starts = \"sunday\", time_zone = \"utc\" }",
    )
    .replace("token_bucket", "fixed_window");
    let limits = parse(&text, Format::Toml).unwrap();
    let quota_of = |plan| {
        let limit = limits.limit_of_plan("api", plan).unwrap();
        limit.quota().to_string()
    };
    assert_eq!(
        ["none", "first", "large", "hourly", "daily", "weekly"].map(quota_of),
        [
            "10000 per month from 15 in Europe/Berlin",
            "9 per month from 06:00 in Europe/Berlin",
            "90000 per month from 15 in Europe/Berlin",
            "5 per 1h",
            "6 per 1d",
            "7 per week from sunday",
        ]
    );
    let day = limit("quota = \"5/day\"\nkey = \"user\"\ntime_zone = \"UTC\"")
        .replace("token_bucket", "fixed_window");
    let limits = parse(&day, Format::Toml).unwrap();
    let written = serde_json::to_string(&limits.config()).unwrap();
    let again = Config::parse("limits.json", &written, Format::Json).unwrap();
    let again = LimitSet::new(again, names()).unwrap();
    let day = again.limit("api").unwrap();
    assert_eq!(day.quota().to_string(), "5 per day in UTC");
    let one = serde_json::to_value(&day).unwrap();
    assert_eq!(
        (&one["quota"], &one["time_zone"]),
        (&"5/day".into(), &"UTC".into())
    );
    assert_eq!(serde_json::from_value::<tollgate::Limit>(one).unwrap(), day);
}

#[test]
fn calendars_that_cannot_work_are_errors_that_name_the_field() {
    let window = |rest: &str| limit(rest).replace("token_bucket", "fixed_window");
    let key = "key = \"user\"";
    for (text, field, expected) in [
        (
            window(&format!(
                "quota = \"9/month\"\ntime_zone = \"Europe/Berln\"\n{key}"
            )),
            "limits[0].time_zone",
            "did you mean `Europe/Berlin`",
        ),
        (
            window(&format!("quota = \"9/month\"\nstarts = 32\n{key}")),
            "limits[0].starts",
            "use 1 to 31",
        ),
        (
            window(&format!("quota = \"9/h\"\nstarts = 15\n{key}")),
            "limits[0].starts",
            "a quota per day, week, month or year",
        ),
        (
            window(&format!("quota = \"9/month\"\nanchor = \"clock\"\n{key}")),
            "limits[0].anchor",
            "remove `anchor`",
        ),
        (
            limit(&format!("quota = \"9/month\"\n{key}")),
            "limits[0].quota",
            "a bucket refills all the time",
        ),
        (
            window(&format!("quota = \"9/2 months\"\n{key}")),
            "limits[0].quota",
            "has months or years",
        ),
    ] {
        let message = error(&text, Format::Toml);
        assert!(message.contains(expected), "{message}");
        assert!(message.contains(field), "{message}");
    }
}

#[test]
fn limit_and_its_plans_warn_at_a_percentage_of_their_quotas() {
    let text = limit(
        "quota = \"10/min\"\nkey = \"user\"\nwarn_at_percent = 80\nplan = \"account\"\n\
         plans = { pro = { quota = \"900/min\" }, tiny = { quota = \"2/min\" } }",
    );
    let limits = parse(&text, Format::Toml).unwrap();
    let limit = limits.limit_of_plan("api", "pro").unwrap();
    assert_eq!(limit.warn_at_percent(), Some(80));
    let tiny = limits.limit_of_plan("api", "tiny").unwrap();
    assert_eq!(tiny.warn_at_percent(), None, "it has no unit to spare");
    let wrong = text.replace("80", "100");
    let message = error(&wrong, Format::Toml);
    assert!(message.contains("use 60 to 99"), "{message}");
    assert!(message.contains("limits[0].warn_at_percent"), "{message}");
}

#[test]
fn overshoot_of_a_plan_is_a_part_of_its_quota_and_a_small_plan_waits() {
    let text = limit(
        "quota = \"1000/min\"\nkey = \"user\"\novershoot_percent = 5\nplan = \"account\"\n\
         plans = { free = { quota = \"10/min\" }, pro = { quota = \"9000/min\" } }",
    );
    let table = parse(&text, Format::Toml).unwrap().to_string();
    let expected = "1000 per 1m (token bucket), asynchronous with an overshoot of 5 %";
    assert!(table.contains(expected), "{table}");

    let small = limit("quota = \"10/min\"\nkey = \"user\"\novershoot_percent = 5");
    let message = error(&small, Format::Toml);
    assert!(message.contains("less than 2 units"), "{message}");
    assert!(message.contains("limits[0].overshoot_percent"), "{message}");
    let zero = limit("quota = \"1000/min\"\nkey = \"user\"\novershoot_percent = 0");
    assert!(error(&zero, Format::Toml).contains("use 1 to 100"));
    let window = zero
        .replace("token_bucket", "fixed_window")
        .replace("percent = 0", "percent = 5");
    assert!(error(&window, Format::Toml).contains("use `asynchronous`"));
}

#[test]
fn errors_name_the_file_the_line_and_the_field() {
    let quota = "quota = \"100/min\"";
    let keyed = "quota = \"100/min\"\nkey = \"user\"";
    for (rest, place, why) in [
        (quota.to_owned(), ":1: `limits[0]`", "missing field `key`"),
        (
            "quota = \"9/fortnight\"\nkey = \"user\"".to_owned(),
            ":4: `limits[0].quota`",
            "unknown unit",
        ),
        (
            "quota = 9\nkey = \"user\"".to_owned(),
            ":4: `limits[0].quota`",
            "a string with a unit",
        ),
        (
            format!("{quota}\nkey = \"usr\""),
            ":5: `limits[0].key`",
            "it has global, peer_ip, route, user",
        ),
        (
            format!("{quota}\nkey = []"),
            ":5: `limits[0].key`",
            "the list is empty",
        ),
        (
            format!("{quota}\nkey = 3"),
            ":5: `limits[0].key`",
            "the name of an extractor, a list",
        ),
        (
            format!("{quota}\nkey = {{ firstof = [] }}"),
            ":5: `limits[0].key.firstof`",
            "did you mean `first_of`? Expected `first_of`",
        ),
        (
            format!("{quota}\nkey = [{}]", "\"user\", ".repeat(17)),
            ":5: `limits[0].key`",
            "the list has 17 extractors; use at most 16",
        ),
        (
            format!("{keyed}\ncost = 0"),
            ":6: `limits[0].cost`",
            "a request of cost 0 charges nothing",
        ),
        (
            format!("{quota}\nkey = {{ first_of = [] }}"),
            ":5: `limits[0].key`",
            "`first_of` is empty",
        ),
        (
            format!("{keyed}\nburts = 3"),
            ":6: `limits[0].burts`",
            "did you mean `burst`?",
        ),
        (
            format!("{keyed}\ntimezone = \"Europe/Berlin\""),
            ":6: `limits[0].timezone`",
            "did you mean `time_zone`?",
        ),
        (
            format!("{keyed}\ntz = \"Europe/Berlin\""),
            ":6: `limits[0].tz`",
            "did you mean `time_zone`?",
        ),
        (
            format!("{keyed}\nfrom = 15"),
            ":6: `limits[0].from`",
            "did you mean `starts`?",
        ),
        (
            format!("{keyed}\nburst = -3"),
            ":6: `limits[0].burst`",
            "integer `-3`, expected a whole number",
        ),
        (
            format!("{keyed}\nshadow_percent = \"10%\""),
            ":6: `limits[0].shadow_percent`",
            "string \"10%\", expected a percentage from 0 to 100",
        ),
        (
            format!("{keyed}\nburst = 0"),
            ":6: `limits[0].burst`",
            "the burst is 0",
        ),
        (
            format!("{keyed}\nsub_windows = 3"),
            ":6: `limits[0].sub_windows`",
            "is a field of sliding_window",
        ),
        (
            format!("{keyed}\nblock = {{ after = \"0/min\" }}"),
            ":6: `limits[0].block.after`",
            "after 0 denials; use 1 to 1000000",
        ),
        (
            format!("{keyed}\n[limits.block]\nafter = \"20/min\"\nfor = \"soon\""),
            ":8: `limits[0].block.for`",
            "the period `soon`",
        ),
        (
            format!("{keyed}\n[limits.block]\nafter = \"20/min\"\nfactor = 2"),
            ":8: `limits[0].block.factor`",
            "`factor` needs `max`",
        ),
        (
            format!(
                "{keyed}\n[limits.block]\nafter = \"9/h\"\nfor = \"1h\"\nfactor = 2\nmax = \"1m\""
            ),
            ":10: `limits[0].block.max`",
            "the longest block is 1m, shorter than the first of 1h",
        ),
        (
            format!("{keyed}\n[limits.block]\nafter = \"9/h\"\nfactor = 101\nmax = \"1d\""),
            ":8: `limits[0].block.factor`",
            "use 1 to 100",
        ),
        (
            format!("{keyed}\n[limits.block]\nafter = \"9/h\"\nfactor = -1\nmax = \"1d\""),
            ":8: `limits[0].block.factor`",
            "`factor` is -1; use 1 to 100",
        ),
        (
            format!("{keyed}\n[limits.block]\nafter = \"20\""),
            ":7: `limits[0].block.after`",
            "denials in a time, such as \"20/5min\"",
        ),
        (
            format!("{keyed}\n[limits.block]\nfor = \"1h\""),
            ":7: `limits[0].block.for`",
            "only blocked by operators",
        ),
        (
            format!("{keyed}\nblock = true"),
            ":6: `limits[0].block`",
            "expected a table with `after`",
        ),
        (
            format!("{keyed}\n[limits.block]\nafter = \"4294967296/min\""),
            ":7: `limits[0].block.after`",
            "after 4294967296 denials",
        ),
        (
            format!("{keyed}\n[limits.block]\nafter = \"9/h\"\nfactor = 3\nmax = \"400d\""),
            ":9: `limits[0].block.max`",
            "the longest block is 400d",
        ),
        (
            format!("{keyed}\n[limits.block]\nmax = \"4d\""),
            ":7: `limits[0].block.max`",
            "`max` needs `factor`",
        ),
        (
            format!("{keyed}\n[limits.block]\nafter = \"20/min\"\nlength = \"1m\""),
            ":8: `limits[0].block.length`",
            "unknown field `length`",
        ),
        (
            format!("{keyed}\nblock = [\"20/min\"]"),
            ":6: `limits[0].block`",
            "expected a table",
        ),
        (
            format!("{keyed}\nshadow_percent = 101"),
            ":6: `limits[0].shadow_percent`",
            "is 101 percent; use 0 to 100",
        ),
        (
            format!("{keyed}\non_store_failure = \"panic\""),
            ":6: `limits[0].on_store_failure`",
            "`fail_open`",
        ),
        (
            format!("{keyed}\non_store_failure = {{ local = {{ replicas = 0 }} }}"),
            ":6: `limits[0].on_store_failure`",
            "use 1 to 10000",
        ),
        (
            format!("{keyed}\nmatch = {{ path = \"a\" }}"),
            ":6: `limits[0].match.path`",
            "does not start with `/`",
        ),
        (
            format!("{keyed}\nmatch = [{{ path = \"/a\" }}, {{ method = \"get\" }}]"),
            ":6: `limits[0].match[1].method`",
            "the method `get` is unknown",
        ),
        (
            format!("{keyed}\nmatch = {{}}"),
            ":6: `limits[0].match`",
            "no `path` and no `method`",
        ),
        (
            format!("{keyed}\nexcept = {{ pth = \"/\" }}"),
            ":6: `limits[0].except.pth`",
            "unknown field `pth`",
        ),
        (
            format!("{keyed}\ncost = \"x\""),
            ":6: `limits[0].cost`",
            "it has items",
        ),
        (
            format!("{keyed}\ncost = -1"),
            ":6: `limits[0].cost`",
            "it is `-1`; write units, from 0 to 4294967295",
        ),
        (
            format!("{keyed}\nplan = \"account\""),
            ":6: `limits[0].plan`",
            "`plans` is missing",
        ),
        (
            format!("{keyed}\nplans.a.quota = \"3/min\""),
            ":6: `limits[0].plans`",
            "`plan` is missing",
        ),
        (
            format!("{keyed}\nplan = \"plan\"\nplans.a.quota = \"3/min\""),
            ":6: `limits[0].plan`",
            "no function for plans named `plan`; it has account",
        ),
        (
            format!("{keyed}\nplan = \"account\"\nplans.a.quota = \"3/mni\""),
            ":7: `limits[0].plans.a.quota`",
            "unknown unit `mni`",
        ),
        (
            format!("{keyed}\nplan = \"account\"\nplans.a.unlimited = true\nplans.a.burst = 3"),
            ":7: `limits[0].plans.a`",
            "write one",
        ),
        (
            format!("{keyed}\n[[limits]]\nname = \"b\""),
            ":6: `limits[1]`",
            "missing field `algorithm`",
        ),
        (
            format!("{keyed}\n\n{}{keyed}", limit("")),
            ":8: `limits[1].name`",
            "`api` is also the name of limits[0]",
        ),
        (format!("{quota}\nkey = \"us"), ":5", "invalid basic string"),
        (
            format!("{keyed}\nmatch = []"),
            ":6: `limits[0].match`",
            "the list is empty",
        ),
        (
            format!("{keyed}\nmatch = {{ path = \"/a\", method = [] }}"),
            ":6: `limits[0].match.method`",
            "the list is empty",
        ),
        (
            format!("{keyed}\nburst = 5\ncost = 10"),
            ":7: `limits[0].cost`",
            "has a capacity of 5",
        ),
        (
            format!("{keyed}\nplan = \"account\"\ncost = 10\nplans.a.quota = \"3/min\""),
            ":8: `limits[0].plans.a`",
            "has a capacity of 3",
        ),
        (
            format!("{keyed}\non_store_failure = \"local\""),
            ":6: `limits[0].on_store_failure.local`",
            "the policy is incomplete; write \"fail_open\", \"fail_closed\" or \
             { local = { replicas = 3 } }",
        ),
        // A field that has slipped into the table above it.
        (
            format!("{quota}\nplan = \"account\"\n[limits.plans]\nkey = [\"user\", \"peer_ip\"]"),
            ":7: `limits[0].plans.key`",
            "invalid type: sequence",
        ),
        (
            format!("{quota}\nplan = \"account\"\n[limits.plans]\nkey = \"user\""),
            ":7: `limits[0].plans.key`",
            "expected a plan: a table with",
        ),
        (
            format!("{keyed}\nmatch = [[\"/search\", \"GET\"]]"),
            ":6: `limits[0].match[0]`",
            "invalid type: sequence",
        ),
        // Of two, the first.
        (
            format!("{keyed}\nshadow_percent = 101\nburst = 0"),
            ":7: `limits[0].burst`",
            "the burst is 0",
        ),
        (format!("{keyed}\nkey = \"user\""), ":6", "duplicate key"),
    ] {
        let text = limit(&rest);
        let error = error(&text, Format::Toml);
        assert!(
            error.starts_with(&format!("limits.toml{place}: ")),
            "{place}: {error}\n{text}"
        );
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn errors_in_concurrency_limits_name_the_file_the_line_and_the_field() {
    let whole = "name = \"exports\"\nlimit = 3\nkey = \"user\"";
    for (fields, place, why) in [
        (
            "name = \"exports\"\nkey = \"user\"",
            ":1: `limits[0]`",
            "`limit` is missing; write the most requests of a key at once, such as 3",
        ),
        (
            "name = \"exports\"\nlimit = 3",
            ":1: `limits[0]`",
            "missing field `key`",
        ),
        (
            "limit = 3\nkey = \"user\"",
            ":1: `limits[0]`",
            "missing field `name`",
        ),
        (
            "name = \"\"\nlimit = 3\nkey = \"user\"",
            ":3: `limits[0].name`",
            "1 to 64",
        ),
        (
            "name = \"exports\"\nlimit = 0\nkey = \"user\"",
            ":4: `limits[0].limit`",
            "0 requests at once are out of range; use 1 to 1000000",
        ),
        (
            "name = \"exports\"\nlimit = 1000001\nkey = \"user\"",
            ":4: `limits[0].limit`",
            "use 1 to 1000000",
        ),
        (
            "name = \"exports\"\nlimit = -1\nkey = \"user\"",
            ":4: `limits[0].limit`",
            "integer `-1`, expected a whole number",
        ),
        (
            "name = \"exports\"\nlimit = \"3/s\"\nkey = \"user\"",
            ":4: `limits[0].limit`",
            "invalid type: string",
        ),
        (
            &format!("{whole}\nplan = \"account\""),
            ":6: `limits[0].plan`",
            "`plans` is missing",
        ),
        (
            &format!("{whole}\nplans.pro.limit = 5"),
            ":6: `limits[0].plans`",
            "`plan` is missing",
        ),
        (
            &format!("{whole}\nplan = \"account\"\nplans.pro.limit = 0"),
            ":7: `limits[0].plans.pro.limit`",
            "0 requests at once are out of range; use 1 to 1000000",
        ),
        (
            &format!("{whole}\nplan = \"account\"\nplans.pro = {{ limit = 5, unlimited = true }}"),
            ":7: `limits[0].plans.pro`",
            "a plan has one of `limit`, `unlimited = true` and `deny`; write one",
        ),
        (
            &format!("{whole}\nplan = \"account\"\nplans.pro.quota = \"5/s\""),
            ":7: `limits[0].plans.pro`",
            "a plan has one of `limit`, `unlimited = true` and `deny`; write one",
        ),
        (
            &format!("{whole}\nretry_after = \"30\""),
            ":6: `limits[0].retry_after`",
            "the period `30`",
        ),
        (
            &format!("{whole}\nretry_after = \"2h\""),
            ":6: `limits[0].retry_after`",
            "`retry_after` is 7200s; use 1s to 3600s",
        ),
        (
            "name = \"exports\"\nlimit = 3\nkey = \"usr\"",
            ":5: `limits[0].key`",
            "no key extractor named `usr`",
        ),
        (
            &format!("{whole}\nquota = \"3/s\""),
            ":6: `limits[0].quota`",
            "a concurrency limit has no `quota`: it limits requests at once, such as `limit = 3`; \
             remove it",
        ),
        (
            &format!("{whole}\nburst = 5"),
            ":6: `limits[0].burst`",
            "a concurrency limit has no `burst`",
        ),
        (
            &format!("{whole}\ncost = 5"),
            ":6: `limits[0].cost`",
            "a request holds one permit of a concurrency limit, whatever it costs",
        ),
        (
            &format!("{whole}\nmax_debt = 5"),
            ":6: `limits[0].max_debt`",
            "a concurrency limit has no `max_debt`",
        ),
        (
            &format!("{whole}\nblock = {{ after = \"5/min\" }}"),
            ":6: `limits[0].block`",
            "a concurrency limit has no `block`",
        ),
        (
            &format!("{whole}\nshadow_percent = 101"),
            ":6: `limits[0].shadow_percent`",
            "use 0",
        ),
        (
            &format!("{whole}\non_store_failure = {{ local = {{ replicas = 0 }} }}"),
            ":6: `limits[0].on_store_failure`",
            "use 1 to 10000",
        ),
        (
            &format!("{whole}\nmatch = {{ path = \"export\" }}"),
            ":6: `limits[0].match.path`",
            "does not start with `/`",
        ),
        (
            &format!("{whole}\nexcept = {{}}"),
            ":6: `limits[0].except`",
            "no `path`",
        ),
        (
            &format!("{whole}\n[[limits]]\nalgorithm = \"concurrency\"\n{whole}"),
            ":8: `limits[1].name`",
            "`exports` is also the name of limits[0], and headers and metrics could not tell the two",
        ),
    ] {
        let text = format!("[[limits]]\nalgorithm = \"concurrency\"\n{fields}\n");
        let error = error(&text, Format::Toml);
        assert!(
            error.starts_with(&format!("limits.toml{place}: ")),
            "{place}: {error}\n{text}"
        );
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn errors_in_yaml_name_the_file_the_line_and_the_field() {
    let start = "limits:\n- name: api\n  algorithm: gcra\n  quota: 10/s\n";
    for (rest, place, why) in [
        ("", ":4: `limits[0]`", "missing field `key`"),
        (
            "  key: usr\n",
            ":5: `limits[0].key`",
            "it has global, peer_ip, route, user",
        ),
        (
            "  key: user\n  burts: 3\n",
            ":6: `limits[0].burts`",
            "unknown field `burts`",
        ),
        (
            "  key: user\n  burst: 0\n",
            ":6: `limits[0].burst`",
            "the burst is 0",
        ),
        (
            "  key: user\n  key: peer_ip\n",
            ":6: `limits[0]`",
            "duplicate mapping key: key",
        ),
        (
            "  key: user\n  match:\n  - path: /a\n  - path: b\n",
            ":8: `limits[0].match[1].path`",
            "does not start with `/`",
        ),
        (
            "  key: user\n  match: [{path: /a}, {pa",
            ":6: `limits[0].match`",
            "unclosed bracket",
        ),
        (
            "  key: user\n- name: api\n  algorithm: gcra\n  quota: 1/s\n  key: user\n",
            ":6: `limits[1].name`",
            "also the name of limits[0]",
        ),
        ("\tkey: user\n", ":4: `limits[0]`", "found a tab"),
        (
            "  key: user\n---\nlimits: []\n",
            ":7",
            "multiple YAML documents",
        ),
    ] {
        let text = format!("{start}{rest}");
        let error = error(&text, Format::Yaml);
        assert!(
            error.starts_with(&format!("limits.yaml{place}: ")),
            "{place}: {error}\n{text}"
        );
        assert!(
            error.contains(why) && !error.contains(" at line "),
            "{why}: {error}"
        );
    }
}

#[test]
fn errors_in_json_name_the_file_the_line_and_the_field() {
    let json = |rest: &str| {
        format!(
            "{{\n  \"limits\": [\n    {{\n      \"name\": \"api\",\n\
             \x20     \"algorithm\": \"gcra\",\n{rest}"
        )
    };
    let rest = |quota: &str, key: &str| {
        format!("      \"quota\": {quota},\n      \"key\": {key}\n    }}\n  ]\n}}\n")
    };
    let whole = json(&rest("\"9/s\"", "\"user\""));
    assert!(Config::parse("limits.json", &whole, Format::Json).is_ok());
    for (text, place, why) in [
        (
            json(&rest("9", "\"user\"")),
            ":6: `limits[0].quota`",
            "a string with a unit",
        ),
        (
            json(&rest("\"9/mni\"", "\"user\"")),
            ":6: `limits[0].quota`",
            "unknown unit",
        ),
        (
            json(&rest("\"9/s\"", "\"usr\"")),
            ":7: `limits[0].key`",
            "it has global",
        ),
        (
            json(&rest("\"9/s\"", "\"user\",\n\"burts\": 3")),
            ":8: `limits[0].burts`",
            "unknown field",
        ),
        (format!("{whole}x"), ":11", "trailing characters"),
        (format!("{whole}{whole}"), ":11", "trailing characters"),
        (whole[..60].to_owned(), ":5", "EOF while parsing"),
        (String::new(), ":1", "EOF while parsing"),
    ] {
        let config = Config::parse("limits.json", &text, Format::Json);
        let error = config
            .and_then(|config| LimitSet::new(config, names()))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("limits.json{place}")),
            "{place}: {error}\n{text}"
        );
        assert!(
            error.contains(why) && !error.contains(" at line "),
            "{why}: {error}"
        );
    }
}

#[test]
fn text_that_is_no_configuration_is_an_error() {
    for text in [
        "",
        "\n",
        "limits = 3",
        "limits = [3]",
        "limits",
        "\u{0}",
        "[limits]",
        "x = 1\nlimits = []",
    ] {
        assert!(
            error(text, Format::Toml).starts_with("limits.toml:"),
            "{text}"
        );
    }
    for text in [
        "",
        "limits:",
        "limits: 3",
        "limits: [3]",
        "\u{0}",
        "- a",
        "{",
        "x: 1\nlimits: []",
    ] {
        assert!(
            error(text, Format::Yaml).starts_with("limits.yaml:"),
            "{text}"
        );
    }
}

#[test]
fn each_beginning_of_a_file_is_an_error_or_whole_limits() {
    let whole = Config::parse("limits.toml", TOML, Format::Toml).unwrap();
    let mut valid = 0;
    for (end, _) in TOML.char_indices() {
        // A file that ends between two tables looks like a shorter one. Anywhere else, the end is
        // seen or the values in between are those of the whole file.
        if let Ok(config) = Config::parse("limits.toml", &TOML[..end], Format::Toml) {
            assert!(
                config
                    .names()
                    .zip(whole.names())
                    .all(|(cut, whole)| cut == whole)
            );
            valid += 1;
        }
    }
    assert!(valid > 0 && valid < TOML.len() / 2, "{valid}");
}

#[test]
fn yaml_that_repeats_itself_without_end_is_an_error() {
    let mut bomb = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("b{level}: &a{level} [{before}]\n");
    }
    assert!(error(&bomb, Format::Yaml).starts_with("limits.yaml:"));
}

#[test]
fn too_many_limits_are_an_error() {
    let of = |number: usize| {
        let limit = |number| {
            format!(
                "[[limits]]\nname = \"{number}\"\nalgorithm = \"gcra\"\n\
                 quota = \"1/s\"\nkey = \"user\"\n"
            )
        };
        (0..number).map(limit).collect::<String>()
    };
    assert!(parse(&of(255), Format::Toml).is_ok());
    let error = error(&of(256), Format::Toml);
    assert_eq!(
        error,
        "limits.toml:1276: `limits[255]`: there are 256 limits; use at most 255"
    );
}

#[test]
fn sizes_are_bounded() {
    let limit = |rest: &str| limit(&format!("quota = \"9/s\"\nkey = \"user\"\n{rest}"));
    let plans = |number: usize| {
        let plans = (0..number).map(|number| format!("plans.p{number}.unlimited = true\n"));
        limit(&format!(
            "plan = \"account\"\n{}",
            plans.collect::<String>()
        ))
    };
    assert!(parse(&plans(1_000), Format::Toml).is_ok());
    let many = error(&plans(1_001), Format::Toml);
    assert!(
        many.contains("`limits[0].plans`: the limits up to here have 1001 plans; use at most 1000"),
        "{many}"
    );
    let patterns = |number: usize| {
        let patterns = (0..number).map(|number| format!("{{ path = \"/p{number}\" }}, "));
        limit(&format!("match = [{}]", patterns.collect::<String>()))
    };
    assert!(parse(&patterns(1_000), Format::Toml).is_ok());
    let many = error(&patterns(1_001), Format::Toml);
    assert!(
        many.contains("have 1001 entries in `match` and `except`; use at most 1000"),
        "{many}"
    );
    let comment = "#".repeat(1 << 20);
    assert_eq!(
        error(&comment, Format::Toml),
        "limits.toml:1: missing field `limits`; write `limits = []` if there are none"
    );
    let larger = error(&format!("{comment}#"), Format::Toml);
    assert_eq!(
        larger,
        "limits.toml: the text is larger than 1 MiB; write fewer limits"
    );
}

#[test]
fn format_of_a_file_is_the_end_of_its_name() {
    for (name, format) in [
        ("a.toml", Format::Toml),
        ("a.YAML", Format::Yaml),
        ("a.yml", Format::Yaml),
        ("b/a.json", Format::Json),
    ] {
        assert_eq!(Format::from_path(name.as_ref()).unwrap(), format);
    }
    for name in ["limits", "limits.ini", ".toml", ""] {
        let error = Format::from_path(name.as_ref()).unwrap_err().to_string();
        assert!(
            error.contains("name the file `.toml`, `.yaml`, `.yml` or `.json`"),
            "{error}"
        );
    }
    let directory = std::env::temp_dir().join("tollgate-directory.toml");
    std::fs::create_dir_all(&directory).unwrap();
    let error = Config::read(&directory).unwrap_err().to_string();
    assert!(
        error.ends_with("the file cannot be read: it is no regular file"),
        "{error}"
    );
    let error = Config::read("no/such/limits.toml").unwrap_err().to_string();
    assert!(
        error.starts_with("no/such/limits.toml: the file cannot be read: "),
        "{error}"
    );
}

/// The fields of the examples above are all fields that there are.
#[test]
fn schema_has_every_field_that_is_read_and_no_other() {
    let schema: Value = serde_json::from_str(&Config::json_schema()).unwrap();
    let fields = |of: &str| {
        let fields = schema["$defs"][of]["properties"].as_object().unwrap();
        fields.keys().cloned().collect::<Vec<_>>()
    };
    let unknown = error(
        &limit("quota = \"1/s\"\nkey = \"user\"\nx = 1"),
        Format::Toml,
    );
    for field in fields("LimitConfig") {
        assert!(unknown.contains(&format!("`{field}`")), "{field}");
    }
    assert_eq!(
        unknown.matches('`').count() / 2,
        fields("LimitConfig").len() + 2,
        "{unknown}"
    );
    assert_eq!(
        fields("PlanConfig"),
        [
            "burst",
            "deny",
            "limit",
            "quota",
            "starts",
            "time_zone",
            "unlimited"
        ]
    );
    assert_eq!(
        schema["$defs"]["LimitConfig"]["additionalProperties"],
        Value::Bool(false)
    );
}

#[test]
fn schema_in_the_repository_is_that_of_the_types() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/limits.json");
    let schema = Config::json_schema() + "\n";
    if std::env::var_os("WRITE_SCHEMA").is_some() {
        std::fs::write(file, &schema).unwrap();
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        written == schema,
        "`schema/limits.json` is out of date: run `make schema`"
    );
}

#[test]
fn error_repeats_no_more_than_the_start_and_the_end_of_a_long_name() {
    let name = "x".repeat(500_000);
    for text in [
        format!(
            "[[limits]]\nname = \"{name}\"\nalgorithm = \"gcra\"\n\
             quota = \"5/s\"\nkey = \"peer_ip\"\n"
        ),
        format!(
            "[[limits]]\nname = \"a\"\nalgorithm = \"{name}\"\nquota = \"5/s\"\nkey = \"peer_ip\"\n"
        ),
        format!(
            "[[limits]]\nname = \"a\"\nalgorithm = \"gcra\"\nquota = \"5/s\"\nkey = \"{name}\"\n"
        ),
        format!("[[limits]]\n{name} = 1\n"),
    ] {
        let config = Config::parse("limits.toml", &text, Format::Toml);
        let error = config
            .and_then(|config| LimitSet::new(config, Names::new()))
            .unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("limits.toml:"), "{}", &error[..200]);
        assert!(error.len() < 2_100, "{} bytes", error.len());
    }
}

//! Where new versions of limits come from: a file, and a key of Redis.

#![cfg(all(feature = "axum", feature = "config", feature = "redis"))]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redis::Commands;
use tokio::time::{sleep, timeout};
use tollgate::RedisStore;
use tollgate::config::{Config, ConfigSource, FileSource, Format, LimitSet, Names, RedisSource};

use crate::support::RedisServer;
use crate::support::log::Log;

const SECOND: Duration = Duration::from_secs(1);

/// Far more than any change takes, on a busy machine, too.
const LONG: Duration = Duration::from_secs(60);

fn text(units: u32) -> String {
    format!(
        "[[limits]]\nname = \"api\"\nalgorithm = \"gcra\"\n\
         quota = \"{units}/min\"\nkey = \"peer_ip\"\n"
    )
}

fn config(units: u32) -> Config {
    Config::parse("expected", &text(units), Format::Toml).unwrap()
}

async fn next(source: &mut impl ConfigSource) -> Result<Config, String> {
    let next = timeout(LONG, source.next())
        .await
        .expect("there is a new version");
    next.expect("the source goes on")
        .map_err(|error| error.to_string())
}

/// A directory that is removed with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).unwrap();
        Self(path.canonicalize().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// As editors and deployments do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

#[tokio::test]
async fn file_that_is_written_or_renamed_or_comes_back_is_read() {
    let directory = Directory::new("written");
    let path = directory.path("limits.toml");
    fs::write(&path, text(1)).unwrap();
    let mut source = FileSource::new(&path).unwrap();
    assert_eq!(source.read().unwrap(), config(1));
    fs::write(&path, text(2)).unwrap();
    assert_eq!(next(&mut source).await.unwrap(), config(2));
    for units in 3..10 {
        replace(&path, &text(units));
        assert_eq!(next(&mut source).await.unwrap(), config(units));
    }
    fs::remove_file(&path).unwrap();
    let error = next(&mut source).await.unwrap_err();
    assert!(
        error.starts_with(&format!("{}: the file cannot be read: ", path.display())),
        "{error}"
    );
    replace(&path, &text(10));
    assert_eq!(next(&mut source).await.unwrap(), config(10));
}

/// A change takes much less than the 10 seconds after which the file is read in any case.
#[tokio::test]
async fn change_is_seen_and_not_only_polled() {
    let directory = Directory::new("seen");
    let path = directory.path("limits.toml");
    fs::write(&path, text(1)).unwrap();
    let mut source = FileSource::new(&path).unwrap();
    source.read().unwrap();
    let began = Instant::now();
    for units in 2..12 {
        replace(&path, &text(units));
        assert_eq!(next(&mut source).await.unwrap(), config(units));
    }
    assert!(began.elapsed() < 50 * SECOND, "{:?}", began.elapsed());
}

/// Kubernetes mounts `limits.toml -> ..data/limits.toml` and `..data -> ..2026_01`, and swaps the
/// second link.
#[tokio::test]
async fn config_map_is_followed_through_its_symbolic_links() {
    let directory = Directory::new("config-map");
    let mount = |version: &str, units| {
        fs::create_dir(directory.path(version)).unwrap();
        fs::write(directory.path(version).join("limits.toml"), text(units)).unwrap();
        symlink(version, directory.path("..data_tmp")).unwrap();
        fs::rename(directory.path("..data_tmp"), directory.path("..data")).unwrap();
    };
    mount("..2026_01", 1);
    let path = directory.path("limits.toml");
    symlink("..data/limits.toml", &path).unwrap();
    let mut source = FileSource::new(&path).unwrap();
    assert_eq!(source.read().unwrap(), config(1));
    let began = Instant::now();
    for (before, version, units) in [
        ("..2026_01", "..2026_02", 2),
        ("..2026_02", "..2026_03", 3),
        ("..2026_03", "..2026_04", 4),
    ] {
        mount(version, units);
        fs::remove_dir_all(directory.path(before)).unwrap();
        assert_eq!(next(&mut source).await.unwrap(), config(units));
    }
    assert!(began.elapsed() < 25 * SECOND, "{:?}", began.elapsed());
}

/// A link to a file in another directory, which is written there.
#[tokio::test]
async fn file_behind_a_link_is_watched_too() {
    let (here, there) = (Directory::new("link"), Directory::new("target"));
    fs::write(there.path("real.toml"), text(1)).unwrap();
    let path = here.path("limits.toml");
    symlink(there.path("real.toml"), &path).unwrap();
    let mut source = FileSource::new(&path).unwrap();
    source.read().unwrap();
    let began = Instant::now();
    for units in 2..5 {
        replace(&there.path("real.toml"), &text(units));
        assert_eq!(next(&mut source).await.unwrap(), config(units));
    }
    assert!(began.elapsed() < 25 * SECOND, "{:?}", began.elapsed());
}

/// The directory of the file, or one above it, is another one.
#[tokio::test]
async fn replaced_directories_are_watched_again() {
    let top = Directory::new("replaced");
    let fill = |name: &str, units| {
        fs::create_dir_all(top.path(name)).unwrap();
        replace(&top.path(name).join("limits.toml"), &text(units));
    };
    fill("v1", 1);
    symlink("v1", top.path("current")).unwrap();
    let path = top.path("current").join("limits.toml");
    let mut source = FileSource::new(&path).unwrap();
    assert_eq!(source.read().unwrap(), config(1));
    let began = Instant::now();
    fill("v2", 2);
    symlink("v2", top.path("new")).unwrap();
    fs::rename(top.path("new"), top.path("current")).unwrap();
    assert_eq!(next(&mut source).await.unwrap(), config(2));
    replace(&path, &text(3));
    assert_eq!(next(&mut source).await.unwrap(), config(3));
    assert!(began.elapsed() < 9 * SECOND, "{:?}", began.elapsed());

    // A directory that is gone for a while is found by polling, and watched again.
    fs::remove_dir_all(top.path("v2")).unwrap();
    next(&mut source).await.unwrap_err();
    fill("v2", 4);
    assert_eq!(next(&mut source).await.unwrap(), config(4));
    let began = Instant::now();
    for units in 5..8 {
        replace(&path, &text(units));
        assert_eq!(next(&mut source).await.unwrap(), config(units));
    }
    assert!(began.elapsed() < 9 * SECOND, "{:?}", began.elapsed());
}

/// Written by another name of the file, in a directory that is not watched.
#[tokio::test]
async fn change_without_an_event_is_found_by_polling() {
    let (here, there) = (Directory::new("polled"), Directory::new("unseen"));
    let path = here.path("limits.toml");
    fs::write(&path, text(1)).unwrap();
    fs::hard_link(&path, there.path("other.toml")).unwrap();
    let mut source = FileSource::new(&path).unwrap();
    source.read().unwrap();
    let began = Instant::now();
    fs::write(there.path("other.toml"), text(2)).unwrap();
    assert_eq!(next(&mut source).await.unwrap(), config(2));
    assert!(
        (8 * SECOND..20 * SECOND).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn file_of_the_current_directory_that_was_removed_is_seen_when_it_is_back() {
    let name = format!("tollgate-relative-{}.toml", std::process::id());
    fs::write(&name, text(1)).unwrap();
    let mut source = FileSource::new(&name).unwrap();
    source.read().unwrap();
    fs::remove_file(&name).unwrap();
    next(&mut source).await.unwrap_err();
    let began = Instant::now();
    replace(Path::new(&name), &text(2));
    let version = next(&mut source).await;
    fs::remove_file(&name).unwrap();
    assert_eq!(version.unwrap(), config(2));
    assert!(began.elapsed() < 9 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn directory_that_cannot_be_watched_is_reported_once() {
    let top = Directory::new("missing");
    let (log, _guard) = Log::start();
    let mut source = FileSource::new(top.path("none").join("limits.toml")).unwrap();
    next(&mut source).await.unwrap_err();
    assert!(timeout(11 * SECOND, source.next()).await.is_err());
    let lines = log.lines();
    let [line] = &lines[..] else {
        panic!("{lines:#?}")
    };
    assert!(
        line.contains("file of limits not watched") && line.contains("/none"),
        "{line}"
    );
}

#[tokio::test]
async fn pipe_in_place_of_the_file_is_an_error_and_no_wait() {
    let directory = Directory::new("pipe");
    let path = directory.path("limits.toml");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap()
            .success()
    );
    let mut source = FileSource::new(&path).unwrap();
    let error = next(&mut source).await.unwrap_err();
    assert!(
        error.ends_with("the file cannot be read: it is no regular file"),
        "{error}"
    );
}

#[tokio::test]
async fn broken_file_is_reported_once_and_the_next_version_counts() {
    let directory = Directory::new("broken");
    let path = directory.path("limits.toml");
    fs::write(&path, text(1)).unwrap();
    let mut source = FileSource::new(&path).unwrap();
    source.read().unwrap();
    let whole = text(2);
    for (broken, why) in [
        (&whole[..whole.len() - 3], ":5: "),
        ("", ":1: missing field `limits`"),
        (
            "[[limits]]\nnmae = \"api\"\n",
            ":2: `limits[0].nmae`: unknown field",
        ),
    ] {
        replace(&path, broken);
        let error = next(&mut source).await.unwrap_err();
        assert!(
            error.starts_with(&format!("{}{why}", path.display())),
            "{error}"
        );
    }
    fs::write(&path, b"\xff\xfe").unwrap();
    let error = next(&mut source).await.unwrap_err();
    assert!(error.contains("the file cannot be read: "), "{error}");
    replace(&path, &whole);
    assert_eq!(next(&mut source).await.unwrap(), config(2));
}

#[tokio::test]
async fn file_that_does_not_change_is_read_once_although_others_change() {
    let directory = Directory::new("others");
    let path = directory.path("limits.toml");
    fs::write(&path, text(1)).unwrap();
    let mut source = FileSource::new(&path).unwrap();
    source.read().unwrap();
    let others = async {
        for number in 0..40 {
            fs::write(directory.path("other"), number.to_string()).unwrap();
            sleep(Duration::from_millis(20)).await;
        }
        // Others change all the time, and this file is read nevertheless.
        replace(&path, &text(2));
        loop {
            fs::write(directory.path("other"), "again").unwrap();
            sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        version = next(&mut source) => assert_eq!(version.unwrap(), config(2)),
        () = others => {}
    }
}

#[tokio::test]
async fn set_follows_a_file_that_exists_later() {
    let directory = Directory::new("later");
    let path = directory.path("limits.toml");
    let (log, _guard) = Log::start();
    let limits = LimitSet::new(config(1), Names::new()).unwrap();
    limits.follow(FileSource::new(&path).unwrap());
    until(|| limits.rejected().is_some()).await;
    assert_eq!(limits.config(), config(1));
    replace(&path, &text(2));
    until(|| limits.config() == config(2)).await;
    assert!(limits.rejected().is_none());
    let lines = log.lines();
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.contains("limits not replaced"))
            .count(),
        1,
        "{lines:#?}"
    );
}

/// Waits for what another task does.
async fn until(is_so: impl Fn() -> bool) {
    let turns = async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, turns).await.expect("it becomes so");
}

async fn redis_source(server: &RedisServer) -> RedisSource {
    RedisSource::new(
        &server.store().connect().await.unwrap(),
        "limits",
        Format::Toml,
    )
    .unwrap()
}

#[tokio::test]
async fn announced_change_reaches_all_replicas_within_a_second() {
    let server = RedisServer::start();
    let operator = redis_source(&server).await;
    operator.publish(&text(1)).await.unwrap();
    let mut replicas = Vec::new();
    for _ in 0..5 {
        let mut source = redis_source(&server).await;
        let limits = LimitSet::new(source.read().await.unwrap(), Names::new()).unwrap();
        limits.follow(source);
        replicas.push(limits);
    }
    let mut fastest = LONG;
    for units in 2..7 {
        let published = Instant::now();
        operator.publish(&text(units)).await.unwrap();
        for replica in &replicas {
            until(|| replica.config() == config(units)).await;
        }
        fastest = fastest.min(published.elapsed());
    }
    assert!(fastest < SECOND, "{fastest:?}");
    // By the channel, and not by polling each second.
    assert_eq!(subscriptions(&server), 5);
}

#[tokio::test]
async fn operators_need_no_more_than_redis_cli() {
    let server = RedisServer::start();
    let mut source = redis_source(&server).await;
    let key = source.key().to_owned();
    assert_eq!(key, "tollgate-config:limits");
    let mut cli = server.connection();
    let () = cli.set(&key, text(1)).unwrap();
    assert_eq!(source.read().await.unwrap(), config(1));
    let began = Instant::now();
    for units in 2..5 {
        let () = cli.set(&key, text(units)).unwrap();
        // Once the source has subscribed, which it does before it reads.
        let () = cli.publish(&key, "anything").unwrap();
        assert_eq!(next(&mut source).await.unwrap(), config(units));
    }
    assert!(began.elapsed() < 25 * SECOND, "{:?}", began.elapsed());
}

/// Takes the 10 seconds after which the key is read without an announcement.
#[tokio::test]
async fn missed_announcement_is_caught_by_polling() {
    let server = RedisServer::start();
    let mut source = redis_source(&server).await;
    source.publish(&text(1)).await.unwrap();
    source.read().await.unwrap();
    let mut cli = server.connection();
    let () = cli.set(source.key(), text(2)).unwrap();
    // What changed before the subscription is read after it.
    let began = Instant::now();
    assert_eq!(next(&mut source).await.unwrap(), config(2));
    assert!(began.elapsed() < 9 * SECOND, "{:?}", began.elapsed());
    // Now it has a subscription, and nothing is announced.
    let () = cli.set(source.key(), text(3)).unwrap();
    let began = Instant::now();
    assert_eq!(next(&mut source).await.unwrap(), config(3));
    assert!(
        (9 * SECOND..20 * SECOND).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn key_that_is_missing_or_no_configuration_is_reported_once() {
    let server = RedisServer::start();
    let mut source = redis_source(&server).await;
    let start = "Redis key `tollgate-config:limits`";
    let error = source.read().await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "{start}: not read: it does not exist, or is empty; write the limits there with SET"
        )
    );
    for (text, place) in [
        ("limits = 3".to_owned(), ":1: `limits`: "),
        (text(1).replace("min", "mni"), ":4: `limits[0].quota`: "),
    ] {
        let error = source.publish(&text).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{start}{place}")), "{error}");
    }
    source.publish(&text(1)).await.unwrap();
    source.read().await.unwrap();

    let key = source.key().to_owned();
    let mut cli = server.connection();
    let mut broken = async |write: redis::Cmd, why: &str| {
        let () = redis::cmd("DEL").arg(&key).query(&mut cli).unwrap();
        let () = write.query(&mut cli).unwrap();
        let () = cli.publish(&key, "").unwrap();
        let error = next(&mut source).await.unwrap_err();
        assert!(error.starts_with(start) && error.contains(why), "{error}");
    };
    let write = |command: &str, value: &[u8]| {
        let mut write = redis::cmd(command);
        write.arg(&key).arg(value);
        write
    };
    broken(redis::cmd("PING"), "it does not exist").await;
    broken(write("LPUSH", b"a"), "WRONGTYPE").await;
    broken(write("SET", b"\xff"), "the value is not UTF-8").await;
    broken(
        write("SET", &[b'#'; (1 << 20) + 1]),
        "the value is larger than 1 MiB",
    )
    .await;
    broken(write("SET", b"limits = ["), ":1: ").await;
    let () = cli.set(&key, text(2)).unwrap();
    let () = cli.publish(&key, "").unwrap();
    assert_eq!(next(&mut source).await.unwrap(), config(2));
}

#[tokio::test]
async fn limits_outlive_redis_and_follow_it_when_it_is_back() {
    let mut server = RedisServer::start();
    let store = server.store().deadline(SECOND).connect().await.unwrap();
    let mut source = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    source.publish(&text(1)).await.unwrap();
    let limits = LimitSet::new(source.read().await.unwrap(), Names::new()).unwrap();
    limits.follow(source);
    let operator = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    operator.publish(&text(2)).await.unwrap();
    until(|| limits.config() == config(2)).await;

    let port = server.port();
    server.kill();
    let error = operator.publish(&text(3)).await.unwrap_err().to_string();
    assert!(
        error.contains("Redis key `tollgate-config:limits`: not written: "),
        "{error}"
    );
    assert_eq!(limits.config(), config(2));
    assert!(limits.rejected().is_none());

    let again = RedisServer::start_on(port).expect("the port is free again");
    let () = again
        .connection()
        .set("tollgate-config:limits", text(4))
        .unwrap();
    until(|| limits.config() == config(4)).await;
    // It is subscribed to again, too.
    let published = Instant::now();
    redis_source(&again).await.publish(&text(5)).await.unwrap();
    until(|| limits.config() == config(5)).await;
    assert!(
        published.elapsed() < 9 * SECOND,
        "{:?}",
        published.elapsed()
    );
}

#[tokio::test]
async fn user_without_the_right_to_the_channel_polls_each_second_and_is_told() {
    let server = RedisServer::start();
    let mut cli = server.connection();
    let rules = "~tollgate:* ~tollgate-config:* +evalsha +eval +script|load +time +mget +exists \
                 +get +psetex +del +getrange +set +setrange +strlen +pexpire +pttl +ping +unwatch \
                 resetchannels";
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER")
        .arg("limited")
        .arg("on")
        .arg(">secret")
        .arg(rules.split_whitespace().collect::<Vec<_>>());
    let () = user.query(&mut cli).unwrap();
    let url = format!("redis://limited:secret@127.0.0.1:{}/", server.port());
    let store = RedisStore::connect(&url, "tollgate").await.unwrap();
    let mut source = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    let () = cli.set(source.key(), text(1)).unwrap();
    let (log, _guard) = Log::start();
    assert_eq!(next(&mut source).await.unwrap(), config(1));
    let began = Instant::now();
    for units in 2..5 {
        let () = cli.set(source.key(), text(units)).unwrap();
        assert_eq!(next(&mut source).await.unwrap(), config(units));
    }
    assert!(began.elapsed() < 9 * SECOND, "{:?}", began.elapsed());
    let lines = log.lines();
    let [line] = &lines[..] else {
        panic!("{lines:#?}")
    };
    assert!(
        line.contains("channel of limits not subscribed") && line.contains("+subscribe"),
        "{line}"
    );

    // The right to the command is not that to the channel.
    let () = redis::cmd("ACL")
        .arg("SETUSER")
        .arg("limited")
        .arg("+subscribe")
        .query(&mut cli)
        .unwrap();
    let store = RedisStore::connect(&url, "tollgate").await.unwrap();
    let mut source = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    assert_eq!(next(&mut source).await.unwrap(), config(4));
    let lines = log.lines();
    let advice = "add `&tollgate-config:*` to the ACL";
    assert!(lines.iter().any(|line| line.contains(advice)), "{lines:#?}");
}

/// The rights that the documentation names.
#[tokio::test]
async fn user_with_the_documented_rights_follows_and_one_that_reads_cannot_write() {
    let server = RedisServer::start();
    let mut cli = server.connection();
    let rules = "~tollgate:* ~tollgate-config:* +subscribe +evalsha +eval +script|load +time +mget \
                 +exists +get +psetex +del +getrange +set +setrange +strlen +pexpire +pttl +ping \
                 +unwatch resetchannels &tollgate-config:*";
    let set_user = |name: &str, rules: &str| {
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER").arg(name).arg("on").arg(">secret");
        user.arg(rules.split_whitespace().collect::<Vec<_>>());
        user
    };
    let () = set_user("service", rules).query(&mut cli).unwrap();
    let () = cli.set("tollgate-config:limits", text(1)).unwrap();
    let url = format!("redis://service:secret@127.0.0.1:{}/", server.port());
    let store = RedisStore::connect(&url, "tollgate").await.unwrap();
    let mut source = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    let (log, _guard) = Log::start();
    assert_eq!(next(&mut source).await.unwrap(), config(1));
    let changed = Instant::now();
    redis_source(&server).await.publish(&text(2)).await.unwrap();
    assert_eq!(next(&mut source).await.unwrap(), config(2));
    assert!(changed.elapsed() < 9 * SECOND, "{:?}", changed.elapsed());
    assert!(log.lines().iter().all(|line| !line.contains("subscribed")));

    // A right to read alone, from Redis 7 on.
    let read_only = rules.replace("~tollgate-config:*", "%R~tollgate-config:*");
    if set_user("reader", &read_only).query::<()>(&mut cli).is_ok() {
        let url = url.replace("service", "reader");
        let store = RedisStore::connect(&url, "tollgate").await.unwrap();
        let mut source = RedisSource::new(&store, "limits", Format::Toml).unwrap();
        assert_eq!(next(&mut source).await.unwrap(), config(2));
        let error = source.publish(&text(3)).await.unwrap_err().to_string();
        assert!(
            error.contains("not written: ") && error.contains("`~tollgate-config:*`"),
            "{error}"
        );
    }

    // A right that is taken away while the service runs is an error of the source.
    let () = set_user("service", "resetkeys ~tollgate:*")
        .query(&mut cli)
        .unwrap();
    let () = cli.publish("tollgate-config:limits", "").unwrap();
    let error = next(&mut source).await.unwrap_err();
    assert!(
        error.contains("not read: ") && error.contains("add `~tollgate-config:*`"),
        "{error}"
    );
}

/// The number of subscriptions to the channel.
fn subscriptions(server: &RedisServer) -> u64 {
    let mut count = redis::cmd("PUBSUB");
    count.arg("NUMSUB").arg("tollgate-config:limits");
    count
        .query::<(String, u64)>(&mut server.connection())
        .unwrap()
        .1
}

fn kill_subscriptions(server: &RedisServer) -> u64 {
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL")
        .arg("TYPE")
        .arg("pubsub")
        .query(&mut server.connection())
        .unwrap()
}

#[tokio::test]
async fn lost_subscription_is_made_again() {
    let server = RedisServer::start();
    let mut source = redis_source(&server).await;
    source.publish(&text(1)).await.unwrap();
    let limits = LimitSet::new(source.read().await.unwrap(), Names::new()).unwrap();
    limits.follow(source);
    until(|| subscriptions(&server) == 1).await;
    let operator = redis_source(&server).await;
    for units in 2..5 {
        assert_eq!(kill_subscriptions(&server), 1);
        let lost = Instant::now();
        until(|| subscriptions(&server) == 1).await;
        operator.publish(&text(units)).await.unwrap();
        until(|| limits.config() == config(units)).await;
        assert!(lost.elapsed() < 8 * SECOND, "{:?}", lost.elapsed());
    }
}

#[tokio::test]
async fn subscription_that_is_lost_all_the_time_costs_one_connection_a_second() {
    let server = RedisServer::start();
    let mut source = redis_source(&server).await;
    source.publish(&text(1)).await.unwrap();
    let limits = LimitSet::new(source.read().await.unwrap(), Names::new()).unwrap();
    limits.follow(source);
    server.reset_calls();
    let (began, mut killed) = (Instant::now(), 0);
    while began.elapsed() < 4 * SECOND {
        killed += kill_subscriptions(&server);
        sleep(Duration::from_millis(1)).await;
    }
    assert!((2..=6).contains(&killed), "{killed} subscriptions in 4 s");
    let reads = server.calls("getrange");
    assert!(reads <= 20, "{reads} reads in 4 s");
}

#[tokio::test]
async fn redis_that_hangs_delays_publishing_no_longer_than_the_deadline() {
    let server = RedisServer::start();
    let store = server
        .store()
        .deadline(Duration::from_millis(200))
        .connect()
        .await
        .unwrap();
    let mut source = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    source.publish(&text(1)).await.unwrap();
    server.pause(true);
    let error = timeout(LONG, source.publish(&text(2)))
        .await
        .expect("it ends")
        .unwrap_err();
    assert!(
        error.to_string().contains("no answer within the deadline"),
        "{error}"
    );
    timeout(LONG, source.read())
        .await
        .expect("it ends")
        .unwrap_err();
    let (log, _guard) = Log::start();
    let limits = LimitSet::new(config(1), Names::new()).unwrap();
    limits.follow(source);
    let is_reported = || {
        log.lines()
            .iter()
            .any(|line| line.contains("limits not read: the store is unavailable"))
    };
    until(is_reported).await;
    server.pause(false);
    let operator = redis_source(&server).await;
    operator.publish(&text(3)).await.unwrap();
    until(|| limits.config() == config(3)).await;
}

#[tokio::test]
async fn store_with_a_pool_polls_each_second() {
    let server = RedisServer::start();
    let pool = deadpool_redis::Config::from_url(server.url())
        .create_pool(None)
        .unwrap();
    let store = RedisStore::builder("tollgate")
        .pool(pool)
        .connect()
        .await
        .unwrap();
    let mut source = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    let (log, _guard) = Log::start();
    let began = Instant::now();
    for units in 1..5 {
        source.publish(&text(units)).await.unwrap();
        assert_eq!(next(&mut source).await.unwrap(), config(units));
    }
    assert!(began.elapsed() < 9 * SECOND, "{:?}", began.elapsed());
    assert!(log.lines().is_empty());
}

#[tokio::test]
async fn flood_of_announcements_costs_redis_few_reads() {
    let server = RedisServer::start();
    let mut source = redis_source(&server).await;
    source.publish(&text(1)).await.unwrap();
    let limits = LimitSet::new(source.read().await.unwrap(), Names::new()).unwrap();
    limits.follow(source);
    redis_source(&server).await.publish(&text(2)).await.unwrap();
    until(|| limits.version() == 2).await;
    server.reset_calls();
    let mut cli = server.connection();
    let began = Instant::now();
    let mut announcements = 0;
    while began.elapsed() < SECOND {
        let mut pipe = redis::pipe();
        for _ in 0..100 {
            pipe.publish("tollgate-config:limits", "x").ignore();
        }
        let () = pipe.query(&mut cli).unwrap();
        announcements += 100;
        tokio::task::yield_now().await;
    }
    let reads = server.calls("getrange");
    assert!(
        reads <= 40 && announcements > 500,
        "{reads} reads after {announcements} announcements"
    );
}

#[tokio::test]
async fn name_with_marks_of_keys_is_an_error() {
    let store = RedisStore::builder("tollgate")
        .url("redis://127.0.0.1:1/")
        .build()
        .unwrap();
    for name in ["", "a b", "{a}", "a:b", &"x".repeat(65)] {
        let error = RedisSource::new(&store, name, Format::Toml)
            .unwrap_err()
            .to_string();
        assert!(error.contains("use 1 to 64 letters, digits"), "{error}");
    }
}

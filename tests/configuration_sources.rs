//! Where new versions of limits come from: a file, and a key of Redis.

#![cfg(all(feature = "axum", feature = "config", feature = "redis"))]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redis::Commands;
use tokio::time::{sleep, timeout};
use tollgate::RedisStore;
use tollgate::config::{Config, ConfigSource, FileSource, Format, LimitSet, Names, RedisSource};

use self::support::RedisServer;
use self::support::log::Log;

const SECOND: Duration = Duration::from_secs(1);

/// Far more than any change takes, on a busy machine, too.
const LONG: Duration = Duration::from_secs(60);

fn text(units: u32) -> String {
    format!(
        "[[limits]]\nname = \"api\"\nalgorithm = \"gcra\"\nquota = \"{units}/min\"\nkey = \"peer_ip\"\n"
    )
}

fn config(units: u32) -> Config {
    Config::parse("expected", &text(units), Format::Toml).unwrap()
}

async fn next(source: &mut impl ConfigSource) -> Result<Config, String> {
    let next = timeout(LONG, source.next()).await.expect("there is a new version");
    next.expect("the source goes on").map_err(|error| error.to_string())
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

/// Kubernetes mounts `limits.toml -> ..data/limits.toml` and `..data -> ..2026_01`, and swaps the second link.
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
        ("[[limits]]\nnmae = \"api\"\n", ":2: `limits[0].nmae`: unknown field"),
    ] {
        replace(&path, broken);
        let error = next(&mut source).await.unwrap_err();
        assert!(error.starts_with(&format!("{}{why}", path.display())), "{error}");
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
        lines.iter().filter(|line| line.contains("limits not replaced")).count(),
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
    RedisSource::new(&server.store().connect().await.unwrap(), "limits", Format::Toml).unwrap()
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
}

#[tokio::test]
async fn operators_need_no_more_than_redis_cli() {
    let server = RedisServer::start();
    let mut source = redis_source(&server).await;
    let key = source.key().to_owned();
    assert_eq!(key, "tollgate:config:limits");
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
    assert_eq!(next(&mut source).await.unwrap(), config(2));
    // Now it has a subscription, and nothing is announced.
    let () = cli.set(source.key(), text(3)).unwrap();
    let began = Instant::now();
    assert_eq!(next(&mut source).await.unwrap(), config(3));
    assert!((9 * SECOND..20 * SECOND).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn key_that_is_missing_or_no_configuration_is_reported_once() {
    let server = RedisServer::start();
    let mut source = redis_source(&server).await;
    let start = "Redis key `tollgate:config:limits`";
    let error = source.read().await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!("{start}: not read: it does not exist; write the limits there with SET")
    );
    let error = source.publish("limits = 3").await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("{start}:1: `limits`: ")), "{error}");
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
    broken(write("SET", b"\xff"), "it is no text").await;
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
    assert!(error.starts_with("Redis key `tollgate:config:limits`: not written: "), "{error}");
    assert_eq!(limits.config(), config(2));
    assert!(limits.rejected().is_none());

    let again = RedisServer::start_on(port).expect("the port is free again");
    let () = again.connection().set("tollgate:config:limits", text(4)).unwrap();
    until(|| limits.config() == config(4)).await;
    // It is subscribed to again, too.
    let published = Instant::now();
    redis_source(&again).await.publish(&text(5)).await.unwrap();
    until(|| limits.config() == config(5)).await;
    assert!(published.elapsed() < 9 * SECOND, "{:?}", published.elapsed());
}

#[tokio::test]
async fn user_without_the_right_to_the_channel_polls_each_second_and_is_told() {
    let server = RedisServer::start();
    let mut cli = server.connection();
    let rules = "~tollgate:* +evalsha +eval +script|load +time +mget +exists +get +psetex +del +getrange +set \
                 +setrange +strlen +pexpire +ping +unwatch resetchannels";
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER")
        .arg("limited")
        .arg("on")
        .arg(">secret")
        .arg(rules.split_whitespace().collect::<Vec<_>>());
    let () = user.query(&mut cli).unwrap();
    let url = format!("redis://limited:secret@127.0.0.1:{}/", server.port());
    let store = RedisStore::connect(&url).await.unwrap();
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
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(
        line.contains("channel of limits not subscribed") && line.contains("+subscribe"),
        "{line}"
    );
}

#[tokio::test]
async fn store_with_a_pool_polls_each_second() {
    let server = RedisServer::start();
    let pool = deadpool_redis::Config::from_url(server.url()).create_pool(None).unwrap();
    let store = RedisStore::builder().pool(pool).connect().await.unwrap();
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
            pipe.publish("tollgate:config:limits", "x").ignore();
        }
        let () = pipe.query(&mut cli).unwrap();
        announcements += 100;
        tokio::task::yield_now().await;
    }
    let reads = server.calls("get");
    assert!(
        reads <= 40 && announcements > 500,
        "{reads} reads after {announcements} announcements"
    );
}

#[tokio::test]
async fn name_with_marks_of_keys_is_an_error() {
    let store = RedisStore::builder().url("redis://127.0.0.1:1/").build().unwrap();
    for name in ["", "a b", "{a}", "a:b", &"x".repeat(65)] {
        let error = RedisSource::new(&store, name, Format::Toml).unwrap_err().to_string();
        assert!(error.contains("use 1 to 64 letters, digits"), "{error}");
    }
}

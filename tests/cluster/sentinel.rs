//! Behind real sentinels: failovers of the master, under load.

#![cfg(feature = "redis")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};
use tollgate::decision::Source;
use tollgate::limit::OnStoreFailure;
use tollgate::{Decision, Error, Key, Limit, Permit, Quota, RateLimiter, RedisStore};

use crate::support::RedisServer;
use crate::support::fake_redis::{FakeRedis, greeting};
use crate::support::sentinels::Sentinels;

/// More than a failover takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn limit() -> Limit {
    Limit::fixed_window("api", Quota::per_hour(50)).unwrap()
}

async fn limiter(sentinels: &Sentinels) -> RateLimiter {
    RateLimiter::new(
        RedisStore::builder("tollgate")
            .url(sentinels.url())
            .connect()
            .await
            .unwrap(),
    )
}

/// Checks of one key from several tasks, without a pause, until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    allowed: Arc<AtomicU64>,
    /// Checks whose answers were lost. They may have been allowed.
    lost: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(limiter: &RateLimiter, limit: &Limit) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let allowed = Arc::new(AtomicU64::new(0));
        let lost = Arc::new(AtomicU64::new(0));
        let tasks = (0..8).map(|_| {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            let (stop, allowed) = (Arc::clone(&stop), Arc::clone(&allowed));
            let lost = Arc::clone(&lost);
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    match limiter.check(&limit, &Key::new("loaded")).await {
                        Ok(decision) => {
                            allowed.fetch_add(u64::from(decision.allowed()), Ordering::SeqCst);
                        }
                        Err(error) => {
                            assert!(error.is_unavailable(), "{error}");
                            lost.fetch_add(u64::from(error.may_have_charged()), Ordering::SeqCst);
                        }
                    }
                    yield_now().await;
                }
            })
        });
        let tasks = tasks.collect();
        Self {
            stop,
            allowed,
            lost,
            tasks,
        }
    }

    /// Stops it. Returns the fewest and the most checks that were allowed.
    async fn stop(self) -> [u64; 2] {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        let allowed = self.allowed.load(Ordering::SeqCst);
        [allowed, allowed + self.lost.load(Ordering::SeqCst)]
    }
}

/// The first decision of a new key, and the time that it took.
async fn decided(limiter: &RateLimiter, key: &str) -> (Decision, Duration) {
    let (key, limit, start) = (Key::new(key), limit(), Instant::now());
    let decision = timeout(PATIENCE, async {
        loop {
            match limiter.check(&limit, &key).await {
                Ok(decision) => return decision,
                Err(error) => assert!(error.is_unavailable(), "{error}"),
            }
            sleep(Duration::from_millis(5)).await;
        }
    });
    (decision.await.expect("it decides again"), start.elapsed())
}

/// Ends when the load has used up the budget of a key.
async fn until_used_up(limiter: &RateLimiter, key: &str) {
    let used_up = async {
        loop {
            match limiter.peek(&limit(), key, 1).await {
                Ok(decision) if !decision.allowed() => break,
                Ok(_) => yield_now().await,
                Err(error) => assert!(error.is_unavailable(), "{error}"),
            }
        }
    };
    timeout(PATIENCE, used_up)
        .await
        .expect("the load uses up the budget");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_master_is_replaced_by_the_one_that_the_sentinels_elect() {
    let mut sentinels = Sentinels::start(|_| Vec::new());
    let limiter = limiter(&sentinels).await;
    let old = sentinels.master();
    let load = Load::start(&limiter, &limit());
    drop(decided(&limiter, "before").await);
    sentinels.servers[0].kill();
    let (decision, took) = decided(&limiter, "after").await;
    assert!(decision.allowed() && decision.remaining() == 49);
    // One of the sentinels may hear of it a moment later than the majority.
    let start = Instant::now();
    while sentinels.master() == old {
        assert!(start.elapsed() < PATIENCE, "the sentinels agree");
    }
    println!("the master was killed: decisions again after {took:?}");
    until_used_up(&limiter, "loaded").await;
    // The charges that were not replicated are lost, and no charge is sent twice.
    let [fewest, most] = load.stop().await;
    assert!(fewest <= 100 && most >= 50, "{fewest} to {most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn demoted_master_is_left_at_once() {
    let sentinels = Sentinels::start(|_| Vec::new());
    let limiter = limiter(&sentinels).await;
    let old = sentinels.master();
    drop(decided(&limiter, "before").await);
    let load = Load::start(&limiter, &limit());
    sentinels.fail_over();
    let mut checks = 0;
    timeout(PATIENCE, async {
        while sentinels.master() == old {
            drop(decided(&limiter, &format!("during-{checks}")).await);
            checks += 1;
        }
    })
    .await
    .expect("the sentinels fail over");
    let (decision, _) = decided(&limiter, "after").await;
    assert_eq!(decision.remaining(), 49);
    load.stop().await;
}

/// Charges that only the old master has are lost, as without an overshoot.
#[tokio::test(flavor = "multi_thread")]
async fn replica_with_an_overshoot_pays_the_new_master() {
    let mut sentinels = Sentinels::start(|_| Vec::new());
    let limiter = limiter(&sentinels).await;
    let window = Limit::sliding_window("window", Quota::per_hour(100_000))
        .and_then(|limit| limit.with_overshoot_percent(10))
        .unwrap();
    let key = Key::new("alice");
    let spend = async |wanted: u64| {
        let (mut here, mut allowed, mut lost) = (0, 0, 0);
        while here < wanted {
            match limiter.check(&window, &key).await {
                Ok(decision) => {
                    assert!(decision.allowed());
                    here += u64::from(decision.source() == Source::Asynchronous);
                    allowed += 1;
                }
                Err(error) => {
                    assert!(error.is_unavailable(), "{error}");
                    lost += u64::from(error.may_have_charged());
                }
            }
            sleep(Duration::from_millis(1)).await;
        }
        allowed..=allowed + lost
    };
    let used = async || {
        loop {
            match limiter.peek(&window, &key, 0).await {
                Ok(decision) => return 100_000 - decision.remaining(),
                Err(error) => assert!(error.is_unavailable(), "{error}"),
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, spend(100)).await.unwrap();
    sentinels.servers[0].kill();
    let (decision, _) = decided(&limiter, "after").await;
    assert!(decision.allowed());
    limiter.flush().await;
    let before = timeout(PATIENCE, used()).await.unwrap();
    // The share of the overshoot is claimed again.
    let spent = timeout(PATIENCE, spend(100)).await.unwrap();
    limiter.flush().await;
    let charged = timeout(PATIENCE, used()).await.unwrap() - before;
    assert!(
        spent.contains(&charged),
        "{charged} charged, {spent:?} allowed"
    );
}

/// The old master works for ten seconds after the sentinels have named the new one. A budget must
/// not be in both.
#[tokio::test(flavor = "multi_thread")]
async fn planned_failover_does_not_split_a_budget() {
    let sentinels = Sentinels::start(|_| Vec::new());
    let running = limiter(&sentinels).await;
    let window = Limit::fixed_window("api", Quota::per_hour(1_000)).unwrap();
    let old = sentinels.master();
    for user in 0..50_u64 {
        drop(running.check(&window, &Key::from(user)).await.unwrap());
    }
    sentinels.fail_over();
    // A process that goes on all the time, and asks of one that is made when a majority names the
    // new master.
    let key = Key::new("alice");
    let mut before = 0_u64;
    timeout(PATIENCE, async {
        while sentinels.majority() == old {
            before += u64::from(
                running
                    .check(&window, &key)
                    .await
                    .is_ok_and(|it| it.allowed()),
            );
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the sentinels fail over");
    let named = Instant::now();
    let other = limiter(&sentinels).await;
    let on_new = || async { 1_000 - other.peek(&window, &key, 0).await.unwrap().remaining() };
    let moved = async {
        loop {
            let used = on_new().await;
            drop(running.check(&window, &key).await.unwrap());
            if on_new().await > used {
                break;
            }
        }
    };
    timeout(PATIENCE, moved)
        .await
        .expect("the running process moves");
    println!(
        "moved {:?} after a majority named the new master",
        named.elapsed()
    );
    assert!(
        named.elapsed() < Duration::from_secs(8),
        "{:?}",
        named.elapsed()
    );
    // From here on both count in one budget.
    let used = on_new().await;
    let mut allowed = 0;
    for limiter in [&running, &other].into_iter().cycle().take(2_000) {
        allowed += u64::from(limiter.check(&window, &key).await.unwrap().allowed());
    }
    println!("{before} charges before, {used} of them counted, then {allowed} allowed");
    assert_eq!(used + allowed, 1_000);
}

/// The requests in flight, and the most at once.
#[derive(Default)]
struct InFlight {
    now: AtomicU64,
    most: AtomicU64,
    granted: AtomicU64,
}

impl InFlight {
    async fn hold(&self, permit: Permit) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.granted.fetch_add(1, Ordering::SeqCst);
        sleep(Duration::from_millis(2)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        drop(permit);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_grants_permits_for_twice_the_limit_at_most_and_loses_none() {
    fail_over_with_permits(Sentinels::start(|_| Vec::new())).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_to_a_server_whose_clock_is_off_keeps_the_bound_of_permits_and_loses_none() {
    for offset in [-3_600, -3, 3, 3_600] {
        fail_over_with_permits(Sentinels::start_with_clock(offset)).await;
    }
}

async fn fail_over_with_permits(mut sentinels: Sentinels) {
    const LIMIT: u64 = 5;
    let exports = Limit::concurrency("exports", LIMIT as u32).unwrap();
    let exports = exports
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let (in_flight, key) = (Arc::new(InFlight::default()), Key::new("acme"));
    let stop = Arc::new(AtomicBool::new(false));
    let mut limiters = Vec::new();
    for _ in 0..3 {
        let store = RedisStore::builder("tollgate")
            .url(sentinels.url())
            .connect()
            .await
            .unwrap();
        let limiter = RateLimiter::builder(store).permit_lease(Duration::from_secs(1));
        let limiter = limiter.build().unwrap();
        limiters.push(limiter);
    }
    let mut tasks = JoinSet::new();
    for number in 0..24 {
        let (limiter, exports, key) = (limiters[number % 3].clone(), exports.clone(), key.clone());
        let (in_flight, stop) = (Arc::clone(&in_flight), Arc::clone(&stop));
        tasks.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                match limiter
                    .acquire_permit(&exports, &key, Duration::from_millis(50))
                    .await
                {
                    Ok(Some(permit)) => in_flight.hold(permit).await,
                    Ok(None) => {}
                    Err(error) => assert!(error.is_unavailable(), "{error}"),
                }
                yield_now().await;
            }
        });
    }
    let grow = async |more: u64| {
        let target = in_flight.granted.load(Ordering::SeqCst) + more;
        let granted = timeout(PATIENCE, async {
            while in_flight.granted.load(Ordering::SeqCst) < target {
                sleep(Duration::from_millis(5)).await;
            }
        });
        granted.await.expect("permits are granted");
    };
    grow(500).await;
    assert_eq!(
        in_flight.most.load(Ordering::SeqCst),
        LIMIT,
        "all are in use, and no more"
    );
    sentinels.servers[0].kill();
    // Those that the dead master granted, and then those of the new one.
    grow(500).await;
    let most = in_flight.most.load(Ordering::SeqCst);
    assert!(
        (LIMIT..=2 * LIMIT).contains(&most),
        "{most} in flight, of {LIMIT}"
    );
    stop.store(true, Ordering::SeqCst);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let mut held = Vec::new();
    for number in 0..LIMIT as usize {
        let permit =
            once_available(|| limiters[number % 3].acquire_permit(&exports, &key, PATIENCE));
        held.push(permit.await.expect("it is free"));
    }
    let one_more = once_available(|| limiters[0].try_acquire_permit(&exports, &key)).await;
    assert!(one_more.is_none(), "all are held");
}

/// The first answer of the store. After a failover the circuit breaker of a replica may be open,
/// and while it recovers it sends a part of the calls only.
async fn once_available<T, F: Future<Output = Result<T, Error>>>(call: impl Fn() -> F) -> T {
    let answer = timeout(PATIENCE, async {
        loop {
            match call().await {
                Err(error) if error.is_unavailable() => yield_now().await,
                result => break result.unwrap(),
            }
        }
    });
    answer.await.expect("the store is back")
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_that_hangs_and_one_that_is_gone_delay_nothing() {
    let sentinels = Sentinels::start(|_| Vec::new());
    sentinels.pause_sentinel(0, true);
    let start = Instant::now();
    let limiter = limiter(&sentinels).await;
    // Asked one after another, the first one would take half a second.
    assert!(
        start.elapsed() < Duration::from_millis(450),
        "{:?}",
        start.elapsed()
    );
    assert!(decided(&limiter, "one").await.0.allowed());
    sentinels.pause_sentinel(0, false);

    let url = sentinels
        .url()
        .replace("redis-sentinel://", "redis-sentinel://127.0.0.1:1,");
    RedisStore::connect(&url, "tollgate").await.unwrap();
}

/// Three sentinels, of which each names the master that it is told to name.
struct Votes {
    named: Arc<Mutex<[u16; 3]>>,
    asked: Arc<AtomicU64>,
    sentinels: Vec<FakeRedis>,
}

impl Votes {
    fn for_all(master: u16) -> Self {
        let (named, asked) = (
            Arc::new(Mutex::new([master; 3])),
            Arc::<AtomicU64>::default(),
        );
        let sentinels = (0..3).map(|number| {
            let (named, asked) = (Arc::clone(&named), Arc::clone(&asked));
            FakeRedis::start(move |command, arguments| {
                if command != "SENTINEL" {
                    return greeting(command, arguments);
                }
                asked.fetch_add(1, Ordering::SeqCst);
                let port = named.lock().unwrap()[number].to_string();
                Some(format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()).into())
            })
        });
        let sentinels = sentinels.collect();
        Self {
            named,
            asked,
            sentinels,
        }
    }

    fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(FakeRedis::address).collect();
        format!("redis-sentinel://{}/limits", addresses.join(","))
    }

    /// Waits until each sentinel was asked twice: the first time may have been before a change.
    async fn are_counted(&self) {
        let asked = self.asked.load(Ordering::SeqCst);
        let twice = async {
            while self.asked.load(Ordering::SeqCst) < asked + 7 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, twice)
            .await
            .expect("the sentinels are asked every second");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn master_is_not_left_for_one_that_no_majority_names() {
    let mut servers = [
        RedisServer::start(),
        RedisServer::start(),
        RedisServer::start(),
    ];
    // With equally many votes, the last one would be elected.
    servers.sort_unstable_by_key(|server| server.port().to_string());
    let [old, other, third] = servers;
    let votes = Votes::for_all(old.port());
    let limiter = RateLimiter::redis(&votes.url(), "tollgate").await.unwrap();
    assert_eq!(decided(&limiter, "alice").await.0.remaining(), 49);
    *votes.named.lock().unwrap() = [old.port(), other.port(), third.port()];
    votes.are_counted().await;
    assert_eq!(
        decided(&limiter, "alice").await.0.remaining(),
        48,
        "it is still on the old master"
    );
    *votes.named.lock().unwrap() = [old.port(), other.port(), other.port()];
    let moves = async { while decided(&limiter, "alice").await.0.remaining() < 49 {} };
    timeout(PATIENCE, moves)
        .await
        .expect("it moves to the master that a majority names");
}

#[tokio::test]
async fn url_of_sentinels_that_cannot_be_used_is_an_error_that_says_why() {
    for (url, why) in [
        ("redis-sentinel:///limits", "names no sentinels"),
        ("redis-sentinel://127.0.0.1:1", "names no service"),
        ("redis-sentinel://127.0.0.1:1/", "names no service"),
        ("redis-sentinel://127.0.0.1:x/limits", "did not parse"),
        ("redis-sentinel://127.0.0.1:1/limits/zero", "database"),
        (
            "redis-sentinel://127.0.0.1:1/limits?sentinel_user=me",
            "`sentinel_username`",
        ),
        (
            "redis-sentinel://h/limits?sentinel_username=me&sentinel_password=47#X",
            "percent-encode",
        ),
        (
            "redis-sentinel://me:47#X@127.0.0.1:1/limits",
            "percent-encode",
        ),
        ("redis://me:47#X@127.0.0.1:1/", "percent-encode"),
    ] {
        let error = RedisStore::builder("tollgate")
            .url(url)
            .build()
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(why) && !error.contains("47"),
            "{url}: {error}"
        );
    }
    // These are no passwords.
    RedisStore::builder("tollgate")
        .url("redis-sentinel://127.0.0.1:1/sentinel_main/0")
        .build()
        .unwrap();
    RedisStore::builder("tollgate")
        .url("redis+unix:///run/sentinel_1/redis.sock?pass=p@ss")
        .build()
        .unwrap();
    let sentinels = Sentinels::start(|_| Vec::new());
    let url = sentinels.url().replace("/limits", "/limit");
    let error = RedisStore::connect(&url, "tollgate")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("it knows no service of that name"),
        "{error}"
    );
    let error = RedisStore::connect(
        "redis-sentinel://127.0.0.1:1,127.0.0.1:2/limits",
        "tollgate",
    )
    .await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("127.0.0.1:1") && error.contains("127.0.0.1:2"),
        "{error}"
    );
}

#[tokio::test]
async fn passwords_of_sentinels_and_servers_are_their_own() {
    let sentinels = Sentinels::start(|_| Vec::new());
    for server in &sentinels.servers {
        let user = ["SETUSER", "limiter", "on", "~*", "+@all", ">p%ss"];
        let () = redis::cmd("ACL")
            .arg(&user)
            .query(&mut server.connection())
            .unwrap();
    }
    let url = sentinels.url().replace("//", "//limiter:p%25ss@");
    RedisStore::connect(&format!("{url}/0?protocol=resp3"), "tollgate")
        .await
        .unwrap();
    let error = RedisStore::connect(&url.replace("p%25ss", "guess"), "tollgate")
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("check the user and the password"),
        "{error}"
    );
    let error = RedisStore::connect(&format!("{url}?sentinel_password=guess"), "tollgate")
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("no sentinel names a master"),
        "{error}"
    );
}

#[cfg(feature = "config")]
#[tokio::test]
async fn master_that_is_known_by_its_name_is_followed() {
    let sentinels = Sentinels::start_by_name();
    let limiter = limiter(&sentinels).await;
    let (limit, key) = (limit(), Key::new("alice"));
    drop(limiter.check(&limit, &key).await.unwrap());
    let old = sentinels.majority();
    sentinels.fail_over();
    timeout(PATIENCE, async {
        while sentinels.majority() == old {
            drop(limiter.check(&limit, &key).await);
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the sentinels fail over");
    let new = self::limiter(&sentinels).await;
    let moved = async {
        let used = async || {
            50 - new
                .peek(&limit, &Key::new("bob"), 0)
                .await
                .unwrap()
                .remaining()
        };
        loop {
            let before = used().await;
            if limiter.check(&limit, &Key::new("bob")).await.is_ok() && used().await > before {
                break;
            }
        }
    };
    timeout(PATIENCE, moved)
        .await
        .expect("the running process moves");
}

#[cfg(feature = "config")]
#[tokio::test(flavor = "multi_thread")]
async fn planned_failover_takes_the_subscription_to_limits_along() {
    use tollgate::config::{ConfigSource, Format, RedisSource};

    let text = |units: u32| {
        format!(
            "limits = [{{ name = \"api\", algorithm = \"gcra\", \
             quota = \"{units}/s\", key = \"global\" }}]"
        )
    };
    let sentinels = Sentinels::start(|_| Vec::new());
    let store = RedisStore::builder("tollgate")
        .url(sentinels.url())
        .connect()
        .await
        .unwrap();
    let mut replica = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    let operator = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    operator.publish(&text(1)).await.unwrap();
    replica.next().await.unwrap().unwrap();
    let old = sentinels.majority();
    sentinels.fail_over();
    timeout(PATIENCE, async {
        while sentinels.majority() == old {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the sentinels fail over");
    // The old master still runs. The subscription is on the new one before the old one is demoted.
    let named = Instant::now();
    let server = sentinels
        .servers
        .iter()
        .find(|it| it.port() == sentinels.majority())
        .unwrap();
    let subscribers = || {
        let mut numsub = redis::cmd("PUBSUB");
        numsub.arg("NUMSUB").arg(operator.key());
        numsub
            .query::<(String, u64)>(&mut server.connection())
            .unwrap()
            .1
    };
    timeout(PATIENCE, async {
        while subscribers() == 0 {
            drop(store_is_asked(&store).await);
            drop(timeout(Duration::from_millis(100), replica.next()).await);
        }
    })
    .await
    .expect("the subscription moves");
    assert!(
        named.elapsed() < Duration::from_secs(8),
        "{:?}",
        named.elapsed()
    );
    operator.publish(&text(2)).await.unwrap();
    assert!(
        timeout(PATIENCE, replica.next())
            .await
            .unwrap()
            .unwrap()
            .is_ok()
    );
}

#[cfg(feature = "config")]
async fn store_is_asked(store: &RedisStore) -> Result<Decision, tollgate::Error> {
    RateLimiter::new(store.clone())
        .check(&limit(), &Key::new("alice"))
        .await
}

#[cfg(feature = "config")]
#[tokio::test(flavor = "multi_thread")]
async fn limits_in_a_key_follow_the_master() {
    use tollgate::config::{Config, ConfigSource, Format, RedisSource};

    let text = |units: u32| {
        format!(
            "limits = [{{ name = \"api\", algorithm = \"gcra\", \
             quota = \"{units}/s\", key = \"global\" }}]"
        )
    };
    let config = |units| Config::parse("expected", &text(units), Format::Toml).unwrap();
    let sentinels = Sentinels::start(|_| Vec::new());
    let store = RedisStore::builder("tollgate")
        .url(sentinels.url())
        .connect()
        .await
        .unwrap();
    let mut replica = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    let operator = RedisSource::new(&store, "limits", Format::Toml).unwrap();
    operator.publish(&text(1)).await.unwrap();
    let next = async |replica: &mut RedisSource| {
        let next = timeout(PATIENCE, replica.next()).await;
        next.unwrap().unwrap().unwrap()
    };
    assert_eq!(next(&mut replica).await, config(1));
    sentinels.fail_over();
    while operator.publish(&text(2)).await.is_err() {
        yield_now().await;
    }
    assert_eq!(next(&mut replica).await, config(2));
    operator.publish(&text(3)).await.unwrap();
    assert_eq!(next(&mut replica).await, config(3));
}

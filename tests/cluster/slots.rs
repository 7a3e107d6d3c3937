//! On a real Redis Cluster: spread over partitions, while slots move, and when a master is lost.

#![cfg(feature = "redis")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet, spawn_blocking, yield_now};
use tokio::time::{sleep, timeout};
use tollgate::decision::Source;
use tollgate::limit::{BlockPolicy, OnStoreFailure};
#[cfg(feature = "test-util")]
use tollgate::store::conformance;
use tollgate::store::{Operation, RedisStoreBuilder};
use tollgate::{Check, Key, Limit, MemoryStore, Quota, RateLimiter, RedisStore};

use crate::support::RedisServer;
use crate::support::cluster::Cluster;
use crate::support::fake_redis::{FakeRedis, greeting};

const HOUR: Duration = Duration::from_secs(3600);

/// More than a failover takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn store(cluster: &Cluster) -> RedisStoreBuilder {
    RedisStore::builder("tollgate")
        .url(cluster.url())
        .deadline(Duration::from_secs(20))
}

async fn limiter(cluster: &Cluster) -> RateLimiter {
    RateLimiter::new(store(cluster).connect().await.unwrap())
}

fn window(name: &str, limit: u64) -> Limit {
    Limit::fixed_window(name, Quota::per_hour(limit)).unwrap()
}

async fn used(limiter: &RateLimiter, limit: &Limit, key: &Key) -> u64 {
    limit.quota().capacity() - limiter.peek(limit, key, 0).await.unwrap().remaining()
}

/// Keys of users, by the master that starts with their partition.
fn keys_by_master(
    cluster: &Cluster,
    limiter: &RateLimiter,
    runtime: &tokio::runtime::Handle,
) -> HashMap<usize, Vec<Key>> {
    let limit = window("places", 10);
    for user in 0..60_u64 {
        drop(
            runtime
                .block_on(limiter.check(&limit, &Key::from(user)))
                .unwrap(),
        );
    }
    let mut keys: HashMap<usize, Vec<Key>> = HashMap::new();
    for master in 0..3 {
        let stored: Vec<String> = redis::cmd("KEYS")
            .arg("*:w:places")
            .query(&mut cluster.nodes[master].connection())
            .unwrap();
        for stored in stored {
            let user = stored.split(['{', '}']).nth(3).unwrap();
            keys.entry(master).or_default().push(Key::new(user));
        }
    }
    keys
}

async fn places(cluster: Arc<Cluster>, limiter: RateLimiter) -> HashMap<usize, Vec<Key>> {
    let runtime = tokio::runtime::Handle::current();
    spawn_blocking(move || keys_by_master(&cluster, &limiter, &runtime))
        .await
        .unwrap()
}

/// In one partition, groups are atomic. In several, a charge that is given back after the clock was
/// set back may leave a budget less full than it was.
#[cfg(feature = "test-util")]
#[tokio::test(flavor = "multi_thread")]
async fn one_partition_conforms() {
    let cluster = Cluster::start();
    let mut stores = 0;
    conformance::check(|clock| {
        stores += 1;
        let store = RedisStore::builder(format!("conformance-{stores}")).url(cluster.url());
        store
            .deadline(Duration::from_secs(20))
            .partitions(1)
            .clock(clock)
            .build()
            .unwrap()
    })
    .await;
}

/// The rights that the documentation of `RedisStore` lists, with those for a cluster.
#[tokio::test(flavor = "multi_thread")]
async fn user_with_the_documented_rights_alone_is_served_while_slots_move() {
    let source = include_str!("../../src/store/redis/mod.rs");
    let (_, rights) = source
        .split_once("and `+evalsha")
        .expect("the documentation lists them");
    let (rights, more) = rights.split_once("On a cluster it also needs `").unwrap();
    let rights = [
        rights.split('`').next().unwrap(),
        more.split('`').next().unwrap(),
    ]
    .join(" ");
    let rights: Vec<_> = rights
        .split_whitespace()
        .filter(|it| *it != "///")
        .collect();
    let cluster = Arc::new(Cluster::start());
    for node in &cluster.nodes {
        let mut command = redis::cmd("ACL");
        command.arg(&[
            "SETUSER",
            "limiter",
            "on",
            ">secret",
            "resetkeys",
            "~tollgate:*",
        ]);
        command
            .arg(&["resetchannels", "-@all", "+evalsha"])
            .arg(&rights);
        let () = command.query(&mut node.connection()).unwrap();
    }
    let url = cluster.url().replace("//", "//limiter:secret@");
    let store = RedisStore::builder("tollgate")
        .url(url)
        .deadline(Duration::from_secs(20));
    let limiter = RateLimiter::new(store.connect().await.unwrap());
    let (user, tenant) = (window("user", 1_000), window("tenant", 100_000));
    let group = |key: u64| {
        [
            Check::new(&user, Key::from(key)),
            Check::new(&tenant, "acme"),
        ]
    };
    let moving = Arc::clone(&cluster);
    let moves = spawn_blocking(move || {
        let mut connection = moving.nodes[0].connection();
        while redis::cmd("DBSIZE").query::<u64>(&mut connection).unwrap() == 0 {}
        let stored: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        let slot = moving.slot(&stored[0]);
        moving.move_slot(slot, 0, 1);
    });
    let mut allowed = 0;
    while !moves.is_finished() {
        for key in 0..40 {
            assert!(limiter.check_all(group(key)).await.unwrap().allowed());
            allowed += 1;
        }
    }
    moves.await.unwrap();
    assert_eq!(used(&limiter, &tenant, &Key::new("acme")).await, allowed);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_right_on_any_node_is_an_error_that_names_it() {
    let cluster = Cluster::start();
    for node in 0..3 {
        let set = |right: &str| {
            let words = ["SETUSER", "default", right];
            let () = redis::cmd("ACL")
                .arg(&words)
                .query(&mut cluster.nodes[node].connection())
                .unwrap();
        };
        set("-psetex");
        let error = store(&cluster).connect().await.unwrap_err().to_string();
        assert!(error.contains("add `+psetex`"), "{node}: {error}");
        set("+psetex");
    }
    store(&cluster).connect().await.unwrap();
    for node in &cluster.nodes {
        let () = redis::cmd("ACL")
            .arg(&[
                "SETUSER", "limiter", "on", ">secret", "~*", "+@all", "-cluster",
            ])
            .query(&mut node.connection())
            .unwrap();
    }
    let url = cluster.url().replace("//", "//limiter:secret@");
    let error = RedisStore::connect(&url, "tollgate")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("add `+cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_groups_take_nothing_from_the_buckets_of_others() {
    let cluster = Cluster::start();
    // Each denial comes from the cluster.
    let store = store(&cluster)
        .deny_for(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    let limiter = RateLimiter::new(store);
    let user = window("user", 1);
    let tenant = Limit::token_bucket("tenant", Quota::per_second(100).burst(1_000)).unwrap();
    let acme = Key::new("acme");
    drop(limiter.check_n(&tenant, &acme, 500).await.unwrap());
    for key in 0..64_u64 {
        drop(limiter.check(&user, &Key::from(key)).await.unwrap());
    }
    let mut tasks = JoinSet::new();
    for key in 0..64_u64 {
        let limiter = limiter.clone();
        let group = [
            Check::new(&user, Key::from(key)),
            Check::new(&tenant, &acme),
        ];
        tasks.spawn(async move {
            for _ in 0..100 {
                assert!(!limiter.check_all(group.clone()).await.unwrap().allowed());
            }
        });
    }
    tasks.join_all().await;
    let left = limiter.peek(&tenant, &acme, 0).await.unwrap().remaining();
    // The checks before the first answer were charged and given back, except for the units that had
    // drained. These are replenished meanwhile.
    assert!(left >= 480, "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_together_allow_exactly_the_limit_of_each_key() {
    let cluster = Cluster::start();
    let limit = window("api", 100);
    let (mut replicas, mut tasks) = (Vec::new(), JoinSet::new());
    for _ in 0..3 {
        // All checks are asked at once, and each partition has its share of the places.
        let store = store(&cluster)
            .max_waiting(400_000)
            .connect()
            .await
            .unwrap();
        replicas.push(RateLimiter::new(store));
    }
    for number in 0..20_000_u64 {
        let (limiter, limit) = (replicas[number as usize % 3].clone(), limit.clone());
        let user = number % 50;
        tasks.spawn(async move {
            (
                user,
                limiter
                    .check(&limit, &Key::from(user))
                    .await
                    .unwrap()
                    .allowed(),
            )
        });
    }
    let mut allowed = [0; 50];
    while let Some(answer) = tasks.join_next().await {
        let (user, is_allowed) = answer.unwrap();
        allowed[user as usize] += u64::from(is_allowed);
    }
    assert_eq!(allowed, [100; 50]);
    for (master, keys) in places(Arc::new(cluster), replicas[0].clone()).await {
        assert!(keys.len() > 5, "master {master} has a share: {keys:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn group_of_several_partitions_is_decided_as_in_memory() {
    let cluster = Cluster::start();
    let (limiter, memory) = (
        limiter(&cluster).await,
        RateLimiter::new(MemoryStore::new()),
    );
    let (user, tenant) = (window("user", 3), window("tenant", 10));
    let group = |user_key: u64, cost: u32| {
        [
            Check::new(&user, Key::from(user_key)),
            Check::new(&tenant, "acme").with_cost(cost),
            Check::new(&tenant, Key::from(user_key)),
        ]
    };
    for (user_key, cost) in [
        (1, 1),
        (1, 1),
        (1, 2),
        (1, 1),
        (2, 5),
        (2, 3),
        (3, 11),
        (2, 0),
        (2, 1),
    ] {
        for op in [Operation::Peek, Operation::Charge] {
            let operation = || op(group(user_key, cost).try_into().unwrap());
            let ours = limiter.apply(operation()).await.unwrap();
            let theirs = memory.apply(operation()).await.unwrap();
            let numbers = |decision: &tollgate::Decision| {
                let each = decision.verdicts().iter();
                each.map(|it| (it.allowed(), it.remaining(), it.exceeds_capacity()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(numbers(&ours), numbers(&theirs), "{:?}", operation());
            assert_eq!(ours.limit().name(), theirs.limit().name());
            let receipts = |decision: &tollgate::Decision| {
                decision
                    .receipts()
                    .map(|it| it.map(|it| it.cost()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(receipts(&ours), receipts(&theirs));
            let acme = Key::new("acme");
            assert_eq!(
                used(&limiter, &tenant, &acme).await,
                used(&memory, &tenant, &acme).await
            );
        }
    }
    limiter.reset(&tenant, "acme").await.unwrap();
    let charged = limiter.check_all(group(9, 1)).await.unwrap();
    for (check, receipt) in group(9, 1).into_iter().zip(charged.receipts()) {
        let refund = limiter.refund(check.limit(), check.key(), 1, receipt.unwrap());
        refund.await.unwrap();
    }
    assert_eq!(used(&limiter, &user, &Key::from(9_u64)).await, 0);
}

#[tokio::test]
async fn group_of_several_partitions_is_settled_and_passes_shadow_limits_as_in_memory() {
    let cluster = Cluster::start();
    let (limiter, memory) = (
        limiter(&cluster).await,
        RateLimiter::new(MemoryStore::new()),
    );
    let (user, tenant) = (window("user", 3), window("tenant", 100));
    let strict = window("strict", 2).with_shadow_mode();
    let group = |cost: u32| {
        [
            Check::new(&user, Key::from(1_u64)),
            Check::new(&tenant, "acme").with_cost(cost),
            Check::new(&strict, Key::from(2_u64)),
        ]
    };
    for (cost, real) in [(10, 4), (10, 25), (10, 10), (10, 10)] {
        let mut answers = Vec::new();
        for limiter in [&limiter, &memory] {
            let charged = limiter.check_all(group(cost)).await.unwrap();
            if charged.allowed() {
                let receipt = charged.receipts().nth(1).unwrap();
                let settlement = limiter.settle(&tenant, "acme", real, receipt);
                settlement.await.unwrap();
            }
            let shadow = charged.shadow_denials().count();
            let left = used(limiter, &tenant, &Key::new("acme")).await;
            let strict = used(limiter, &strict, &Key::from(2_u64)).await;
            answers.push((charged.allowed(), shadow, left, strict));
        }
        assert_eq!(answers[0], answers[1]);
    }
    assert_eq!(
        used(&limiter, &tenant, &Key::new("acme")).await,
        4 + 25 + 10
    );
}

#[tokio::test]
async fn permits_are_counted_over_partitions_and_while_a_slot_moves() {
    let cluster = Cluster::start();
    let on = async || RateLimiter::new(store(&cluster).connect().await.unwrap());
    let (here, there) = (on().await, on().await);
    let limit = Limit::concurrency("exports", 1).unwrap();
    let mut held = Vec::new();
    for user in 0..64_u64 {
        held.push(
            here.try_acquire_permit(&limit, &Key::from(user))
                .await
                .unwrap()
                .expect("it is free"),
        );
        assert!(
            there
                .try_acquire_permit(&limit, &Key::from(user))
                .await
                .unwrap()
                .is_none(),
            "{user}"
        );
    }
    let key: Vec<String> = (0..3)
        .flat_map(|node| {
            let keys: Vec<String> = redis::cmd("KEYS")
                .arg("*:c:exports")
                .query(&mut cluster.nodes[node].connection())
                .unwrap();
            keys
        })
        .collect();
    assert_eq!(key.len(), 64);
    let slot = cluster.slot(&key[0]);
    let from = cluster.master_of(slot);
    let to = (from + 1) % 3;
    let is_counted = async || {
        // Together, so that keys on both sides share calls.
        let mut asked = JoinSet::new();
        for user in 0..128_u64 {
            let (there, limit) = (there.clone(), limit.clone());
            asked.spawn(async move {
                let permit = there
                    .try_acquire_permit(&limit, &Key::from(user))
                    .await
                    .unwrap();
                (user, permit.map(|permit| permit.source()))
            });
        }
        for (user, source) in asked.join_all().await {
            let expected = if user < 64 { None } else { Some(Source::Store) };
            assert_eq!(source, expected, "{user}");
        }
    };
    cluster.begin_move(slot, from, to);
    is_counted().await;
    assert!(cluster.move_key(slot, from, to));
    is_counted().await;
    while cluster.move_key(slot, from, to) {}
    is_counted().await;
    cluster.end_move(slot, from, to);
    is_counted().await;
    drop(held);
    for user in 0..64_u64 {
        let permit = there
            .acquire_permit(&limit, &Key::from(user), PATIENCE)
            .await
            .unwrap();
        assert!(permit.is_some(), "{user}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn master_that_hangs_costs_the_keys_of_others_neither_leases_nor_time() {
    let cluster = Cluster::start();
    let on = async || {
        let store = store(&cluster)
            .deadline(Duration::from_secs(5))
            .connect()
            .await
            .unwrap();
        let limiter = RateLimiter::builder(store).permit_lease(Duration::from_secs(1));
        limiter.build().unwrap()
    };
    let (here, there) = (on().await, on().await);
    let limit = Limit::concurrency("exports", 1).unwrap();
    let limit = limit
        .with_on_store_failure(OnStoreFailure::FailClosed)
        .unwrap();
    let mut held = Vec::new();
    for user in 0..64_u64 {
        held.push(
            here.try_acquire_permit(&limit, &Key::from(user))
                .await
                .unwrap()
                .expect("it is free"),
        );
    }
    let mut node = cluster.nodes[0].connection();
    let of_node: Vec<String> = redis::cmd("KEYS")
        .arg("*:c:exports")
        .query(&mut node)
        .unwrap();
    let is_of_node = |user: u64| {
        of_node
            .iter()
            .any(|key| key.contains(&format!("{{{user}}}:c:")))
    };
    let others: Vec<u64> = (0..64).filter(|user| !is_of_node(*user)).collect();
    assert!(of_node.len() + others.len() == 64 && !of_node.is_empty() && !others.is_empty());
    cluster.nodes[0].pause(true);
    // More than two leases long.
    let stolen = others.iter().map(|user| {
        let (there, limit, key) = (there.clone(), limit.clone(), Key::from(*user));
        tokio::spawn(async move {
            there
                .acquire_permit(&limit, &key, Duration::from_millis(2_500))
                .await
        })
    });
    for stolen in stolen.collect::<Vec<_>>() {
        assert!(
            stolen.await.unwrap().unwrap().is_none(),
            "here renews what it holds"
        );
    }
    cluster.nodes[0].pause(false);
}

#[tokio::test]
async fn denials_of_groups_over_partitions_are_counted_and_block_on_all_replicas() {
    let cluster = Cluster::start();
    let (here, there) = (limiter(&cluster).await, limiter(&cluster).await);
    let user = window("user", 1)
        .with_block_policy(BlockPolicy::after(5, HOUR))
        .unwrap();
    let tenants = [1, 2, 3, 4_u64].map(|it| (window("tenant", 1_000), Key::from(it)));
    let group = || {
        let tenants = tenants.iter().map(|(limit, key)| Check::new(limit, key));
        tenants
            .chain([Check::new(&user, "mallory")])
            .collect::<Vec<_>>()
    };
    assert!(here.check_all(group()).await.unwrap().allowed());
    for limiter in [&here, &there, &here, &there] {
        assert!(!limiter.check_all(group()).await.unwrap().is_blocked());
    }
    for limiter in [&here, &there] {
        assert!(limiter.check_all(group()).await.unwrap().is_blocked());
    }
    for (limit, key) in &tenants {
        assert_eq!(
            used(&here, limit, key).await,
            1,
            "denied groups consume nothing"
        );
    }
    here.unblock(&user, &Key::new("mallory")).await.unwrap();
    assert!(!here.check_all(group()).await.unwrap().is_blocked());
}

#[tokio::test(flavor = "multi_thread")]
async fn asynchronous_groups_of_several_partitions_lose_no_unit() {
    let cluster = Cluster::start();
    let (observer, limiter) = (limiter(&cluster).await, limiter(&cluster).await);
    let asynchronous = |name| window(name, 10_000).asynchronous().unwrap();
    let (user, tenant) = (asynchronous("user"), asynchronous("tenant"));
    let mut here = 0;
    for number in 0..20_u64 {
        // The keys of most pairs are in two partitions.
        let (user_key, tenant_key) = (Key::from(number), Key::from(number + 1_000));
        let group = || {
            [
                Check::new(&user, &user_key),
                Check::new(&tenant, &tenant_key),
            ]
        };
        for _ in 0..50 {
            let decision = limiter.check_all(group()).await.unwrap();
            assert!(decision.allowed());
            here += u64::from(decision.source() == Source::Asynchronous);
            yield_now().await;
        }
    }
    assert!(here > 500, "{here} of 1,000 were decided here");
    limiter.flush().await;
    for number in 0..20_u64 {
        assert_eq!(used(&observer, &user, &Key::from(number)).await, 50);
        assert_eq!(
            used(&observer, &tenant, &Key::from(number + 1_000)).await,
            50
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_with_an_overshoot_are_paid_in_all_partitions() {
    let cluster = Cluster::start();
    let (observer, limiter) = (limiter(&cluster).await, limiter(&cluster).await);
    let bucket = |name| {
        let limit = Limit::token_bucket(name, Quota::per_day(1_000));
        limit.unwrap().with_overshoot_percent(50).unwrap()
    };
    let (user, tenant) = (bucket("user"), bucket("tenant"));
    let mut allowed = [0_u64; 20];
    let mut here = 0;
    // The share of the overshoot is claimed in the first tenths of a second.
    for _ in 0..40 {
        for (number, allowed) in (0..20_u64).zip(&mut allowed) {
            let group = [
                Check::new(&user, Key::from(number)),
                Check::new(&tenant, Key::from(number + 1_000)),
            ];
            let decision = limiter.check_all(group).await.unwrap();
            assert!(decision.allowed());
            *allowed += 1;
            here += u64::from(decision.source() == Source::Asynchronous);
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert!(here > 400, "{here} of 800 were decided here");
    limiter.flush().await;
    for (number, allowed) in (0..20_u64).zip(allowed) {
        assert_eq!(used(&observer, &user, &Key::from(number)).await, allowed);
        let tenant_key = Key::from(number + 1_000);
        assert_eq!(used(&observer, &tenant, &tenant_key).await, allowed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_groups_never_allow_too_much_and_lose_no_unit() {
    let cluster = Cluster::start();
    let limiter = RateLimiter::new(
        store(&cluster)
            .max_waiting(200_000)
            .connect()
            .await
            .unwrap(),
    );
    let (user, tenant) = (window("user", 40), window("tenant", 500));
    let acme = Key::new("acme");
    let mut tasks = JoinSet::new();
    for number in 0..6_000_u64 {
        let (limiter, user_key) = (limiter.clone(), number % 25);
        let group = [
            Check::new(&user, Key::from(user_key)),
            Check::new(&tenant, &acme),
        ];
        tasks.spawn(async move { (user_key, limiter.check_all(group).await.unwrap().allowed()) });
    }
    let (mut of_users, mut all) = (HashMap::new(), 0);
    while let Some(answer) = tasks.join_next().await {
        let (user, allowed) = answer.unwrap();
        *of_users.entry(user).or_insert(0_u64) += u64::from(allowed);
        all += u64::from(allowed);
    }
    assert!(
        all <= 500 && of_users.values().all(|allowed| *allowed <= 40),
        "{all} {of_users:?}"
    );
    assert_eq!(
        used(&limiter, &tenant, &acme).await,
        all,
        "all denied charges are given back"
    );
    for (key, allowed) in &of_users {
        assert_eq!(used(&limiter, &user, &Key::from(*key)).await, *allowed);
    }
    // While units were on their way back, others may have been denied. The rest is allowed now.
    for (key, allowed) in of_users {
        for _ in allowed..40.min(allowed + 500 - all) {
            let group = [
                Check::new(&user, Key::from(key)),
                Check::new(&tenant, &acme),
            ];
            let decision = limiter.check_all(group).await.unwrap();
            all += u64::from(decision.allowed());
        }
    }
    assert_eq!(all, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_leave_and_an_overload_keep_no_units_of_denied_groups() {
    let cluster = Cluster::start();
    let store = store(&cluster)
        .max_waiting(64)
        .deny_for(Duration::ZERO)
        .connect()
        .await
        .unwrap();
    let limiter = RateLimiter::new(store);
    let (user, tenant) = (window("user", 20), window("tenant", 100_000));
    let acme = Key::new("acme");
    // No two are identical: a denial would stand for the other.
    let group = |number: u64| {
        let cost = 1 + u32::try_from(number / 300).unwrap();
        let of_user = Check::new(&user, Key::from(number % 300)).with_cost(cost);
        [of_user, Check::new(&tenant, &acme)]
    };
    for user_key in 0..300 {
        drop(
            limiter
                .check_n(&user, &Key::from(user_key), 20)
                .await
                .unwrap(),
        );
    }
    for number in 0..300 {
        // It is polled once, and dropped.
        drop(
            timeout(
                Duration::from_micros(number),
                limiter.check_all(group(number)),
            )
            .await,
        );
    }
    let all_are_back = async || {
        timeout(PATIENCE, async {
            while used(&limiter, &tenant, &acme).await > 0 {
                yield_now().await;
            }
        })
        .await
        .expect("all units are given back");
    };
    all_are_back().await;

    let mut tasks = JoinSet::new();
    for number in 0..4_000_u64 {
        let (limiter, group) = (limiter.clone(), group(number));
        tasks.spawn(async move { limiter.check_all(group).await });
    }
    let answers = tasks.join_all().await;
    assert!(
        answers
            .iter()
            .any(|answer| answer.as_ref().is_err_and(|it| it.is_overloaded()))
    );
    assert!(answers.iter().flatten().all(|decision| !decision.allowed()));
    all_are_back().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_of_a_denied_group_deny_others_until_they_are_back_and_are_lost_in_a_crash() {
    let cluster = Arc::new(Cluster::start());
    let patient = store(&cluster)
        .deny_for(Duration::ZERO)
        .without_circuit_breaker();
    let limiter = RateLimiter::new(patient.connect().await.unwrap());
    let keys = places(Arc::clone(&cluster), limiter.clone()).await;
    let (user, tenant) = (window("user", 1), window("tenant", 1));
    let (alice, acme) = (keys[&0][0].clone(), keys[&1][0].clone());
    drop(limiter.check(&user, &alice).await.unwrap());
    let left = async || limiter.peek(&tenant, &acme, 0).await.unwrap().remaining();
    let until_left = async |expected: u64| {
        timeout(PATIENCE, async {
            while left().await != expected {
                yield_now().await;
            }
        })
        .await
        .expect("the units come or go");
    };
    for is_crash in [false, true] {
        // The user's part of the group hangs, and the tenant's is charged.
        cluster.nodes[0].pause(true);
        let (url, group) = (
            cluster.url(),
            [Check::new(&user, &alice), Check::new(&tenant, &acme)],
        );
        let other = tokio::runtime::Builder::new_multi_thread();
        let other = { other }.worker_threads(1).enable_all().build().unwrap();
        let checking = other.spawn(async move {
            let store = RedisStore::builder("tollgate")
                .url(url)
                .deadline(Duration::from_secs(20));
            RateLimiter::new(store.build().unwrap())
                .check_all(group)
                .await
        });
        until_left(0).await;
        assert!(
            !limiter.check(&tenant, &acme).await.unwrap().allowed(),
            "by a unit on its way"
        );
        if is_crash {
            other.shutdown_background();
            cluster.nodes[0].pause(false);
            assert_eq!(left().await, 0, "it is lost until the window ends");
        } else {
            cluster.nodes[0].pause(false);
            assert!(!checking.await.unwrap().unwrap().allowed());
            assert_eq!(left().await, 1, "it is back");
            spawn_blocking(move || drop(other)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_knows_of_no_slots_and_one_that_hides_its_name_do_no_harm() {
    let cluster = Cluster::start();
    for node in &cluster.nodes {
        let hide = ["SET", "cluster-preferred-endpoint-type", "unknown-endpoint"];
        // Redis from 7 on has this setting.
        drop(
            redis::cmd("CONFIG")
                .arg(&hide)
                .query::<()>(&mut node.connection()),
        );
    }
    let alone = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let url = cluster
        .url()
        .replace("//", &format!("//127.0.0.1:{},", alone.port()));
    let limit = window("api", 1_000);
    for number in 0..10_u64 {
        let store = RedisStore::builder("tollgate")
            .url(&url)
            .connect()
            .await
            .unwrap();
        let limiter = RateLimiter::new(store);
        for key in 0..40_u64 {
            drop(limiter.check(&limit, &Key::from(key)).await.unwrap());
        }
        assert_eq!(used(&limiter, &limit, &Key::from(number)).await, number + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_cluster_is_asked_for_its_slots_at_a_bounded_rate() {
    let server = FakeRedis::start(|command, arguments| match command {
        "CLUSTER" => None,
        _ => greeting(command, arguments),
    });
    let url = format!("redis-cluster://{}", server.address());
    let limiter = RateLimiter::new(RedisStore::builder("tollgate").url(url).build().unwrap());
    let limit = window("api", 1_000);
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (limiter, limit) = (limiter.clone(), limit.clone());
        tasks.spawn(async move {
            for key in 0..500_u64 {
                limiter.check(&limit, &Key::from(key)).await.unwrap_err();
            }
        });
    }
    tasks.join_all().await;
    assert!(
        server.connections() < 100,
        "{} for 8,000 checks",
        server.connections()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_denial_of_a_group_is_answered_without_charging_the_others() {
    let cluster = Cluster::start();
    let limiter = limiter(&cluster).await;
    let (user, tenant) = (window("user", 1), window("tenant", 1_000));
    let group = || [Check::new(&user, "alice"), Check::new(&tenant, "acme")];
    assert!(limiter.check_all(group()).await.unwrap().allowed());
    let calls = || {
        cluster.nodes[..3]
            .iter()
            .map(|node| node.calls("evalsha"))
            .sum::<u64>()
    };
    let mut remembered = 0;
    // The first denials are the cluster's. Each is remembered when its charges are back.
    while remembered < 1_000 {
        let denied = limiter.check_all(group()).await.unwrap();
        assert!(!denied.allowed() && denied.limit().name() == "user");
        match denied.source() {
            Source::DenyCache if remembered == 0 => {
                cluster.nodes[..3].iter().for_each(RedisServer::reset_calls);
                remembered = 1;
            }
            Source::DenyCache => remembered += 1,
            _ => {
                remembered = 0;
                yield_now().await;
            }
        }
    }
    assert_eq!(calls(), 0);
    assert_eq!(used(&limiter, &tenant, &Key::new("acme")).await, 1);
}

/// Checks of several keys from several tasks, without a pause, until it is stopped.
struct Load {
    stop: Arc<AtomicBool>,
    allowed: Vec<Arc<AtomicU64>>,
    failed: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(limiter: &RateLimiter, limit: &Limit, keys: &[Key]) -> Self {
        let (stop, failed) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let allowed: Vec<_> = keys.iter().map(|_| Arc::new(AtomicU64::new(0))).collect();
        let tasks = keys.iter().zip(&allowed).map(|(key, allowed)| {
            let (limiter, limit, key) = (limiter.clone(), limit.clone(), key.clone());
            let (stop, failed, allowed) =
                (Arc::clone(&stop), Arc::clone(&failed), Arc::clone(allowed));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    match limiter.check(&limit, &key).await {
                        Ok(decision) => {
                            allowed.fetch_add(u64::from(decision.allowed()), Ordering::SeqCst);
                        }
                        Err(error) => {
                            assert!(error.is_unavailable(), "{error}");
                            failed.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    sleep(Duration::from_millis(1)).await;
                }
            })
        });
        let tasks = tasks.collect();
        Self {
            stop,
            allowed,
            failed,
            tasks,
        }
    }

    /// Stops it. Returns the allowed checks of each key, and the number of failures.
    async fn stop(self) -> (Vec<u64>, u64) {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        let allowed = self
            .allowed
            .iter()
            .map(|it| it.load(Ordering::SeqCst))
            .collect();
        (allowed, self.failed.load(Ordering::SeqCst))
    }
}

/// Moves slots while their keys are checked, so that the nodes redirect calls. All that is allowed
/// is charged, once.
async fn move_slots_under_load(limit: Limit, redirections: &[&str]) {
    let cluster = Arc::new(Cluster::start());
    let limiter = limiter(&cluster).await;
    let keys: Vec<_> = (0..40_u64).map(Key::from).collect();
    let load = Load::start(&limiter, &limit, &keys);
    for key in &keys {
        drop(limiter.check(&limit, key).await.unwrap());
    }
    let moving = Arc::clone(&cluster);
    let values = format!("*:{}:api", limit.kind());
    spawn_blocking(move || {
        for from in [0, 1, 2] {
            let mut connection = moving.nodes[from].connection();
            let stored: Vec<String> = redis::cmd("KEYS")
                .arg(&values)
                .query(&mut connection)
                .unwrap();
            let slots: std::collections::BTreeSet<_> =
                stored.iter().map(|key| moving.slot(key)).collect();
            for slot in slots.into_iter().take(3) {
                if moving.master_of(slot) == from {
                    // The node that the slot moves to has to load the script, too.
                    let mut connection = moving.nodes[(from + 1) % 3].connection();
                    let () = redis::cmd("SCRIPT")
                        .arg("FLUSH")
                        .query(&mut connection)
                        .unwrap();
                    moving.move_slot(slot, from, (from + 1) % 3);
                }
            }
        }
    })
    .await
    .unwrap();
    let (allowed, failed) = load.stop().await;
    assert_eq!(failed, 0);
    limiter.flush().await;
    for redirection in redirections {
        assert!(
            cluster
                .nodes
                .iter()
                .any(|node| node.errors(redirection) > 0),
            "{redirection}"
        );
    }
    for (key, allowed) in keys.iter().zip(allowed) {
        assert_eq!(used(&limiter, &limit, key).await, allowed + 1, "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_under_load_lose_and_repeat_no_charge() {
    let limit = window("api", 1_000_000);
    move_slots_under_load(limit, &["MOVED", "ASK", "TRYAGAIN"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_lose_and_repeat_no_payment() {
    // 400 units may be owed, so they are paid several times a second.
    let limit = Limit::sliding_window("api", Quota::per_day(20_000))
        .and_then(|limit| limit.with_overshoot_percent(2))
        .unwrap();
    move_slots_under_load(limit, &["MOVED"]).await;
}

#[tokio::test]
async fn group_that_waits_for_its_moving_slot_holds_up_no_single_check() {
    let cluster = Arc::new(Cluster::start());
    let store = store(&cluster).connect().await.unwrap();
    let limiter = RateLimiter::new(store.clone());
    let (one, two) = (window("one", 1_000), window("two", 1_000));
    let slot_of = |user: u64| cluster.slot(&store.redis_key(&one, &Key::from(user)));
    let slot = slot_of(0);
    let neighbours: Vec<_> = (1..2_000)
        .filter(|user| slot_of(*user) == slot)
        .take(40)
        .collect();
    let group = || {
        [
            Check::new(&one, Key::from(0)),
            Check::new(&two, Key::from(0)),
        ]
    };
    assert!(limiter.check_all(group()).await.unwrap().allowed());
    let from = cluster.master_of(slot);
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to);
    assert!(
        cluster.move_key(slot, from, to),
        "one of the two keys of the group"
    );

    let mut singles = JoinSet::new();
    let mut groups = JoinSet::new();
    for (number, user) in neighbours.into_iter().enumerate() {
        let (single, one) = (limiter.clone(), one.clone());
        singles.spawn(async move { single.check(&one, Key::from(user)).await });
        // Groups are in the batch that leaves next, in front of the single checks.
        if number % 8 == 0 {
            let (limiter, group) = (limiter.clone(), group());
            groups.spawn(async move { limiter.check_all(group).await });
        }
    }
    let decided = timeout(Duration::from_secs(10), singles.join_all())
        .await
        .unwrap();
    assert!(decided.into_iter().all(|it| it.unwrap().allowed()));
    assert!(groups.try_join_next().is_none(), "the groups wait");

    while cluster.move_key(slot, from, to) {}
    cluster.end_move(slot, from, to);
    let decided = timeout(PATIENCE, groups.join_all()).await.unwrap();
    assert!(decided.into_iter().all(|it| it.unwrap().allowed()));
    assert_eq!(used(&limiter, &one, &Key::from(0)).await, 6);
}

/// The tag of the first partition of each master, which a new connection is validated with.
const FIRST_TAGS: [&str; 3] = ["18", "2", "49"];

#[tokio::test(flavor = "multi_thread")]
async fn new_connections_are_made_while_slots_move_and_after_an_interrupted_move() {
    let cluster = Arc::new(Cluster::start());
    let running = limiter(&cluster).await;
    let keys = places(Arc::clone(&cluster), running.clone()).await;
    let slots = FIRST_TAGS.map(|tag| cluster.slot(tag));
    for (from, slot) in slots.into_iter().enumerate() {
        assert_eq!(cluster.master_of(slot), from);
        cluster.begin_move(slot, from, (from + 1) % 3);
    }
    let limit = window("api", 1_000);
    let connected = limiter(&cluster).await;
    let lazy = RateLimiter::new(store(&cluster).build().unwrap());
    for node in &cluster.nodes[..3] {
        let () = redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "normal"])
            .query(&mut node.connection())
            .unwrap();
    }
    for limiter in [&connected, &lazy, &running] {
        for key in keys.values().flatten() {
            let reconnected = async { while limiter.peek(&limit, key, 0).await.is_err() {} };
            timeout(PATIENCE, reconnected).await.unwrap();
            drop(limiter.check(&limit, key).await.unwrap());
        }
    }
    for key in keys.values().flatten() {
        assert_eq!(used(&connected, &limit, key).await, 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_that_no_node_serves_concerns_only_its_keys() {
    let cluster = Arc::new(Cluster::start());
    let running = limiter(&cluster).await;
    let slot = cluster.slot(FIRST_TAGS[0]);
    cluster.abandon_slot(slot);
    let limit = window("api", 1_000);
    let stores = [
        limiter(&cluster).await,
        RateLimiter::new(store(&cluster).build().unwrap()),
    ];
    for limiter in stores.iter().chain([&running]) {
        let mut failed = 0;
        for user in 0..160_u64 {
            match limiter.check(&limit, &Key::from(user)).await {
                Ok(decision) => assert!(decision.allowed()),
                Err(error) => {
                    assert!(
                        error.is_unavailable() && !error.may_have_charged(),
                        "{error}"
                    );
                    failed += 1;
                }
            }
        }
        // One of sixteen partitions.
        assert!((1..30).contains(&failed), "{failed}");
    }
    cluster
        .ask::<()>(0, "ADDSLOTS", &[slot.to_string()])
        .unwrap();
    for user in 0..160_u64 {
        let key = Key::from(user);
        let served = async {
            while running.check(&limit, &key).await.is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, served).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn remembered_denials_hold_while_slots_move_and_masters_hang_and_end_with_a_reset() {
    let cluster = Arc::new(Cluster::start());
    let store = RedisStore::builder("tollgate")
        .url(cluster.url())
        .connect()
        .await
        .unwrap();
    let limiter = RateLimiter::new(store);
    let keys = places(Arc::clone(&cluster), limiter.clone()).await;
    let limit = window("api", 1)
        .with_on_store_failure(OnStoreFailure::FailOpen)
        .unwrap();
    let (moving, others) = (&keys[&0], &keys[&1]);
    for key in moving.iter().chain(others) {
        assert!(limiter.check(&limit, key).await.unwrap().allowed());
        assert!(!limiter.check(&limit, key).await.unwrap().allowed());
    }
    // Its slot moves: a denial is the answer before, during and after.
    let key = &moving[0];
    let partition: Vec<String> = redis::cmd("KEYS")
        .arg(format!("*{{{key}}}:w:api"))
        .query(&mut cluster.nodes[0].connection())
        .unwrap();
    let slot = cluster.slot(&partition[0]);
    cluster.begin_move(slot, 0, 1);
    assert!(!limiter.check(&limit, key).await.unwrap().allowed());
    while cluster.move_key(slot, 0, 1) {
        assert!(!limiter.check(&limit, key).await.unwrap().allowed());
    }
    cluster.end_move(slot, 0, 1);
    assert!(!limiter.check(&limit, key).await.unwrap().allowed());
    limiter.reset(&limit, key).await.unwrap();
    assert!(limiter.check(&limit, key).await.unwrap().allowed());
    assert!(!limiter.check(&limit, key).await.unwrap().allowed());
    // The reset also voids the denials of budgets that share its place in the table of changes, one
    // in 4096. So each is asked for again.
    for key in moving.iter().chain(others) {
        assert!(!limiter.check(&limit, key).await.unwrap().allowed());
    }
    // Every denial stands while the masters hang, also after the second for which it is the answer
    // without asking.
    sleep(Duration::from_millis(1_100)).await;
    cluster.nodes.iter().for_each(|node| node.pause(true));
    for key in moving.iter().chain(others) {
        assert!(!limiter.check(&limit, key).await.unwrap().allowed());
    }
    let unknown = limiter.check(&limit, &Key::new("unknown")).await.unwrap();
    cluster.nodes.iter().for_each(|node| node.pause(false));
    assert_eq!(
        (unknown.allowed(), unknown.source()),
        (true, Source::FailOpen)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_master_concerns_only_its_keys_until_its_replica_takes_over() {
    let mut cluster = Cluster::that_fails_over();
    // A deadline that a busy machine keeps, and a hang does not.
    let store = store(&cluster)
        .deadline(Duration::from_millis(500))
        .connect()
        .await
        .unwrap();
    let limiter = RateLimiter::new(store);
    let limit = window("api", 1_000_000);
    let shared = Arc::new(cluster);
    let mut keys = places(Arc::clone(&shared), limiter.clone()).await;
    cluster = Arc::try_unwrap(shared).unwrap_or_else(|_| panic!("it is not shared any more"));
    let (of_first, mut others) = (keys.remove(&0).unwrap(), keys.remove(&1).unwrap());
    others.extend(keys.remove(&2).unwrap());
    let load = Load::start(&limiter, &limit, &others);
    drop(limiter.check(&limit, &of_first[0]).await.unwrap());
    cluster.nodes[0].kill();
    let start = tokio::time::Instant::now();
    timeout(PATIENCE, async {
        while limiter.check(&limit, &of_first[0]).await.is_err() {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the replica takes over");
    println!(
        "a master was killed: decisions again after {:?}",
        start.elapsed()
    );
    let (allowed, failed) = load.stop().await;
    assert_eq!(failed, 0, "the others are not concerned");
    for (key, allowed) in others.iter().zip(allowed) {
        assert_eq!(used(&limiter, &limit, key).await, allowed);
    }
}

#[tokio::test]
async fn url_of_the_wrong_kind_is_an_error_that_says_so() {
    let server = RedisServer::start();
    let url = server.url().replace("redis://", "redis-cluster://");
    let error = RedisStore::connect(url.trim_end_matches('/'), "tollgate")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("not in cluster mode; write redis://"),
        "{error}"
    );
    for (url, why) in [
        ("redis-cluster://", "names no node"),
        ("redis-cluster://127.0.0.1:1/2", "names a database"),
        ("redis-cluster://127.0.0.1:x", "did not parse"),
    ] {
        let error = RedisStore::builder("tollgate")
            .url(url)
            .build()
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{url}: {error}");
    }
    for partitions in [0, 3, 2_048] {
        let error = RedisStore::builder("tollgate")
            .partitions(partitions)
            .build()
            .unwrap_err()
            .to_string();
        assert!(error.contains("use a power of two, 1 to 1024"), "{error}");
    }
    let error = RedisStore::connect("redis-cluster://127.0.0.1:1", "tollgate")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("no node answered CLUSTER SLOTS"), "{error}");
}

#[cfg(feature = "config")]
#[tokio::test]
async fn limits_in_a_key_are_announced_on_every_node_and_follow_their_slot() {
    use tollgate::config::{Config, ConfigSource, Format, RedisSource};

    let text = |units: u32| {
        format!(
            "limits = [{{ name = \"api\", algorithm = \"gcra\", \
             quota = \"{units}/s\", key = \"global\" }}]"
        )
    };
    let config = |units| Config::parse("expected", &text(units), Format::Toml).unwrap();
    let cluster = Cluster::start();
    let new_source = async || {
        let store = store(&cluster).connect().await.unwrap();
        RedisSource::new(&store, "limits", Format::Toml).unwrap()
    };
    let (operator, mut replica) = (new_source().await, new_source().await);
    operator.publish(&text(1)).await.unwrap();
    assert_eq!(replica.read().await.unwrap(), config(1));
    let next = async |replica: &mut RedisSource| {
        let next = timeout(Duration::from_secs(60), replica.next()).await;
        next.unwrap().unwrap().unwrap()
    };
    for units in 2..5 {
        operator.publish(&text(units)).await.unwrap();
        assert_eq!(next(&mut replica).await, config(units));
    }
    let slot = cluster.slot(replica.key());
    let from = cluster.master_of(slot);
    let to = (from + 1) % 3;
    let subscribers = |node: usize| {
        let mut numsub = redis::cmd("PUBSUB");
        numsub.arg("NUMSUB").arg(operator.key());
        let (_, subscribers) = numsub
            .query::<(String, u64)>(&mut cluster.nodes[node].connection())
            .unwrap();
        subscribers
    };
    assert_eq!((subscribers(from), subscribers(to)), (1, 0));
    // While the slot moves, the key is on one node, and then on the other.
    cluster.begin_move(slot, from, to);
    operator.publish(&text(5)).await.unwrap();
    assert_eq!(next(&mut replica).await, config(5));
    assert!(cluster.move_key(slot, from, to));
    operator.publish(&text(6)).await.unwrap();
    assert_eq!(next(&mut replica).await, config(6));
    assert_eq!(new_source().await.read().await.unwrap(), config(6));
    cluster.end_move(slot, from, to);
    for units in 7..9 {
        operator.publish(&text(units)).await.unwrap();
        assert_eq!(next(&mut replica).await, config(units));
    }
    // The old node may leave the cluster. The subscription moves before.
    let moved = async {
        while subscribers(to) == 0 {
            drop(timeout(Duration::from_millis(100), replica.next()).await);
        }
    };
    timeout(PATIENCE, moved).await.unwrap();
    assert_eq!(subscribers(from), 0);
}

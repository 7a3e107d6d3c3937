//! The commands on a cluster: every master, and the partitions of the services.

mod support;

use tollgate::{Key, RateLimiter, RedisStore};

use self::support::RedisServer;
use self::support::budgets::{charge, limiter, limits, run, shown};
use self::support::cluster::Cluster;
use self::support::tollgate;

#[tokio::test(flavor = "multi_thread")]
async fn other_partitions_than_those_of_the_services_are_an_error() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let store = RedisStore::builder("tollgate")
        .url(&url)
        .partitions(4)
        .connect()
        .await
        .unwrap();
    let default = RedisStore::builder("tollgate")
        .url(&url)
        .connect()
        .await
        .unwrap();
    let key_in =
        |store: &RedisStore, client: &str| store.redis_key(&limits()[0], &Key::new(client));
    // Some partitions of both have the same tag.
    let clients: Vec<_> = (b'a'..=b'z')
        .map(|letter| char::from(letter).to_string())
        .collect();
    let differs = |client: &&String| key_in(&store, client) != key_in(&default, client);
    let clients: Vec<_> = clients.iter().filter(differs).take(3).collect();
    assert_eq!(clients.len(), 3);
    let limiter = RateLimiter::new(store.clone());
    for client in &clients {
        charge(&limiter, client).await;
    }
    for client in clients {
        let reset = ["reset", client, "--yes"];
        let peek = [
            "peek",
            client,
            "--name",
            "bucket",
            "--limit",
            "100/h burst 50",
            "--json",
        ];
        let block = [
            "block",
            client,
            "--name",
            "bucket",
            "--algorithm",
            "gcra",
            "--for",
            "1h",
            "--yes",
        ];
        for command in [&reset[..], &block] {
            let wrong = run(&url, command);
            assert!(
                wrong.code == 2 && wrong.err.contains("give --partitions"),
                "{wrong:?}"
            );
        }
        let right = ["--partitions", "4"];
        assert_eq!(
            run(&url, &[&peek[..], &right].concat()).json()["remaining"],
            43
        );
        assert_eq!(run(&url, &[&block[..], &right].concat()).code, 0);
        assert_eq!(run(&url, &[&reset[..], &right].concat()).code, 0);
        assert_eq!(shown(&url, client), []);
        charge(&limiter, client).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_goes_on_is_reset_all_the_same() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let limiter = limiter(&url).await;
    charge(&limiter, "alice").await;
    let busy = tokio::spawn(async move {
        loop {
            drop(limiter.check(&limits()[0], &Key::new("alice")).await);
            // A denial from the cache is ready at once.
            tokio::task::yield_now().await;
        }
    });
    let reset = run(&url, &["reset", "alice", "--yes"]);
    busy.abort();
    assert_eq!((reset.code, reset.out.lines().count()), (0, 4), "{reset:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_on_a_cluster_are_found_on_every_master() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let limiter = limiter(&url).await;
    for number in 0..12 {
        charge(&limiter, &format!("client-{number}")).await;
    }
    assert_eq!(run(&url, &["keys", "--json"]).json_lines().len(), 48);
    for number in 0..12 {
        assert_eq!(shown(&url, &format!("client-{number}")).len(), 4);
    }
    let reset = run(&url, &["reset", "client-7", "--yes"]);
    assert_eq!(reset.out.lines().count(), 4, "{reset:?}");
    assert_eq!(run(&url, &["keys", "--json"]).json_lines().len(), 44);
    let doctor = tollgate(&["doctor", &url]);
    assert!(
        doctor
            .out
            .contains("3 shards, 6 nodes, 16384 of 16384 slots served"),
        "{doctor:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_of_a_cluster_is_an_error_and_not_a_part_of_the_keys() {
    let cluster = Cluster::start();
    let limiter = limiter(&cluster.url()).await;
    for number in 0..12 {
        charge(&limiter, &format!("client-{number}")).await;
    }
    let first = cluster.url().replace("redis-cluster://", "redis://");
    let node = first.split(',').next().unwrap();
    for command in [&["keys", "--json"][..], &["show", "client-7"]] {
        let run = run(node, command);
        assert!(run.code == 2 && run.out.is_empty(), "{run:?}");
        let help = "is a node of a cluster, and has a part of the keys; write redis-cluster://";
        assert!(run.err.contains(help), "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_are_copied_from_one_redis_to_the_partitions_of_a_cluster() {
    let (server, cluster) = (RedisServer::start(), Cluster::start());
    let (old, new) = (limiter(&server.url()).await, limiter(&cluster.url()).await);
    let clients: Vec<_> = (0..40).map(|number| format!("client-{number}")).collect();
    for client in &clients {
        charge(&old, client).await;
    }
    let copied = run(
        &server.url(),
        &["copy", "--to-url", &cluster.url(), "--yes"],
    );
    assert!(
        copied.code == 0 && copied.out.contains("copied 160, kept 0"),
        "{copied:?}"
    );
    for client in &clients {
        for limit in limits() {
            let there = new
                .peek(&limit, &Key::new(client), 1)
                .await
                .unwrap()
                .remaining();
            let here = old
                .peek(&limit, &Key::new(client), 1)
                .await
                .unwrap()
                .remaining();
            assert!(there.abs_diff(here) <= 1, "{limit}: {there} and {here}");
            assert!(there < limit.quota().capacity(), "{limit}");
        }
    }
    let back = run(
        &cluster.url(),
        &[
            "copy",
            "--to-url",
            &server.url(),
            "--to-prefix",
            "b",
            "--yes",
        ],
    );
    assert!(
        back.code == 0 && back.out.contains("copied 160, kept 0"),
        "{back:?}"
    );
}

//! A real Redis Cluster of three masters and three replicas.

use std::env::temp_dir;
use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult};

use super::{RedisServer, free_port};

const MASTERS: usize = 3;

const SLOTS: usize = 16_384;

/// A master is down after so many milliseconds. The nodes also find each other the sooner for it.
const SHORT_NODE_TIMEOUT: &str = "1000";

/// The same, once they have found each other. A machine under load may not let a master run for a
/// second, and the replica that takes over has lost budgets.
const NODE_TIMEOUT: &str = "15000";

/// How often a cluster is started at most.
const ATTEMPTS: usize = 5;

pub struct Cluster {
    /// Three masters, and then the replica of each.
    pub nodes: Vec<RedisServer>,
    directories: Vec<PathBuf>,
}

impl Cluster {
    pub fn start() -> Self {
        let cluster = Self::that_fails_over();
        for node in &cluster.nodes {
            let () = redis::cmd("CONFIG")
                .arg(&["SET", "cluster-node-timeout", NODE_TIMEOUT])
                .query(&mut node.connection())
                .unwrap();
        }
        cluster
    }

    /// A cluster whose replicas soon take over from a lost master.
    pub fn that_fails_over() -> Self {
        (0..ATTEMPTS)
            .find_map(|_| Self::assemble())
            .unwrap_or_else(|| panic!("other clusters met the nodes {ATTEMPTS} times"))
    }

    /// `None` if a node of another cluster met a new one, which has a port of an old one.
    fn assemble() -> Option<Self> {
        let (nodes, directories): (Vec<_>, Vec<_>) = (0..MASTERS * 2).map(|_| start_node()).unzip();
        let cluster = Self { nodes, directories };
        for master in 0..MASTERS {
            let slots: Vec<_> = cluster
                .slots_of(master)
                .map(|slot| slot.to_string())
                .collect();
            match cluster.ask::<()>(master, "ADDSLOTS", &slots) {
                Err(error) if error.to_string().contains("already busy") => return None,
                added => added.unwrap(),
            }
        }
        for node in 1..MASTERS * 2 {
            let address = ["127.0.0.1".to_owned(), cluster.nodes[0].port().to_string()];
            cluster.ask::<()>(node, "MEET", &address).unwrap();
        }
        for master in 0..MASTERS {
            let id = [cluster.id(master)];
            cluster.wait_until("the nodes know each other", || {
                cluster
                    .ask::<()>(master + MASTERS, "REPLICATE", &id)
                    .is_ok()
            });
        }
        cluster.wait_until("the cluster is complete", || {
            (0..MASTERS * 2).all(|node| {
                let info: String = cluster.ask(node, "INFO", &[]).unwrap_or_default();
                let all: String = cluster.ask(node, "NODES", &[]).unwrap_or_default();
                let replicas = all.lines().filter(|line| line.contains("slave"));
                let connected = all.lines().filter(|line| line.contains(" connected"));
                let mut connection = cluster.nodes[node].connection();
                let replication: String = redis::cmd("INFO")
                    .arg("replication")
                    .query(&mut connection)
                    .unwrap();
                info.contains("cluster_state:ok")
                    && (node < MASTERS || replication.contains("master_link_status:up"))
                    && replicas.count() == MASTERS
                    && connected.count() == MASTERS * 2
            })
        });
        Some(cluster)
    }

    /// The URL, by the first two masters.
    pub fn url(&self) -> String {
        let [one, other] = [0, 1].map(|node| self.nodes[node].port());
        format!("redis-cluster://127.0.0.1:{one},127.0.0.1:{other}")
    }

    /// The slots that a master starts with.
    fn slots_of(&self, master: usize) -> RangeInclusive<usize> {
        let border = |master: usize| SLOTS * master / MASTERS;
        border(master)..=border(master + 1) - 1
    }

    /// The master that starts with a slot.
    pub fn master_of(&self, slot: u16) -> usize {
        (0..MASTERS)
            .find(|master| self.slots_of(*master).contains(&slot.into()))
            .unwrap()
    }

    /// The slot of a key, as the cluster says.
    pub fn slot(&self, key: &str) -> u16 {
        self.ask(0, "KEYSLOT", &[key.to_owned()]).unwrap()
    }

    pub fn id(&self, node: usize) -> String {
        self.ask(node, "MYID", &[]).unwrap()
    }

    pub fn ask<T: FromRedisValue>(
        &self,
        node: usize,
        command: &str,
        arguments: &[String],
    ) -> RedisResult<T> {
        let mut connection = self.nodes[node].client().get_connection()?;
        redis::cmd("CLUSTER")
            .arg(command)
            .arg(arguments)
            .query(&mut connection)
    }

    /// Moves a slot with its keys from one master to another, key by key.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        // The next key moves a moment later, as with many keys.
        while self.move_key(slot, from, to) {
            sleep(Duration::from_millis(5));
        }
        self.end_move(slot, from, to);
    }

    /// From now on, both masters redirect some calls.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        self.set_slot(to, slot, "IMPORTING", &self.id(from));
        self.set_slot(from, slot, "MIGRATING", &self.id(to));
    }

    /// Moves one key. Returns whether there was one.
    pub fn move_key(&self, slot: u16, from: usize, to: usize) -> bool {
        let arguments = [slot.to_string(), "1".to_owned()];
        let keys: Vec<String> = self.ask(from, "GETKEYSINSLOT", &arguments).unwrap();
        let Some(key) = keys.first() else {
            return false;
        };
        let () = redis::cmd("MIGRATE")
            .arg(&[
                "127.0.0.1",
                &self.nodes[to].port().to_string(),
                key,
                "0",
                "5000",
            ])
            .query(&mut self.nodes[from].connection())
            .unwrap();
        true
    }

    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        for node in [to, from] {
            self.set_slot(node, slot, "NODE", &self.id(to));
        }
    }

    fn set_slot(&self, node: usize, slot: u16, state: &str, id: &str) {
        let arguments = [slot.to_string(), state.to_owned(), id.to_owned()];
        self.ask::<()>(node, "SETSLOT", &arguments).unwrap();
    }

    /// Takes a slot away from its master: no node serves it.
    pub fn abandon_slot(&self, slot: u16) {
        for node in 0..MASTERS * 2 {
            drop(self.ask::<()>(node, "DELSLOTS", &[slot.to_string()]));
        }
    }

    /// Gives each slot without a master to this one. Returns when all nodes know it.
    pub fn adopt_slots(&self, slots: Vec<(u16, usize)>) {
        for (slot, owner) in slots {
            self.ask::<()>(owner, "ADDSLOTS", &[slot.to_string()])
                .unwrap();
        }
        self.wait_until("each slot has a master", || {
            (0..MASTERS * 2).all(|node| {
                let info: String = self.ask(node, "INFO", &[]).unwrap_or_default();
                info.contains("cluster_slots_assigned:16384")
            })
        });
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "not within a minute: {what}"
            );
            // Their gossip has no event to wait for.
            sleep(Duration::from_millis(50));
        }
    }
}

fn start_node() -> (RedisServer, PathBuf) {
    loop {
        let port = free_port();
        // The cluster's own port is 10,000 above.
        if port > 55_000 {
            continue;
        }
        let directory = temp_dir().join(format!("tollgate-cluster-{port}"));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.display().to_string();
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            SHORT_NODE_TIMEOUT,
        ];
        let more = [
            "--cluster-require-full-coverage",
            "no",
            "--repl-diskless-sync-delay",
            "0",
            "--dir",
            &*path,
        ];
        if let Some(server) = RedisServer::start_on_with(port, &[&arguments[..], &more].concat()) {
            return (server, directory);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.clear();
        for directory in &self.directories {
            drop(fs::remove_dir_all(directory));
        }
    }
}

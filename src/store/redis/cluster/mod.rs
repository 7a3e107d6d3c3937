//! A Redis Cluster: its nodes, and which of them has the slot of a partition.
//!
//! The table of slots is read when it is first needed, and again when a node says that a slot has moved, or fails.
//! One task reads it at a time, and at most ten times a second. It asks all nodes that it knows, and those of the
//! URL: the first answer counts. If that is of a node that does not know yet, the next redirection tells.

mod partition;
mod slots;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle as Runtime;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub(super) use self::partition::{MAX_PARTITIONS, Partitions};
use self::slots::Range;
use super::call;
use super::connect::Server;
use super::node::{Node, Nodes};
use crate::telemetry::RedisEvents;

/// The time that a node has to tell the slots.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause after the slots were read.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) type Address = (String, u16);

pub(super) struct Cluster {
    pub(super) partitions: Partitions,
    nodes: Nodes,
    /// Those of the URL.
    seeds: Vec<Server>,
    events: RedisEvents,
    table: RwLock<Table>,
    /// Held by the task that reads the slots.
    reading: tokio::sync::Mutex<()>,
    /// Whether a task reads the slots, or pauses after that.
    is_refreshing: AtomicBool,
}

#[derive(Default)]
struct Table {
    nodes: HashMap<Address, Arc<Node>>,
    /// Of each partition.
    owners: Vec<Option<Arc<Node>>>,
}

impl Cluster {
    pub(super) fn new(
        partitions: Partitions,
        nodes: Nodes,
        seeds: Vec<Server>,
        name: &str,
    ) -> Arc<Self> {
        let events = RedisEvents::new(name.into());
        let (table, reading, is_refreshing) = Default::default();
        Arc::new(Self { partitions, nodes, seeds, events, table, reading, is_refreshing })
    }

    pub(super) const fn events(&self) -> &RedisEvents {
        &self.events
    }

    /// The node of a partition, as far as it is known.
    pub(super) fn node_of(&self, partition: usize) -> Option<Arc<Node>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.owners.get(partition)?.clone()
    }

    /// The node of a partition. If none is known, the slots are read.
    pub(super) async fn find(&self, partition: usize) -> Result<Arc<Node>, String> {
        if let Some(node) = self.node_of(partition) {
            return Ok(node);
        }
        let _one_by_one = self.reading.lock().await;
        if let Some(node) = self.node_of(partition) {
            return Ok(node);
        }
        self.read().await?;
        self.node_of(partition).ok_or_else(|| {
            let (name, slot) = (self.events.server(), self.partitions.slot(partition));
            format!("{name}: no node has the slot {slot}")
        })
    }

    /// The node at an address, to which another node has pointed.
    pub(super) fn node_at(&self, host: &str, port: u16) -> Option<Arc<Node>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        self.node_in(&mut table, (host.to_owned(), port))
    }

    fn node_in(&self, table: &mut Table, address: Address) -> Option<Arc<Node>> {
        if let Some(node) = table.nodes.get(&address) {
            return Some(Arc::clone(node));
        }
        let server = self.seeds.first()?.at(&address.0, address.1);
        let name = server.address();
        let node = Arc::new(self.nodes.node(Arc::new(server), &name));
        table.nodes.insert(address, Arc::clone(&node));
        Some(node)
    }

    /// Starts to read the slots again, if no task does and a runtime is there.
    pub(super) fn refresh(self: &Arc<Self>) {
        let Ok(runtime) = Runtime::try_current() else { return };
        if self.is_refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let refreshing = Refreshing(Arc::clone(self));
        runtime.spawn(async move {
            let cluster = &refreshing.0;
            let one_by_one = cluster.reading.lock().await;
            // Where no node answers, the checks have said so.
            drop(cluster.read().await);
            drop(one_by_one);
            sleep(PAUSE).await;
        });
    }

    /// Reads the slots.
    async fn read(&self) -> Result<(), String> {
        let mut asked = JoinSet::new();
        for (address, server) in self.known() {
            asked.spawn(async move {
                let answer = timeout(ANSWER_TIMEOUT, ask(&server)).await;
                let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
                let name = server.address();
                answer.map(|it| (address, it)).map_err(|error| format!("{name}: {error}"))
            });
        }
        let mut failures = Vec::new();
        while let Some(answer) = asked.join_next().await {
            match answer.unwrap_or_else(|error| Err(error.to_string())) {
                Ok((asked, ranges)) => {
                    self.apply(&asked, &ranges);
                    return Ok(());
                }
                Err(failure) => failures.push(failure),
            }
        }
        Err(format!("no node tells the slots of the cluster ({})", failures.join("; ")))
    }

    /// All nodes that may tell.
    fn known(&self) -> HashMap<Address, Server> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let nodes = table.nodes.keys().filter_map(|address| {
            let seed = self.seeds.first()?;
            Some((address.clone(), seed.at(&address.0, address.1)))
        });
        let seeds = self.seeds.iter().map(|seed| (seed.host_and_port(), seed.clone()));
        nodes.chain(seeds).collect()
    }

    fn apply(&self, asked: &Address, ranges: &[Range]) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let owners = (0..self.partitions.len()).map(|partition| {
            let slot = self.partitions.slot(partition);
            let range = ranges.iter().find(|range| range.contains(slot))?;
            let host = if range.host.is_empty() { &asked.0 } else { &range.host };
            self.node_in(&mut table, (host.clone(), range.port))
        });
        let owners: Vec<_> = owners.collect();
        // Nodes that have left are forgotten.
        table.nodes.retain(|_, node| owners.iter().flatten().any(|owner| Arc::ptr_eq(owner, node)));
        table.owners = owners;
    }
}

async fn ask(server: &Server) -> Result<Vec<Range>, String> {
    let mut connection = server.open("").await?;
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let reply = command.query_async::<Value>(&mut connection).await;
    let reply = reply.map_err(|error| match call::brief(&error) {
        text if text.contains("cluster support disabled") => {
            format!("{text}; it is no cluster: write redis:// in the Redis URL")
        }
        text => text,
    })?;
    slots::ranges(reply).ok_or_else(|| "a malformed reply to CLUSTER SLOTS".to_owned())
}

/// Held by the task that refreshes. It ends with its runtime: then another may start.
struct Refreshing(Arc<Cluster>);

impl Drop for Refreshing {
    fn drop(&mut self) {
        self.0.is_refreshing.store(false, Ordering::Release);
    }
}

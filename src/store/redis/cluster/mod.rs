//! A Redis Cluster, with its nodes, and which of them has the slot of a partition.
//!
//! A task reads the table of slots when it is first needed, and again when a slot has moved or a
//! node has failed. It reads at most ten times a second. If reading fails, the pause grows to a
//! second, and checks fail instead of waiting.
//!
//! The task asks all known nodes and the servers of the URL. The first answer that contains all
//! slots counts. It may be out of date. Then the next call is redirected, and the table is read
//! again.

mod partition;
mod slots;

use std::collections::HashMap;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle as Runtime;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

pub(super) use self::partition::{MAX_PARTITIONS, Partitions};
use self::slots::Range;
use super::connect::{Endpoint, HostAndPort, Server, ask_all};
use super::greeting::in_words;
use super::node::{Node, Nodes};
use crate::store::heartbeat::Heartbeat;
use crate::telemetry::RedisEvents;
use crate::units::{Mutex, RwLock, spawn_for};

/// The deadline of one `CLUSTER SLOTS`, including the time to connect.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A reading task without progress for this long is on a blocked runtime. Another task takes over.
const STANDS_STILL: Duration = Duration::from_secs(5);

/// The pause after the slots were read. It doubles with each failure.
const PAUSE: Duration = Duration::from_millis(100);

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// After a denied group, groups are peeked first for this long.
const LATELY: Duration = Duration::from_secs(1);

pub(super) struct Cluster {
    pub(super) partitions: Partitions,
    nodes: Nodes,
    /// The servers of the URL.
    seeds: Vec<Server>,
    events: RedisEvents,
    table: RwLock<SlotTable>,
    /// Wakes the checks that wait for the first table.
    was_read: Notify,
    /// Why the slots of some partitions are not known, since they were last read.
    failure: RwLock<Option<String>>,
    /// The last time that the task which reads the slots began to.
    refreshing: Mutex<Heartbeat>,
    /// When a group of several partitions was last denied.
    denied: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct SlotTable {
    nodes: HashMap<HostAndPort, Arc<Node>>,
    /// The node of each partition.
    owners: Vec<Option<Arc<Node>>>,
}

impl Cluster {
    pub(super) fn new(
        partitions: Partitions,
        nodes: Nodes,
        seeds: Vec<Server>,
        name: &str,
    ) -> Arc<Self> {
        let events = RedisEvents::new(name.into(), Arc::clone(&nodes.label));
        Arc::new(Self {
            partitions,
            nodes,
            seeds,
            events,
            table: RwLock::default(),
            was_read: Notify::default(),
            failure: RwLock::default(),
            refreshing: Default::default(),
            denied: Mutex::default(),
        })
    }

    pub(super) const fn events(&self) -> &RedisEvents {
        &self.events
    }

    /// The node of a partition, as far as it is known.
    pub(super) fn node_of(&self, partition: usize) -> Option<Arc<Node>> {
        let table = self.table.read();
        table.owners.get(partition)?.clone()
    }

    /// The node of a partition. If none is known, a task reads the slots. It goes on if this check
    /// is dropped. After a failure, the check fails at once.
    pub(super) async fn find(self: &Arc<Self>, partition: usize) -> Result<Arc<Node>, String> {
        let mut was_read = pin!(self.was_read.notified());
        was_read.as_mut().enable();
        if let Some(known) = self.known_node(partition) {
            return known;
        }
        self.refresh();
        was_read.await;
        self.known_node(partition)
            .unwrap_or_else(|| Err("the slots are not known".to_owned()))
    }

    /// The node of a partition, or why it is not known. `None` if the slots were not read.
    fn known_node(self: &Arc<Self>, partition: usize) -> Option<Result<Arc<Node>, String>> {
        if let Some(node) = self.node_of(partition) {
            return Some(Ok(node));
        }
        let failure = self.failure.read().clone()?;
        self.refresh();
        Some(Err(failure))
    }

    /// The node at an address, to which another node has pointed.
    pub(super) fn node_at(&self, host: &str, port: u16) -> Option<Arc<Node>> {
        let mut table = self.table.write();
        self.node_in(&mut table, (host.to_owned(), port))
    }

    fn node_in(&self, table: &mut SlotTable, address: HostAndPort) -> Option<Arc<Node>> {
        if let Some(node) = table.nodes.get(&address) {
            return Some(Arc::clone(node));
        }
        let server = self.seeds.first()?.at(&address.0, address.1);
        let name = server.address();
        let node = Arc::new(
            self.nodes
                .node(Endpoint::Server(server).into(), &name, &address.0),
        );
        table.nodes.insert(address, Arc::clone(&node));
        Some(node)
    }

    /// Notes that a group of several partitions was denied.
    pub(super) fn note_denied(&self) {
        *self.denied.lock() = Some(Instant::now());
    }

    /// Returns whether a group of several partitions was denied a moment ago.
    pub(super) fn has_denied_lately(&self) -> bool {
        self.denied.lock().is_some_and(|at| at.elapsed() < LATELY)
    }

    /// Starts to read the slots again, if no task does and a runtime is there.
    pub(super) fn refresh(self: &Arc<Self>) {
        let Ok(runtime) = Runtime::try_current() else {
            return;
        };
        let mut refreshing = self.refreshing.lock();
        if refreshing.is_alive(Instant::now(), STANDS_STILL) {
            return;
        }
        refreshing.beat(Instant::now());
        drop(refreshing);
        let cluster = Arc::downgrade(self);
        let reading = async move {
            let mut pause = PAUSE;
            while let Some(cluster) = cluster.upgrade() {
                cluster.refreshing.lock().beat(Instant::now());
                let is_complete = cluster.read().await;
                cluster.was_read.notify_waiters();
                drop(cluster);
                sleep(pause).await;
                if is_complete {
                    return;
                }
                pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
            }
        };
        // When it ends, another may start.
        spawn_for(
            self,
            &runtime,
            |cluster| cluster.refreshing.lock().end(),
            reading,
        );
    }

    /// Reads the slots. Returns whether the nodes of all partitions are known.
    async fn read(&self) -> bool {
        let mut asked = ask_all(
            self.peers()
                .into_iter()
                .filter_map(|(address, connection)| {
                    // All seeds have the settings of one URL.
                    let server = self.seeds.first()?.at(&address.0, address.1);
                    let prefix = Arc::clone(&self.nodes.terms.prefix);
                    let name = format!("{}:{}", address.0, address.1);
                    Some((name, async move {
                        let mut connection = match connection {
                            Some(connection) => connection,
                            None => server.open(&prefix).await?,
                        };
                        Ok((address, read_slots(&mut connection, &prefix).await?))
                    }))
                }),
            ANSWER_TIMEOUT,
        );
        let mut best: Option<(usize, HostAndPort, Vec<Range>)> = None;
        let mut failures = Vec::new();
        while let Some(answer) = asked.join_next().await {
            match answer.unwrap_or_else(|_| Err("a task panicked".to_owned())) {
                Ok((asked, ranges)) => {
                    let covered = self.covered(&ranges);
                    if best.as_ref().is_none_or(|(most, ..)| covered > *most) {
                        best = Some((covered, asked, ranges));
                    }
                    // A node that was reset, or has left the cluster, knows of no slots.
                    if covered == self.partitions.len() {
                        break;
                    }
                }
                Err(failure) => failures.push(failure),
            }
        }
        let failure = match best {
            Some((covered, asked, ranges)) => {
                self.apply(&asked, &ranges);
                let missing = self.partitions.len() - covered;
                (missing > 0).then(|| format!("no node has the slots of {missing} partitions"))
            }
            None => Some(format!(
                "no node answered CLUSTER SLOTS ({})",
                failures.join("; ")
            )),
        };
        let failure = failure.map(|failure| format!("{}: {failure}", self.events.server()));
        let is_complete = failure.is_none();
        *self.failure.write() = failure;
        is_complete
    }

    /// Every server that may know the slots, each once, with the connection of its calls, if it has
    /// one.
    fn peers(&self) -> HashMap<HostAndPort, Option<MultiplexedConnection>> {
        let seeds = self.seeds.iter().map(|seed| (seed.host_and_port(), None));
        let table = self.table.read();
        let nodes = table.nodes.iter().map(|(address, node)| {
            let handle = node.connection.current();
            (address.clone(), handle.map(|handle| handle.connection()))
        });
        seeds.chain(nodes).collect()
    }

    /// The number of partitions whose slots are in these ranges.
    fn covered(&self, ranges: &[Range]) -> usize {
        let slots = (0..self.partitions.len()).map(|partition| self.partitions.slot(partition));
        slots
            .filter(|slot| ranges.iter().any(|range| range.contains(*slot)))
            .count()
    }

    /// Takes over what a node told. A partition of which it knows nothing keeps its node.
    fn apply(&self, asked: &HostAndPort, ranges: &[Range]) {
        let mut table = self.table.write();
        let before = mem::take(&mut table.owners);
        let owners = (0..self.partitions.len()).map(|partition| {
            let slot = self.partitions.slot(partition);
            match ranges.iter().find(|range| range.contains(slot)) {
                Some(range) => {
                    let host = if range.host.is_empty() {
                        &asked.0
                    } else {
                        &range.host
                    };
                    self.node_in(&mut table, (host.clone(), range.port))
                }
                None => before.get(partition).cloned().flatten(),
            }
        });
        let owners: Vec<_> = owners.collect();
        // Nodes that have left are forgotten.
        table.nodes.retain(|_, node| {
            owners
                .iter()
                .flatten()
                .any(|owner| Arc::ptr_eq(owner, node))
        });
        table.owners = owners;
    }
}

async fn read_slots(
    connection: &mut MultiplexedConnection,
    prefix: &str,
) -> Result<Vec<Range>, String> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let reply = command.query_async::<Value>(connection).await;
    let reply = reply.map_err(|error| match in_words(&error, prefix) {
        text if text.contains("cluster support disabled") => {
            format!("{text}: this server is not in cluster mode; write redis:// in the Redis URL")
        }
        text => text,
    })?;
    slots::ranges(reply).ok_or_else(|| "a malformed reply to CLUSTER SLOTS".to_owned())
}

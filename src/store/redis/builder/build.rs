//! From the settings of a store to its lanes.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;

use super::super::cluster::{Cluster, MAX_PARTITIONS, Partitions};
use super::super::connect::{self, Endpoint, Topology};
use super::super::connection::KeptConnection;
use super::super::lane::{Lane, LaneSettings};
use super::super::node::{Node, Nodes};
use super::super::notes::Notes;
use super::super::probe::OnOpened;
use super::super::route::LaneRoute;
use super::super::terms::Terms;
use super::super::{Lanes, RedisStore};
use super::RedisStoreBuilder;
use crate::store::asynchronous::Asynchronous;
use crate::store::deny_cache::{DEFAULT_CAPACITY, DenyCache};
use crate::units::ConfigError;

/// The resolution of timers. Within less, no Redis answers.
const MIN_DEADLINE: Duration = Duration::from_millis(1);
const MAX_DEADLINE: Duration = Duration::from_secs(60);

/// The longest prefix, name of a client, and label.
const MAX_TEXT: usize = 64;

const MAX_LANES: usize = 16;

/// The fewest places of the queue of a lane, unless the whole queue has fewer, because many
/// partitions must not make a queue too short for a hot key.
const MIN_WAITING: usize = 1_024;

/// The most partitions of which one is probed on a node of a cluster, enough for as many masters.
const MOST_PROBED: usize = 64;

impl RedisStoreBuilder {
    /// Builds the store without connecting, so that a service starts without Redis. The first check
    /// connects.
    ///
    /// # Errors
    ///
    /// Returns an error if a setting is invalid, or the pool is too small for the lanes.
    pub fn build(mut self) -> Result<RedisStore, ConfigError> {
        self.check_ranges()?;
        let (topology, name) = self.servers()?;
        Ok(self.build_on(topology, &name))
    }

    /// Builds a store with valid settings, on servers that errors and events call by this name.
    pub(in crate::store::redis) fn build_on(self, topology: Topology, name: &str) -> RedisStore {
        // With a clock that is set by hand, the time of this process does not say when a denial
        // ends.
        let remembers = self.clock.is_none();
        let deny_for = [self.deny_for, self.deny_blocked_for];
        let on_opened = OnOpened::default();
        let tags = self.tags_of(&topology);
        let terms = Terms {
            prefix: self.prefix.as_str().into(),
            client_name: self.client_name.map(Into::into),
            tags,
        };
        let label: Arc<str> = self.label.into();
        let nodes = Nodes {
            terms: Arc::new(terms),
            deadline: self.deadline,
            breaker: self.breaker,
            on_opened: Arc::clone(&on_opened),
            label: Arc::clone(&label),
        };
        let settings = |lanes: usize| LaneSettings {
            deadline: self.deadline,
            max_waiting: self
                .max_waiting
                .div_ceil(lanes)
                .max(MIN_WAITING.min(self.max_waiting)),
            clock: self.clock.clone(),
            deny_cache: remembers.then(|| Arc::new(DenyCache::new(deny_for, DEFAULT_CAPACITY))),
        };
        let prefix = self.prefix;
        let has_channels =
            !matches!(&topology, Topology::One(endpoint) if !endpoint.has_channels());
        let mut cluster = None;
        let all: Arc<[_]> = match topology {
            Topology::One(endpoint) => {
                let first = nodes.node(endpoint, name, "");
                let settings = settings(self.lanes);
                let others: Vec<_> = (1..self.lanes)
                    .map(|_| Node {
                        host: String::new(),
                        connection: first.connection.another(),
                        breaker: first.breaker.clone(),
                    })
                    .collect();
                let lane = |node| {
                    Lane::new(
                        LaneRoute::Fixed(Arc::new(node)),
                        format!("{prefix}:"),
                        settings.clone(),
                    )
                };
                std::iter::once(first).chain(others).map(lane).collect()
            }
            Topology::Cluster(seeds) => {
                let partitions = Partitions::new(self.partitions);
                let settings = settings(self.partitions);
                let cluster = cluster.insert(Cluster::new(partitions, nodes, seeds, name));
                let lane = |partition| {
                    let route = LaneRoute::Partition(Arc::clone(cluster), partition);
                    let prefix = format!("{prefix}:{{{}}}", cluster.partitions.tag(partition));
                    Lane::new(route, prefix, settings.clone())
                };
                (0..self.partitions).map(lane).collect()
            }
        };
        // It is set once, here.
        drop(on_opened.set(fail_queued(&all)));
        let lanes = Lanes {
            all,
            hasher: DefaultHashBuilder::default(),
            cluster,
            has_channels,
        };
        RedisStore {
            notes: Arc::new(Notes::new(lanes.clone(), prefix)),
            asynchronous: Asynchronous::new(lanes, self.deadline, label),
        }
    }

    /// Hash tags of partitions, from all over the slots of a cluster.
    fn tags_of(&self, topology: &Topology) -> Vec<String> {
        match topology {
            Topology::One(_) => Vec::new(),
            Topology::Cluster(_) => Partitions::new(self.partitions.min(MOST_PROBED)).into_tags(),
        }
    }

    fn check_ranges(&self) -> Result<(), ConfigError> {
        if self.deadline < MIN_DEADLINE || self.deadline > MAX_DEADLINE {
            return Err(ConfigError::new(format!(
                "`deadline` is {:?}; use {MIN_DEADLINE:?} to {MAX_DEADLINE:?}",
                self.deadline
            )));
        }
        check_text("the key prefix", &self.prefix, b"{}", "spaces and braces")?;
        if self.prefix.ends_with(':') {
            return Err(ConfigError::new(format!(
                "the key prefix is `{}`; leave out the colon at its end, which the store adds",
                self.prefix
            )));
        }
        if self.prefix.contains("://") {
            return Err(ConfigError::new(
                "the key prefix is a URL; give a name of the service, such as \
                 `RedisStore::builder(\"shop\").url(...)`",
            ));
        }
        if let Some(name) = &self.client_name {
            check_text("`client_name`", name, b"", "spaces")?;
        }
        check_text("`metrics_label`", &self.label, b"", "spaces")?;
        if !(1..=MAX_LANES).contains(&self.lanes) {
            return Err(ConfigError::new(format!(
                "`lanes` is {}; use 1 to {MAX_LANES}",
                self.lanes
            )));
        }
        if let Some(breaker) = &self.breaker {
            breaker.validate()?;
        }
        if self.max_waiting == 0 {
            return Err(ConfigError::new("`max_waiting` is 0; use at least 1"));
        }
        if !self.partitions.is_power_of_two() || self.partitions > MAX_PARTITIONS {
            return Err(ConfigError::new(format!(
                "`partitions` is {}; use a power of two, 1 to {MAX_PARTITIONS}",
                self.partitions
            )));
        }
        Ok(())
    }

    /// The servers that the URL or the pool names, and the name of them.
    fn servers(&mut self) -> Result<(Topology, String), ConfigError> {
        let tls = self.tls.take();
        let credentials = self.credentials.take();
        let Some(pool) = self.pool.take() else {
            return connect::parse(&self.url, tls, credentials);
        };
        let max_size = pool.status().max_size;
        if max_size <= self.lanes {
            return Err(ConfigError::new(format!(
                "the pool's max_size is {max_size}, and the store keeps {} of its connections; use \
                 a max_size of at least {}, or a URL",
                self.lanes,
                self.lanes + 1
            )));
        }
        if tls.is_some() {
            return Err(ConfigError::new(
                "`tls` needs a URL, and a pool has certificates of its own; remove one of the two",
            ));
        }
        if credentials.is_some() {
            return Err(ConfigError::new(
                "`credentials` needs a URL, and a pool has credentials of its own; remove one of \
                 the two",
            ));
        }
        let topology = Topology::One(Endpoint::Pool(pool).into());
        Ok((topology, "the pool's server".to_owned()))
    }

    /// Builds the store and connects, so that a wrong address or password is an error at once.
    ///
    /// A slot of a cluster that no node serves at the moment is not an error. Only the checks of
    /// its keys fail.
    ///
    /// # Errors
    ///
    /// Returns an error like [`build`](Self::build), or one [of the
    /// server](ConfigError::is_of_server) if that cannot be used.
    pub async fn connect(self) -> Result<RedisStore, ConfigError> {
        let store = self.build()?;
        let mut unserved = None;
        let mut is_connected = false;
        for lane in &*store.lanes().all {
            match lane.route.connect().await {
                Ok(_) => is_connected = true,
                Err(reason) if lane.route.node().is_none() => unserved = Some(reason),
                Err(reason) => return Err(unusable(&reason)),
            }
        }
        match unserved {
            Some(reason) if !is_connected => Err(unusable(&reason)),
            _ => Ok(store),
        }
    }
}

/// Returns an error if a text is empty or long, or has other characters than printable ones of
/// ASCII without these.
fn check_text(what: &str, text: &str, without: &[u8], in_words: &str) -> Result<(), ConfigError> {
    let is_printable = |byte: u8| byte.is_ascii_graphic() && !without.contains(&byte);
    if (1..=MAX_TEXT).contains(&text.len()) && text.bytes().all(is_printable) {
        return Ok(());
    }
    let found = match text {
        "" => "empty".to_owned(),
        _ => format!("`{}`", text.escape_debug()),
    };
    Err(ConfigError::new(format!(
        "{what} is {found}; use 1 to {MAX_TEXT} printable ASCII characters without {in_words}"
    )))
}

fn unusable(reason: &str) -> ConfigError {
    ConfigError::of_server(format!("cannot use Redis at {reason}"))
}

/// Fails the queued checks of those lanes that call a server whose circuit breaker opened.
fn fail_queued(lanes: &Arc<[Arc<Lane>]>) -> Box<dyn Fn(&KeptConnection) + Send + Sync> {
    // The lanes own what this is given to.
    let lanes = Arc::downgrade(lanes);
    Box::new(move |opened| {
        let Some(lanes) = lanes.upgrade() else { return };
        for lane in &*lanes {
            let is_here = |node: &Node| node.connection.share_server_with(opened);
            if lane.route.node().is_some_and(|node| is_here(&node)) {
                lane.fail_queued();
            }
        }
    })
}

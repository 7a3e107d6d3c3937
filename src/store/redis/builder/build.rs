//! From the settings of a store to its lanes.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;

use super::super::cluster::{Cluster, MAX_PARTITIONS, Partitions};
use super::super::connect::{Target, Topology};
use super::super::connection::Connections;
use super::super::lane::{Lane, LaneSettings};
use super::super::node::{Node, Nodes};
use super::super::notes::Notes;
use super::super::probe::OnOpened;
use super::super::route::LaneRoute;
use super::super::terms::Terms;
use super::super::{Choice, Lanes, RedisStore};
use super::{RedisStoreBuilder, ServerSource};
use crate::store::deny_cache::{DEFAULT_CAPACITY, DenyCache};
use crate::units::ConfigError;

/// The resolution of timers. Within less, no Redis answers.
const MIN_DEADLINE: Duration = Duration::from_millis(1);
const MAX_DEADLINE: Duration = Duration::from_secs(60);

const MAX_PREFIX: usize = 64;

const MAX_CLIENT_NAME: usize = 64;

const MAX_LABEL: usize = 64;

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
        let target = self.target()?;
        Ok(self.build_on(target))
    }

    /// Builds a store with valid settings.
    pub(in crate::store::redis) fn build_on(self, target: Target) -> RedisStore {
        // With a clock that is set by hand, the time of this process does not say when a denial
        // ends.
        let remembers = self.clock.is_none();
        let deny_for = [self.deny_for, self.deny_blocked_for];
        let on_opened = OnOpened::default();
        let tags = self.tags_of(&target.topology);
        let terms = Terms {
            prefix: self.prefix.as_str().into(),
            client_name: self.client_name.map(Into::into),
            tags,
        };
        let nodes = Nodes {
            terms: Arc::new(terms),
            deadline: self.deadline,
            breaker: self.breaker,
            on_opened: Arc::clone(&on_opened),
            label: self.label.into(),
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
        let (all, choice): (Arc<[_]>, _) = match target.topology {
            Topology::One(connect) => {
                let first = nodes.node(connect, &target.name, "");
                let settings = settings(self.lanes);
                let others: Vec<_> = (1..self.lanes)
                    .map(|_| first.with_own_connection())
                    .collect();
                let lane = |node| {
                    Lane::new(
                        LaneRoute::Fixed(Arc::new(node)),
                        format!("{prefix}:"),
                        settings.clone(),
                    )
                };
                let lanes = std::iter::once(first).chain(others).map(lane).collect();
                (lanes, Choice::Hash(DefaultHashBuilder::default()))
            }
            Topology::Cluster(seeds) => {
                let partitions = self.partitions;
                let settings = settings(self.partitions);
                let cluster = Cluster::new(Partitions::new(partitions), nodes, seeds, &target.name);
                let lane = |partition| {
                    let route = LaneRoute::Partition(Arc::clone(&cluster), partition);
                    let prefix = format!("{prefix}:{{{}}}", cluster.partitions.tag(partition));
                    Lane::new(route, prefix, settings.clone())
                };
                (
                    (0..partitions).map(lane).collect(),
                    Choice::Partition(Arc::clone(&cluster)),
                )
            }
        };
        // It is set once, here.
        drop(on_opened.set(fail_queued(&all)));
        let lanes = Lanes { all, choice };
        RedisStore {
            notes: Arc::new(Notes::new(lanes.clone(), prefix)),
            lanes,
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
        let printable = |byte: u8| byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
        if self.prefix.is_empty()
            || self.prefix.len() > MAX_PREFIX
            || !self.prefix.bytes().all(printable)
        {
            return Err(ConfigError::new(format!(
                "the key prefix is `{}`; use 1 to {MAX_PREFIX} printable ASCII characters without \
                 spaces and braces",
                self.prefix.escape_debug()
            )));
        }
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
        if let Some(name) = &self.client_name
            && (name.is_empty()
                || name.len() > MAX_CLIENT_NAME
                || !name.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(ConfigError::new(format!(
                "`client_name` is `{}`; use 1 to {MAX_CLIENT_NAME} printable ASCII characters \
                 without spaces",
                name.escape_debug()
            )));
        }
        if self.label.is_empty()
            || self.label.len() > MAX_LABEL
            || !self.label.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(ConfigError::new(format!(
                "`metrics_label` is `{}`; use 1 to {MAX_LABEL} printable ASCII characters without \
                 spaces",
                self.label.escape_debug()
            )));
        }
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

    /// The servers that the URL or the pool names.
    fn target(&mut self) -> Result<Target, ConfigError> {
        let tls = self.tls.take();
        let credentials = self.credentials.take();
        let pool = match &self.source {
            ServerSource::Url(url) => return Target::parse(url, tls, credentials),
            ServerSource::Pool(pool) => pool,
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
        let topology = Topology::One(Arc::new(pool.clone()));
        Ok(Target {
            topology,
            name: "the pool's server".to_owned(),
        })
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
        for lane in &*store.lanes.all {
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

fn unusable(reason: &str) -> ConfigError {
    ConfigError::of_server(format!("cannot use Redis at {reason}"))
}

/// Fails the queued checks of those lanes that call a server whose circuit breaker opened.
fn fail_queued(lanes: &Arc<[Arc<Lane>]>) -> Box<dyn Fn(&Connections) + Send + Sync> {
    // The lanes own what this is given to.
    let lanes = Arc::downgrade(lanes);
    Box::new(move |opened| {
        let Some(lanes) = lanes.upgrade() else { return };
        for lane in &*lanes {
            let is_here = |node: &Node| node.connections.share_server_with(opened);
            if lane.route.node().is_some_and(|node| is_here(&node)) {
                lane.fail_queued();
            }
        }
    })
}

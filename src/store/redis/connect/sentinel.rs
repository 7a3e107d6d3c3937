//! Connections to the master that the sentinels name.
//!
//! All sentinels are asked at once, and the majority decides, because one that hangs delays
//! nothing, and one that was cut off names an old master alone. Without a majority, the most votes
//! count. ("Guidelines for Redis clients with support for Redis Sentinel", which asks one after
//! another.)
//!
//! A planned failover leaves the old master running, because sentinels demote it about ten seconds
//! after they name the new one. So a task watches the election of each connection. It asks again
//! when a sentinel announces another master, and every second. When a majority names another
//! master, the connection is over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::call;
use super::super::terms::Terms;
use super::server::{HostAndPort, Server};
use super::{Link, Subscription, ask_all};

/// The time that a sentinel has for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// How often sentinels are asked although none announces another master.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The pause before another attempt to subscribe to a sentinel.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(5);

/// The channel in which sentinels announce another master.
const CHANNEL: &str = "+switch-master";

pub(in crate::store::redis) struct Sentinels {
    all: Arc<[Sentinel]>,
    service: Arc<str>,
    /// How to connect to the master. The address is the sentinels' answer.
    master: Server,
}

/// A sentinel, and the connection on which it is asked.
struct Sentinel {
    server: Server,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Server>, service: &str, master: Server) -> Self {
        let sentinel = |server| Sentinel {
            server,
            connection: Mutex::default(),
        };
        let all = sentinels.into_iter().map(sentinel).collect();
        Self {
            all,
            service: service.into(),
            master,
        }
    }

    /// Connects to the master that the sentinels name now, and watches their election.
    pub(super) async fn connect_to_master(&self, terms: &Terms) -> Result<Link, String> {
        let (elected, _) = elect(&self.all, &self.service).await?;
        let master = self.master.at(&elected.0, elected.1);
        let connection = master.connect_to(terms).await;
        let connection =
            connection.map_err(|reason| format!("the master at {}: {reason}", master.address()))?;
        let mut link = Link::new(connection);
        let sentinels = Arc::clone(&self.all);
        let service = Arc::clone(&self.service);
        let successor = Arc::clone(&link.successor);
        link.election.spawn(async move {
            let next = next_master(&sentinels, &service, &elected).await;
            // It is set once, here.
            drop(successor.set(next));
        });
        Ok(link)
    }

    /// Subscribes to a channel of the master.
    pub(super) async fn subscribe(
        &self,
        prefix: &str,
        channel: &str,
    ) -> Result<Subscription, String> {
        let ((host, port), _) = elect(&self.all, &self.service).await?;
        self.master.at(&host, port).subscribe(prefix, channel).await
    }
}

/// The master that the sentinels name, and whether a majority of them does.
async fn elect(
    sentinels: &Arc<[Sentinel]>,
    service: &Arc<str>,
) -> Result<(HostAndPort, bool), String> {
    let mut asked = ask_all(
        (0..sentinels.len()).map(|number| {
            let sentinels = Arc::clone(sentinels);
            let service = Arc::clone(service);
            let name = sentinels[number].server.address();
            (
                name,
                async move { sentinels[number].master_of(&service).await },
            )
        }),
        ANSWER_TIMEOUT,
    );
    let mut votes = HashMap::<HostAndPort, usize>::new();
    let mut failures = Vec::new();
    while let Some(answer) = asked.join_next().await {
        match answer.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(master) => {
                let count = votes.entry(master.clone()).or_default();
                *count += 1;
                if *count > sentinels.len() / 2 {
                    return Ok((master, true));
                }
            }
            Err(failure) => failures.push(failure),
        }
    }
    // If two masters have equally many votes, all replicas of the service choose the same.
    let elected = votes
        .into_iter()
        .map(|(master, votes)| (votes, master))
        .max();
    match elected {
        Some((_, master)) => Ok((master, false)),
        None => Err(format!(
            "no sentinel names a master of `{service}` ({})",
            failures.join("; ")
        )),
    }
}

impl Sentinel {
    /// The address of the master. A connection that fails is replaced by the next question.
    async fn master_of(&self, service: &str) -> Result<HostAndPort, String> {
        let mut kept = self.connection.lock().await;
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => self.server.open("").await?,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let answer = command
            .query_async::<Option<HostAndPort>>(&mut connection)
            .await;
        let answer = answer.map_err(|error| call::brief(&error))?;
        *kept = Some(connection);
        answer.ok_or_else(|| {
            "it knows no service of that name; check the path of the Redis URL".to_owned()
        })
    }
}

/// Waits until a majority of the sentinels names another master.
async fn next_master(
    sentinels: &Arc<[Sentinel]>,
    service: &Arc<str>,
    master: &HostAndPort,
) -> HostAndPort {
    let announced = Arc::<Notify>::default();
    let mut listening = JoinSet::new();
    for sentinel in sentinels.iter() {
        listening.spawn(announce(sentinel.server.clone(), Arc::clone(&announced)));
    }
    loop {
        drop(timeout(ASK_AGAIN, announced.notified()).await);
        if let Ok((named, true)) = elect(sentinels, service).await
            && named != *master
        {
            return named;
        }
    }
}

/// Passes on what a sentinel announces. One that cannot be subscribed to is still asked every
/// second.
async fn announce(sentinel: Server, announced: Arc<Notify>) {
    loop {
        let subscribing = timeout(ANSWER_TIMEOUT, sentinel.subscribe("", CHANNEL)).await;
        if let Ok(Ok(mut subscription)) = subscribing {
            // A sentinel may end with the machine of the master.
            while subscription.next().await.is_some() {
                announced.notify_one();
            }
            announced.notify_one();
        }
        sleep(SUBSCRIBE_AGAIN).await;
    }
}

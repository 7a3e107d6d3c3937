//! Connections to the master that the sentinels name.
//!
//! All sentinels are asked at once, and the majority decides: one that hangs delays nothing, and one that was cut
//! off names an old master alone. Without a majority, the most votes count. Each new connection asks anew, so a failover is followed by the reconnect that it
//! causes. ("Guidelines for Redis clients with support for Redis Sentinel", which asks one after another.)

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::call;
#[cfg(feature = "config")]
use super::Subscribing;
use super::server::Server;
use super::{Connect, Connecting, Terms};

/// The time that a sentinel has for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

type Address = (String, u16);

pub(super) struct Sentinels {
    sentinels: Vec<Server>,
    service: String,
    /// How to connect to the master. The address is the sentinels' answer.
    master: Server,
}

impl Sentinels {
    pub(super) const fn new(sentinels: Vec<Server>, service: String, master: Server) -> Self {
        Self { sentinels, service, master }
    }

    /// The address of the master.
    async fn find(&self) -> Result<Address, String> {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            let (sentinel, service) = (sentinel.clone(), self.service.clone());
            asked.spawn(async move {
                let address = sentinel.address();
                let answer = timeout(ANSWER_TIMEOUT, ask(&sentinel, &service)).await;
                let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
                answer.map_err(|error| format!("{address}: {error}"))
            });
        }
        let (mut votes, mut failures) = (HashMap::<Address, usize>::new(), Vec::new());
        while let Some(answer) = asked.join_next().await {
            match answer.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(master) => {
                    let count = votes.entry(master.clone()).or_default();
                    *count += 1;
                    if *count > self.sentinels.len() / 2 {
                        return Ok(master);
                    }
                }
                Err(failure) => failures.push(failure),
            }
        }
        // Of a tie, all replicas of the service take the same.
        let elected = votes.into_iter().map(|(master, votes)| (votes, master)).max();
        elected.map(|(_, master)| master).ok_or_else(|| {
            format!("no sentinel names a master of `{}` ({})", self.service, failures.join("; "))
        })
    }
}

async fn ask(sentinel: &Server, service: &str) -> Result<Address, String> {
    let mut connection = sentinel.open("").await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let answer = command.query_async::<Option<Address>>(&mut connection).await;
    answer.map_err(|error| call::brief(&error))?.ok_or_else(|| {
        "it knows no service of that name; check the path of the Redis URL".to_owned()
    })
}

impl Connect for Sentinels {
    fn connect<'a>(&'a self, terms: &'a Terms) -> Connecting<'a> {
        Box::pin(async {
            let (host, port) = self.find().await?;
            let master = self.master.at(&host, port);
            let link = master.connect(terms).await;
            link.map_err(|reason| format!("the master at {}: {reason}", master.address()))
        })
    }

    #[cfg(feature = "config")]
    fn subscribe<'a>(&'a self, prefix: &'a str, channel: &'a str) -> Subscribing<'a> {
        Box::pin(async move {
            let (host, port) = self.find().await?;
            self.master.at(&host, port).subscribe(prefix, channel).await
        })
    }
}

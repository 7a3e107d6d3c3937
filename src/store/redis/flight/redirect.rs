//! Redirections of a cluster. A node that redirects has not executed the call, so it may be sent
//! elsewhere.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::time::{Instant, sleep, timeout_at};

use super::{BreakerReport, Call, is_open, with_context};
use crate::store::redis::node::Node;
use crate::store::redis::route::LaneRoute;

/// The most redirections of one call.
pub(in crate::store::redis) const MOST_REDIRECTIONS: usize = 5;

/// The pause before a call whose keys are partly on another node is sent again.
const PAUSE: Duration = Duration::from_millis(5);

fn is_try_again(answer: &Option<RedisResult<Vec<i64>>>) -> bool {
    let kind = answer
        .as_ref()
        .and_then(|answer| answer.as_ref().err())
        .map(RedisError::kind);
    kind == Some(ErrorKind::Server(ServerErrorKind::TryAgain))
}

/// The node to which an error of another one points, and whether only this call is to go there.
pub(in crate::store::redis) fn pointed_at(
    route: &LaneRoute,
    from: &Node,
    error: &RedisError,
) -> Option<(Arc<Node>, bool)> {
    let is_asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    let (address, _slot) = error.redirect_node()?;
    Some((node_at(route, from, address)?, is_asking))
}

fn node_at(route: &LaneRoute, from: &Node, address: &str) -> Option<Arc<Node>> {
    let LaneRoute::Partition(cluster, _) = route else {
        return None;
    };
    cluster.refresh();
    let (host, port) = address.rsplit_once(':')?;
    // A node that does not know the name of the other leaves it out: it is the one that was asked.
    let host = if matches!(host, "" | "?") {
        &*from.host
    } else {
        host
    };
    cluster.node_at(host, port.parse().ok()?)
}

impl Call {
    /// Follows redirections, until a node answers the call itself. A call of several groups whose
    /// keys are moving has to be split by its caller.
    pub(super) async fn follow(&mut self, answer: &mut Option<RedisResult<Vec<i64>>>) {
        for _ in 0..MOST_REDIRECTIONS {
            let Some(Err(error)) = &*answer else { return };
            let is_asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
            let Some((address, _slot)) = error.redirect_node() else {
                return;
            };
            if self.go_to(address).await.is_none() {
                return;
            }
            self.is_asking = is_asking;
            *answer = self.observed_reply(Instant::now()).await;
        }
    }

    /// Goes back to the node that has the slot, because a redirection of the group before may have
    /// led elsewhere.
    pub(super) async fn return_to_owner(&mut self) {
        self.is_asking = false;
        let Some(deadline) = self.place.batch().first_deadline() else {
            return;
        };
        let lane = Arc::clone(self.place.lane());
        let owner = async {
            loop {
                let (node, handle) = lane.route.connect().await?;
                if with_context(|cx| is_open(&node, &handle, cx)).await {
                    return Ok::<_, String>((node, handle));
                }
            }
        };
        let Ok(Ok((node, handle))) = timeout_at(deadline, owner).await else {
            return;
        };
        if !Arc::ptr_eq(&node, &self.node) {
            // The node that is left has answered.
            self.breaker_report.end(false);
            self.breaker_report = BreakerReport::begin(Some(&node));
        }
        self.node = node;
        self.handle = handle;
    }

    /// Leaves one group whose keys are partly on another node to a task of its own, so that checks
    /// of single keys in the same slot need not wait for the group. Returns whether it is such a
    /// group.
    pub(super) fn leave_to_move(&mut self, answer: &mut Option<RedisResult<Vec<i64>>>) -> bool {
        if !is_try_again(answer) {
            return false;
        }
        // The node that says so is well.
        self.breaker_report.end(false);
        let apart = Self {
            place: self.place.part(),
            node: Arc::clone(&self.node),
            handle: self.handle.clone(),
            is_asking: self.is_asking,
            breaker_report: BreakerReport::begin(None),
            is_divided: true,
        };
        tokio::spawn(apart.complete_when_moved(answer.take()));
        true
    }

    /// Sends a group again while its keys are partly on another node, until they are on one, or its
    /// time is over. Then `answer`, by which nothing was charged, is theirs. The groups of a lane
    /// that wait for this take turns.
    async fn complete_when_moved(mut self, mut answer: Option<RedisResult<Vec<i64>>>) {
        let lane = Arc::clone(self.place.lane());
        while self.place.is_worth_sending(Instant::now()) {
            let Some(deadline) = self.place.batch().first_deadline() else {
                break;
            };
            let turn = async {
                sleep(PAUSE).await;
                lane.groups_that_wait.lock().await
            };
            let Ok(_turn) = timeout_at(deadline, turn).await else {
                break;
            };
            self.breaker_report = BreakerReport::begin(Some(&self.node));
            answer = self.observed_reply(Instant::now()).await;
            self.follow(&mut answer).await;
            if !is_try_again(&answer) {
                break;
            }
            self.breaker_report.end(false);
        }
        if !self.place.batch().is_empty() {
            self.answer_checks(answer);
            self.place.unload();
        }
    }

    /// Connects to the node to which another has pointed.
    async fn go_to(&mut self, address: &str) -> Option<()> {
        // The node that points elsewhere is well.
        self.breaker_report.end(false);
        let node = node_at(&self.place.lane().route, &self.node, address)?;
        let mut breaker_report = BreakerReport::begin(Some(&node));
        let deadline = self.place.batch().first_deadline()?;
        let open = async {
            loop {
                let handle = node.connection.get().await?;
                if with_context(|cx| is_open(&node, &handle, cx)).await {
                    return Ok::<_, String>(handle);
                }
            }
        };
        let Ok(Ok(handle)) = timeout_at(deadline, open).await else {
            breaker_report.end(true);
            return None;
        };
        self.node = node;
        self.handle = handle;
        self.breaker_report = breaker_report;
        Some(())
    }
}

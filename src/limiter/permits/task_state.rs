//! The task of an agent: whether it runs, and where it can.

use std::collections::VecDeque;

use tokio::runtime::Handle as Runtime;

use crate::store::heartbeat::Heartbeat;

/// The most runtimes to which a task can move.
const MOST_RUNTIMES: usize = 8;

#[derive(Default)]
pub(super) struct TaskState {
    /// The number of the task that runs.
    pub(super) running: Option<u64>,
    /// Counts tasks.
    pub(super) started: u64,
    /// The task's last round.
    pub(super) rounds: Heartbeat,
    /// The last runtimes with callers. The task moves to another one when its runtime shuts down.
    pub(super) runtimes: VecDeque<Runtime>,
}

impl TaskState {
    /// Notes a runtime to which the task can move.
    pub(super) fn note_runtime(&mut self, runtime: &Runtime) {
        if self.runtimes.iter().all(|known| known.id() != runtime.id()) {
            self.runtimes.truncate(MOST_RUNTIMES - 1);
            self.runtimes.push_front(runtime.clone());
        }
    }

    /// The task has ended.
    pub(super) const fn end(&mut self) {
        self.running = None;
        self.rounds.end();
    }
}

//! The task of an agent, as far as others have to know it.

use crate::store::heartbeat::Heartbeat;

#[derive(Default)]
pub(super) struct TaskState {
    /// The number of the task that runs.
    pub(super) running: Option<u64>,
    /// Counts tasks.
    pub(super) started: u64,
    /// The task's last round.
    pub(super) rounds: Heartbeat,
}

impl TaskState {
    /// The task has ended.
    pub(super) const fn end(&mut self) {
        self.running = None;
        self.rounds.end();
    }
}

//! Notes of processes to each other and to operators, in Redis, apart from decisions: the quotas
//! that they use, and the keys that they deny most often.

mod denied;
mod quotas;
mod sample;

use std::sync::Arc;

use redis::{Cmd, FromRedisValue};

use self::quotas::Quotas;
use super::{Lanes, command};
use crate::store::Note;
use crate::units::ManualClock;

pub(super) struct Notes {
    lanes: Lanes,
    prefix: String,
    quotas: Quotas,
}

impl Notes {
    pub(super) fn new(lanes: Lanes, prefix: String) -> Self {
        Self {
            lanes,
            prefix,
            quotas: Quotas::default(),
        }
    }

    /// Writes a note, in the background. Does nothing outside of a runtime.
    pub(super) fn note(self: &Arc<Self>, note: Note<'_>) {
        match note {
            Note::Limits {
                owner,
                limits,
                replace,
            } => quotas::note(self, owner, limits, replace),
            Note::Denied(keys) => denied::note(self, keys),
        }
    }

    /// Runs a command, and perhaps again. It must not matter how often. `None` if it failed. An
    /// outage is known elsewhere, and the next minute brings another note.
    async fn run<T: FromRedisValue>(&self, command: &Cmd) -> Option<T> {
        command::run(&self.lanes, command, &self.prefix).await.ok()
    }

    /// Runs a command, once at most.
    async fn run_once(&self, command: &Cmd) -> Option<()> {
        let answer = command::run_once(&self.lanes, command, &self.prefix);
        answer.await.ok()
    }

    /// The clock of the store, if it is set by hand.
    fn clock(&self) -> Option<&ManualClock> {
        self.lanes.all[0].settings.clock.as_ref()
    }
}

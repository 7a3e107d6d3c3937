//! The quotas that processes use, noted in Redis.
//!
//! Two services with one prefix and one limit name count on the same budgets. If their quotas
//! differ, each decides by its own, and nobody is told. So each process notes its quotas once a
//! minute, and reads those of the others.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::runtime::Handle as Runtime;
use tokio::time::sleep;

use super::{Lanes, command, script};
use crate::nouns::{Limit, ManualClock};
use crate::telemetry;

/// A service registers its limits before that, and a short program notes none.
const FIRST_AFTER: Duration = Duration::from_secs(5);

const EVERY: Duration = Duration::from_secs(60);

/// The most names that a process notes. An application may make a limit for each client.
const MOST_NAMES: usize = 1_000;

/// The quotas that this process uses.
pub(super) struct Quotas {
    lanes: Lanes,
    /// The key of the notes of all processes.
    key: String,
    /// The quotas by `kind:name`. Those of plans are one text.
    in_use: Mutex<BTreeMap<String, String>>,
    has_task: AtomicBool,
}

impl Quotas {
    pub(super) fn new(lanes: Lanes, prefix: &str) -> Self {
        Self {
            lanes,
            key: format!("{prefix}:limits"),
            in_use: Mutex::default(),
            has_task: AtomicBool::new(false),
        }
    }

    /// Notes limits in place of those of the same names. The first ones start the task, which ends
    /// with the store.
    pub(super) fn note(self: &Arc<Self>, limits: &[&Limit]) {
        let mut noted: BTreeMap<String, String> = BTreeMap::new();
        for limit in limits {
            let name = format!("{}:{}", limit.kind(), limit.name());
            let quota = format!("{} ({})", limit.quota(), limit.algorithm().name());
            noted
                .entry(name)
                .and_modify(|quotas| {
                    quotas.push_str(", ");
                    quotas.push_str(&quota);
                })
                .or_insert(quota);
        }
        let mut in_use = self.lock();
        in_use.extend(noted);
        while in_use.len() > MOST_NAMES {
            in_use.pop_last();
        }
        drop(in_use);
        if let Ok(runtime) = Runtime::try_current()
            && !self.has_task.swap(true, Ordering::Relaxed)
        {
            runtime.spawn(keep_noting(Arc::downgrade(self)));
        }
    }

    /// Writes the notes. Returns the limits that have another quota elsewhere: `kind:name`, the
    /// quota here, and the other one.
    async fn exchange(&self) -> Vec<(String, String, String)> {
        let command = self.command();
        let prefix = self.key.strip_suffix(":limits").unwrap_or(&self.key);
        // An outage is known elsewhere, and the next minute brings another attempt.
        let found = command::run(&self.lanes, &command, prefix).await;
        let found: Vec<String> = found.unwrap_or_default();
        let (limits, _) = found.as_chunks();
        limits.iter().cloned().map(<[String; 3]>::into).collect()
    }

    fn command(&self) -> Cmd {
        let clock = self.lanes.all[0].settings.clock.as_ref();
        let seconds = clock.map(|clock| (ManualClock::now(clock) / 1_000_000).to_string());
        let mut command = redis::cmd("EVAL");
        command.arg(script::QUOTAS).arg(1).arg(&self.key);
        command.arg(seconds.unwrap_or_default());
        for (name, quota) in &*self.lock() {
            command.arg(name).arg(quota);
        }
        command
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn keep_noting(quotas: Weak<Quotas>) {
    let mut reported = HashSet::new();
    let mut pause = FIRST_AFTER;
    loop {
        sleep(pause).await;
        let Some(quotas) = quotas.upgrade() else {
            return;
        };
        for found in quotas.exchange().await {
            let (name, quota, other) = &found;
            let limit = name.split_once(':').map_or(&**name, |(_, name)| name);
            if !reported.contains(&found) {
                telemetry::two_quotas(limit, quota, other);
                reported.insert(found);
            }
        }
        pause = EVERY;
    }
}

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

use super::Notes;
use crate::nouns::Limit;
use crate::store::redis::script;
use crate::telemetry;

/// A service registers its limits before that, and a short program notes none.
const FIRST_AFTER: Duration = Duration::from_secs(5);

const EVERY: Duration = Duration::from_secs(60);

/// The most names that a process notes. An application may make a limit for each client.
const MOST_NAMES: usize = 1_000;

/// The quotas that this process uses.
#[derive(Default)]
pub(super) struct Quotas {
    /// By `kind:name`. The quotas of plans are one text.
    in_use: Mutex<BTreeMap<String, String>>,
    has_task: AtomicBool,
}

/// Notes limits in place of those of the same names. The first ones start the task, which ends with
/// the store.
pub(super) fn note(notes: &Arc<Notes>, limits: &[&Limit]) {
    let quotas = &notes.quotas;
    quotas.use_limits(limits);
    if let Ok(runtime) = Runtime::try_current()
        && !quotas.has_task.swap(true, Ordering::Relaxed)
    {
        runtime.spawn(keep_noting(Arc::downgrade(notes)));
    }
}

impl Quotas {
    fn use_limits(&self, limits: &[&Limit]) {
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
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn keep_noting(notes: Weak<Notes>) {
    let mut reported = HashSet::new();
    let mut pause = FIRST_AFTER;
    loop {
        sleep(pause).await;
        let Some(notes) = notes.upgrade() else {
            return;
        };
        let found: Vec<String> = notes.run(&command(&notes)).await.unwrap_or_default();
        let (limits, _) = found.as_chunks::<3>();
        for [name, quota, other] in limits {
            let limit = name.split_once(':').map_or(&**name, |(_, name)| name);
            if reported.insert([name.clone(), quota.clone(), other.clone()]) {
                telemetry::two_quotas(limit, quota, other);
            }
        }
        pause = EVERY;
    }
}

fn command(notes: &Notes) -> Cmd {
    let seconds = notes.clock().map(|clock| clock.now() / 1_000_000);
    let mut command = redis::cmd("EVAL");
    command.arg(script::QUOTAS).arg(1);
    command.arg(format!("{}:limits", notes.prefix));
    command.arg(seconds.map_or_else(String::new, |seconds| seconds.to_string()));
    for (name, quota) in &*notes.quotas.lock() {
        command.arg(name).arg(quota);
    }
    command
}

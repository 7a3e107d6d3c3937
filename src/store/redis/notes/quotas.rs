//! The quotas that processes use, noted in Redis.
//!
//! Two services with one prefix and one limit name charge the same budgets. If their quotas differ,
//! each service decides by its own quota, and no response shows it. Each process therefore writes
//! its quotas once a minute, and reads the quotas of the other processes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
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

/// The most limits of an owner that are noted. An application may make a limit for each client.
const MOST_LIMITS: usize = 1_000;

/// The longest quota in an event, in characters.
const LONGEST: usize = 200;

/// The most reports of a process, each of a limit and another quota.
const MOST_REPORTS: usize = 1_000;

/// The quotas that this process uses.
#[derive(Default)]
pub(super) struct Quotas {
    /// Quotas, by owner and `kind:name`. The quotas of all plans of a limit are one text.
    in_use: Mutex<HashMap<usize, BTreeMap<String, String>>>,
    has_task: AtomicBool,
}

/// Notes the limits of an owner, which `replace` its earlier ones. The first limits start the task,
/// which ends with the store.
pub(super) fn note(notes: &Arc<Notes>, owner: usize, limits: &[&Limit], replace: bool) {
    let quotas = &notes.quotas;
    quotas.add(owner, texts(limits), replace);
    if let Ok(runtime) = Runtime::try_current()
        && !quotas.has_task.swap(true, Ordering::Relaxed)
    {
        let task = Task(Arc::downgrade(notes));
        runtime.spawn(async move { task.keep_noting().await });
    }
}

/// The quotas by `kind:name`. The quotas of plans are sorted, so that all processes write one text.
fn texts(limits: &[&Limit]) -> BTreeMap<String, String> {
    let mut quotas: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for limit in limits {
        let name = format!("{}:{}", limit.kind(), limit.name());
        let quota = format!("{} ({})", limit.quota(), limit.algorithm().name());
        quotas.entry(name).or_default().insert(quota);
    }
    let joined = |quotas: BTreeSet<String>| Vec::from_iter(quotas).join(", ");
    let quotas = quotas.into_iter();
    quotas
        .map(|(name, quotas)| (name, joined(quotas)))
        .collect()
}

impl Quotas {
    fn add(&self, owner: usize, texts: BTreeMap<String, String>, replace: bool) {
        let mut in_use = self.lock();
        let of_owner = in_use.entry(owner).or_default();
        if replace {
            of_owner.clear();
        }
        let room = MOST_LIMITS.saturating_sub(of_owner.len());
        of_owner.extend(texts.into_iter().take(room));
    }

    /// Returns whether a limit of this process has this quota.
    fn has(&self, name: &str, quota: &str) -> bool {
        let in_use = self.lock();
        let mut owners = in_use.values();
        owners.any(|quotas| quotas.get(name).is_some_and(|own| own == quota))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, BTreeMap<String, String>>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that notes the quotas. If its runtime ends before the store, the next limit that is
/// registered starts another.
struct Task(Weak<Notes>);

impl Task {
    async fn keep_noting(&self) {
        let mut reported = HashSet::new();
        let mut pause = FIRST_AFTER;
        loop {
            sleep(pause).await;
            let Some(notes) = self.0.upgrade() else {
                return;
            };
            let found: Vec<String> = notes.run(&command(&notes)).await.unwrap_or_default();
            let (limits, _) = found.as_chunks::<3>();
            for [name, quota, other] in limits {
                // After a lost reply, this could be the reply to another command.
                if !notes.quotas.has(name, quota) || reported.len() >= MOST_REPORTS {
                    continue;
                }
                let limit = name.split_once(':').map_or(&**name, |(_, name)| name);
                if reported.insert((name.clone(), other.clone())) {
                    telemetry::two_quotas(limit, &brief(quota), &brief(other));
                }
            }
            pause = EVERY;
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(notes) = self.0.upgrade() {
            notes.quotas.has_task.store(false, Ordering::Relaxed);
        }
    }
}

/// The start of a text: a limit may have a thousand plans.
fn brief(quota: &str) -> String {
    quota.chars().take(LONGEST).collect()
}

fn command(notes: &Notes) -> Cmd {
    let seconds = notes.clock().map(|clock| clock.now() / 1_000_000);
    let mut command = redis::cmd("EVAL");
    command.arg(script::QUOTAS).arg(1);
    command.arg(format!("{}:limits", notes.prefix));
    command.arg(seconds.map_or_else(String::new, |seconds| seconds.to_string()));
    for quotas in notes.quotas.lock().values() {
        for (name, quota) in quotas {
            command.arg(name).arg(quota);
        }
    }
    command
}

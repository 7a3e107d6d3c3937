//! The quotas that processes use, noted in Redis.
//!
//! Two services with one prefix and one limit name charge the same budgets. If their quotas differ,
//! each service decides by its own quota, and no response shows it. Each process therefore writes
//! its quotas once a minute, and reads the quotas of the other processes. It knows all quotas of
//! limits that are registered, and some of those of other limits ([`SeenQuotas`]).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::runtime::Handle as Runtime;
use tokio::time::sleep;

use super::Notes;
use super::seen::{MOST_LIMITS, SeenQuotas};
use crate::nouns::{Group, Limit};
use crate::store::redis::script;
use crate::telemetry;

/// A service registers its limits before that, and a short program notes none.
const FIRST_AFTER: Duration = Duration::from_secs(5);

const EVERY: Duration = Duration::from_secs(60);

/// The longest quota in an event, in characters.
const LONGEST: usize = 200;

/// The most reports of a process, each of a limit and another quota.
const MOST_REPORTS: usize = 1_000;

/// Before the quotas of a limit that nobody registered.
const SEEN: &str = "seen: ";

/// Between the quotas of a limit.
const BETWEEN: &str = "; ";

/// The quotas that this process uses.
#[derive(Default)]
pub(super) struct Quotas {
    /// The quotas of registered limits, by owner and `kind:name`. A limit has several, if it has
    /// plans.
    registered: Mutex<Vec<(Weak<()>, QuotasByName)>>,
    seen: SeenQuotas,
    has_task: AtomicBool,
}

type QuotasByName = BTreeMap<String, BTreeSet<String>>;

/// Notes the limits of an owner, which `replace` its earlier ones.
pub(super) fn note(notes: &Arc<Notes>, owner: &Arc<()>, limits: &[&Limit], replace: bool) {
    notes.quotas.register(owner, limits, replace);
    start(notes);
}

/// Looks at a check, whose limits may not be registered.
#[inline]
pub(super) fn see(notes: &Arc<Notes>, group: &Group) {
    if notes.quotas.seen.wants_more() {
        notes.quotas.see(group);
        start(notes);
    }
}

/// Starts the task, if it does not run. It ends with the store.
fn start(notes: &Arc<Notes>) {
    let has_task = &notes.quotas.has_task;
    if !has_task.load(Ordering::Relaxed)
        && let Ok(runtime) = Runtime::try_current()
        && !has_task.swap(true, Ordering::Relaxed)
    {
        let task = Task(Arc::downgrade(notes));
        runtime.spawn(async move { task.keep_noting().await });
    }
}

/// `kind:name`.
fn name(limit: &Limit) -> String {
    format!("{}:{}", limit.kind(), limit.name())
}

fn quota(limit: &Limit) -> String {
    format!("{} ({})", limit.quota(), limit.algorithm().name())
}

impl Quotas {
    fn register(&self, owner: &Arc<()>, limits: &[&Limit], replace: bool) {
        let mut registered = self.lock();
        let is_owner = |it: &Weak<()>| std::ptr::eq(it.as_ptr(), Arc::as_ptr(owner));
        let known = registered.iter().position(|(it, _)| is_owner(it));
        let place = known.unwrap_or_else(|| {
            registered.push((Arc::downgrade(owner), QuotasByName::new()));
            registered.len() - 1
        });
        let of_owner = &mut registered[place].1;
        if replace {
            of_owner.clear();
        }
        let mut new = QuotasByName::new();
        for limit in limits {
            new.entry(name(limit)).or_default().insert(quota(limit));
        }
        let room = MOST_LIMITS.saturating_sub(of_owner.len());
        of_owner.extend(new.into_iter().take(room));
    }

    #[cold]
    fn see(&self, group: &Group) {
        self.seen.count();
        for check in group {
            let (name, quota) = (name(check.limit()), quota(check.limit()));
            if !self.is_registered(&name, &quota) {
                self.seen.add(name, quota);
            }
        }
    }

    fn is_registered(&self, name: &str, quota: &str) -> bool {
        let registered = self.lock();
        let mut owners = registered.iter();
        owners.any(|(_, names)| names.get(name).is_some_and(|it| it.contains(quota)))
    }

    /// Each name with its quotas. They are sorted, so that all processes write one text.
    fn texts(&self) -> HashSet<(String, String)> {
        let joined = |quotas: BTreeSet<String>| Vec::from_iter(quotas).join(BETWEEN);
        let seen = self.seen.end_round().into_iter();
        let seen = seen.map(|(name, quotas)| (name, format!("{SEEN}{}", joined(quotas))));
        let mut registered = self.lock();
        registered.retain(|(owner, _)| owner.strong_count() > 0);
        let names = registered.iter().flat_map(|(_, names)| names);
        let registered = names.map(|(name, quotas)| (name.clone(), joined(quotas.clone())));
        registered.chain(seen).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Weak<()>, QuotasByName)>> {
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
            let texts = notes.quotas.texts();
            let command = command(&notes, &texts);
            let found: Vec<(String, String, String)> =
                notes.run(&command).await.unwrap_or_default();
            for (name, quota, other) in found {
                // After a lost reply, this could be the reply to another command.
                let is_ours = texts.contains(&(name.clone(), quota.clone()));
                if is_ours
                    && differ(&quota, &other)
                    && reported.len() < MOST_REPORTS
                    && reported.insert((name.clone(), other.clone()))
                {
                    let limit = name.split_once(':').map_or(&*name, |(_, name)| name);
                    telemetry::two_quotas(limit, &brief(&quota), &brief(&other));
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

/// Returns whether two processes decide by different quotas. What was seen is not all that is
/// used, so then no quota may be the same.
fn differ(one: &str, other: &str) -> bool {
    let quotas = |text: &str| -> BTreeSet<String> {
        let quotas = without_mark(text).split(BETWEEN);
        quotas.map(str::to_owned).collect()
    };
    match one.starts_with(SEEN) || other.starts_with(SEEN) {
        true => quotas(one).is_disjoint(&quotas(other)),
        false => one != other,
    }
}

fn without_mark(text: &str) -> &str {
    text.strip_prefix(SEEN).unwrap_or(text)
}

/// The start of a text: a limit may have a thousand plans.
fn brief(text: &str) -> String {
    without_mark(text).chars().take(LONGEST).collect()
}

fn command(notes: &Notes, texts: &HashSet<(String, String)>) -> Cmd {
    let seconds = notes.clock().map(|clock| clock.now() / 1_000_000);
    let mut command = redis::cmd("EVAL");
    command.arg(script::QUOTAS).arg(1);
    command.arg(format!("{}:limits", notes.prefix));
    command.arg(seconds.map_or_else(String::new, |seconds| seconds.to_string()));
    for (name, quotas) in texts {
        command.arg(name).arg(quotas);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nouns::{Check, Key, Quota};

    fn api(limit: u64) -> Limit {
        Limit::gcra("api", Quota::per_second(limit)).unwrap()
    }

    fn texts(quotas: &Quotas) -> Vec<String> {
        let mut texts: Vec<_> = quotas.texts().into_iter().map(|(_, text)| text).collect();
        texts.sort_unstable();
        texts
    }

    fn see(quotas: &Quotas, limit: u64) {
        quotas.see(&Check::new(&api(limit), Key::new("alice")).into());
    }

    #[test]
    fn limits_of_an_owner_are_noted_until_it_is_dropped() {
        let quotas = Quotas::default();
        let [one, other] = [(); 2].map(|()| Arc::new(()));
        quotas.register(&one, &[&api(10)], false);
        quotas.register(&other, &[&api(20), &api(30)], true);
        assert_eq!(
            texts(&quotas),
            ["10 per 1s (gcra)", "20 per 1s (gcra); 30 per 1s (gcra)"]
        );
        quotas.register(&other, &[&api(40)], true);
        drop(one);
        assert_eq!(texts(&quotas), ["40 per 1s (gcra)"]);
    }

    #[test]
    fn checks_of_registered_limits_are_not_noted_again() {
        let quotas = Quotas::default();
        let owner = Arc::new(());
        quotas.register(&owner, &[&api(10), &api(20)], false);
        see(&quotas, 10);
        see(&quotas, 20);
        assert_eq!(texts(&quotas), ["10 per 1s (gcra); 20 per 1s (gcra)"]);
        see(&quotas, 50);
        assert!(texts(&quotas).contains(&"seen: 50 per 1s (gcra)".to_owned()));
    }

    #[test]
    fn quotas_that_were_seen_differ_if_none_is_the_same() {
        for (one, other, expected) in [
            ("10 per 1s (gcra)", "20 per 1s (gcra)", true),
            ("a; b", "a", true),
            ("seen: a; b", "a", false),
            ("a", "seen: a; b", false),
            ("seen: a; b", "seen: b; c", false),
            ("seen: a; b", "c", true),
            ("seen: a", "seen: b", true),
            (
                "10 per 1s, burst 5 (gcra)",
                "seen: 10 per 1s, burst 6 (gcra)",
                true,
            ),
        ] {
            assert_eq!(differ(one, other), expected, "{one} and {other}");
        }
    }
}

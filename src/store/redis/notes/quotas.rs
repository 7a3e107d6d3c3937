//! The quotas that processes use, noted in Redis.
//!
//! Two services with one prefix and one limit name charge the same budgets. If their quotas differ,
//! each service decides by its own quota, and no response shows it. Each process therefore writes
//! its quotas once a minute, and reads the quotas of the other processes. It knows all quotas of
//! limits that are registered, and a [`Sample`] of the others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::runtime::Handle as Runtime;
use tokio::time::sleep;

use super::Notes;
use super::sample::{SEVERAL, Sample};
use crate::algorithm::{Anchor, FixedWindow, Rule};
use crate::model::{Group, Limit};
use crate::store::redis::script;
use crate::telemetry;
use crate::units::{Mutex, spawn_for};

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
    /// The quotas of registered limits, by owner and `kind:name`. A limit has several, if it has
    /// plans.
    registered: Mutex<Vec<(Weak<()>, QuotasByName)>>,
    sample: Sample,
    has_task: AtomicBool,
}

type QuotasByName = BTreeMap<String, BTreeSet<String>>;

/// Notes the limits of an owner, which `replace` its earlier ones.
pub(super) fn note(notes: &Arc<Notes>, owner: &Weak<()>, limits: &[&Limit], replace: bool) {
    notes.quotas.register(owner, limits, replace);
    start(notes);
}

impl Notes {
    /// Samples a charge, whose limits may not be registered.
    #[inline]
    pub(in crate::store::redis) fn sample(self: &Arc<Self>, group: &Group) {
        if self.quotas.sample.is_incomplete() {
            self.quotas.look_at(group);
            start(self);
        }
    }
}

/// Starts the task, if it does not run. It ends with the store.
fn start(notes: &Arc<Notes>) {
    let has_task = &notes.quotas.has_task;
    if !has_task.load(Ordering::Relaxed)
        && let Ok(runtime) = Runtime::try_current()
        && !has_task.swap(true, Ordering::Relaxed)
    {
        // If its runtime ends before the store, the next limit or check starts another.
        let end = |notes: &Notes| {
            notes.quotas.has_task.store(false, Ordering::Relaxed);
            notes.quotas.sample.begin();
        };
        spawn_for(notes, &runtime, end, keep_noting(Arc::downgrade(notes)));
    }
}

/// `kind:name`.
fn name(limit: &Limit) -> String {
    format!("{}:{}", limit.kind(), limit.name())
}

/// The quota and the algorithm, as `tollgate usage` reads them.
fn quota(limit: &Limit) -> String {
    let algorithm = limit.algorithm().name();
    let algorithm = match limit.rule() {
        Rule::SlidingWindow(rule) if rule.sub_windows > 1 => {
            format!("{algorithm}({})", rule.sub_windows)
        }
        Rule::FixedWindow(FixedWindow {
            anchor: Anchor::Clock,
            ..
        }) => format!("{algorithm}_aligned"),
        _ => algorithm.to_owned(),
    };
    format!("{} ({algorithm})", limit.quota())
}

impl Quotas {
    fn register(&self, owner: &Weak<()>, limits: &[&Limit], replace: bool) {
        let mut new = QuotasByName::new();
        for limit in limits {
            new.entry(name(limit)).or_default().insert(quota(limit));
        }
        let mut registered = self.registered.lock();
        registered.retain(|(owner, _)| owner.strong_count() > 0);
        let known = registered.iter().position(|(it, _)| it.ptr_eq(owner));
        let place = known.unwrap_or_else(|| {
            registered.push((owner.clone(), QuotasByName::new()));
            registered.len() - 1
        });
        let of_owner = &mut registered[place].1;
        if replace {
            of_owner.clear();
        }
        let room = MOST_LIMITS.saturating_sub(of_owner.len());
        of_owner.extend(new.into_iter().take(room));
    }

    #[cold]
    fn look_at(&self, group: &Group) {
        self.sample.count();
        // The quota of an override is of one key.
        for check in group.iter().filter(|it| !it.limit().is_overridden()) {
            let name = name(check.limit());
            let quota = quota(check.limit());
            match self.is_registered(&name, &quota) {
                Some(true) => {}
                Some(false) => self.sample.add(name, SEVERAL.to_owned()),
                None => self.sample.add(name, quota),
            }
        }
    }

    /// Returns whether an owner registered the name with this quota. `None` if no owner registered
    /// the name.
    fn is_registered(&self, name: &str, quota: &str) -> Option<bool> {
        let registered = self.registered.lock();
        let quotas = registered.iter().filter_map(|(_, names)| names.get(name));
        quotas
            .map(|quotas| quotas.contains(quota))
            .reduce(|one, other| one || other)
    }

    /// Each name with its quotas. They are sorted, so that all processes write one text.
    fn texts(&self) -> HashSet<(String, String)> {
        let mut registered = self.registered.lock();
        registered.retain(|(owner, _)| owner.strong_count() > 0);
        let names = registered.iter().flat_map(|(_, names)| names);
        let joined = |quotas: &BTreeSet<String>| {
            let quotas: Vec<&str> = quotas.iter().map(|quota| &**quota).collect();
            quotas.join("; ")
        };
        let mut texts: HashSet<_> = names
            .map(|(name, quotas)| (name.clone(), joined(quotas)))
            .collect();
        drop(registered);
        texts.extend(self.sample.end_round());
        texts
    }
}

/// Notes the quotas, each minute.
async fn keep_noting(notes: Weak<Notes>) {
    let mut reported = HashSet::new();
    let mut pause = FIRST_AFTER;
    loop {
        sleep(pause).await;
        let Some(notes) = notes.upgrade() else {
            return;
        };
        let texts = notes.quotas.texts();
        let command = command(&notes, &texts);
        let found: Vec<(String, String, String)> = notes.run(&command).await.unwrap_or_default();
        let is_several =
            |(_, quota, other): &&(String, String, String)| quota == SEVERAL || other == SEVERAL;
        let several: HashSet<&str> = found
            .iter()
            .filter(is_several)
            .map(|(name, ..)| &**name)
            .collect();
        for (name, quota, other) in &found {
            // After a lost reply, this could be the reply to another command.
            let is_ours = texts.contains(&(name.clone(), quota.clone()));
            if is_ours
                && !several.contains(&**name)
                && reported.len() < MOST_REPORTS
                && reported.insert((name.clone(), other.clone()))
            {
                let limit = name.split_once(':').map_or(&**name, |(_, name)| name);
                telemetry::two_quotas(limit, &brief(quota), &brief(other));
            }
        }
        pause = EVERY;
    }
}

/// The start of a text, because a limit may have a thousand plans.
fn brief(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

fn command(notes: &Notes, texts: &HashSet<(String, String)>) -> Cmd {
    let seconds = notes
        .clock()
        .map(|clock| clock.now().since_epoch().as_secs());
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
    use crate::model::{Check, Key};
    use crate::units::Quota;

    fn api(limit: u64) -> Limit {
        Limit::gcra("api", Quota::per_second(limit)).unwrap()
    }

    fn texts(quotas: &Quotas) -> Vec<String> {
        let mut texts: Vec<_> = quotas.texts().into_iter().map(|(_, text)| text).collect();
        texts.sort_unstable();
        texts
    }

    fn charge(quotas: &Quotas, limit: u64) {
        quotas.look_at(&Check::new(&api(limit), Key::new("alice")).into());
    }

    #[test]
    fn limits_of_an_owner_are_noted_until_it_is_dropped() {
        let quotas = Quotas::default();
        let [one, other] = [(); 2].map(|()| Arc::new(()));
        let register = |owner: &Arc<()>, limits: &[&Limit], replace| {
            quotas.register(&Arc::downgrade(owner), limits, replace);
        };
        register(&one, &[&api(10)], false);
        register(&other, &[&api(20), &api(30)], true);
        assert_eq!(
            texts(&quotas),
            ["10 per 1s (gcra)", "20 per 1s (gcra); 30 per 1s (gcra)"]
        );
        register(&other, &[&api(40)], true);
        drop(one);
        assert_eq!(texts(&quotas), ["40 per 1s (gcra)"]);
    }

    #[test]
    fn checks_of_a_registered_limit_are_not_noted_again() {
        let quotas = Quotas::default();
        let owner = Arc::new(());
        quotas.register(&Arc::downgrade(&owner), &[&api(10), &api(20)], false);
        charge(&quotas, 10);
        charge(&quotas, 20);
        assert_eq!(texts(&quotas), ["10 per 1s (gcra); 20 per 1s (gcra)"]);
    }

    #[test]
    fn limiters_that_registered_two_quotas_of_a_name_are_compared() {
        let quotas = Quotas::default();
        let owners = [(); 2].map(|()| Arc::new(()));
        for (owner, limit) in owners.iter().zip([10, 20]) {
            quotas.register(&Arc::downgrade(owner), &[&api(limit)], false);
            charge(&quotas, limit);
        }
        assert_eq!(texts(&quotas), ["10 per 1s (gcra)", "20 per 1s (gcra)"]);
    }

    #[test]
    fn registered_limit_with_checks_under_another_quota_has_several() {
        let quotas = Quotas::default();
        let owner = Arc::new(());
        quotas.register(&Arc::downgrade(&owner), &[&api(10)], false);
        charge(&quotas, 50);
        assert_eq!(texts(&quotas), ["10 per 1s (gcra)", SEVERAL]);
    }
}

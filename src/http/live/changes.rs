//! What a new version of a configuration changes, for operators.

use super::InForce;
use crate::configuration::Named;

impl InForce {
    /// The limits that another version adds, removes and changes, each with what it allows.
    pub(super) fn changes_to(&self, after: &Self) -> [String; 3] {
        let limits = [self, after].map(|it| {
            let quotas = it.limits.iter().map(|applied| applied.quota());
            it.config.limits.iter().zip(quotas).collect::<Vec<_>>()
        });
        let concurrency = [self, after].map(|it| {
            let numbers = it.concurrency.iter().map(|applied| applied.number());
            it.config.concurrency_limits.iter().zip(numbers).collect::<Vec<_>>()
        });
        let both = changes(&limits).into_iter().zip(changes(&concurrency));
        let mut texts = both.map(|(limits, concurrency)| [limits, concurrency].concat().join(", "));
        std::array::from_fn(|_| texts.next().unwrap_or_default())
    }
}

/// What a file says of a limit, and what it allows.
type Entry<'a, T> = (&'a T, String);

fn changes<T: Named>([before, after]: &[Vec<Entry<'_, T>>; 2]) -> [Vec<String>; 3] {
    let (mut added, mut removed, mut changed) = (Vec::new(), Vec::new(), Vec::new());
    for (limit, text) in before {
        let name = limit.name();
        match after.iter().find(|(other, _)| other.name() == name) {
            None => removed.push(format!("{name} ({text})")),
            Some((other, _)) if other == limit => {}
            Some((other, now)) => {
                let quota = if now == text { text.clone() } else { format!("{text}, now {now}") };
                let plans = match &*limit.changed_plans(other) {
                    [] => String::new(),
                    plans => format!("; plans {}", plans.join(", ")),
                };
                changed.push(format!("{name} ({quota}{plans})"));
            }
        }
    }
    for (limit, text) in after {
        if before.iter().all(|(other, _)| other.name() != limit.name()) {
            added.push(format!("{} ({text})", limit.name()));
        }
    }
    [added, removed, changed]
}

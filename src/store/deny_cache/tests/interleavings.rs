//! All orders in which a denial and a change of its budget may reach the cache (`make models`).

use loom::thread;

use super::super::*;
use crate::model::{Limit, Verdict};
use crate::units::{Mutex, Outcome, Quota};

/// A budget in the store, and what a process remembers of it.
struct Replica {
    /// `true` if the store's budget is exhausted.
    is_exhausted: Mutex<bool>,
    deny_cache: Arc<DenyCache>,
    check: Check,
}

impl Replica {
    fn new() -> Arc<Self> {
        let limit = Limit::token_bucket("api", Quota::per_minute(1)).unwrap();
        let hour = Duration::from_secs(60 * 60);
        Arc::new(Self {
            is_exhausted: Mutex::new(true),
            deny_cache: Arc::new(DenyCache::new([hour, hour], 8)),
            check: Check::new(&limit, "alice"),
        })
    }

    /// The store's decision.
    fn decide(&self) -> Decision {
        let is_exhausted = *self.is_exhausted.lock();
        let wait = is_exhausted.then_some(60_000_000);
        let outcome = Outcome::undelayed(!is_exhausted, false, 0, wait, 60_000_000);
        Decision::from(Verdict::new(self.check.limit().clone(), outcome, 0))
    }

    /// A check is sent, and its denial is remembered.
    fn check(&self) {
        let asked = self.deny_cache.asked(Instant::now());
        let decision = self.decide();
        if !decision.allowed() {
            let group = [self.check.clone()];
            self.deny_cache.record(&group, asked, &decision);
        }
    }

    /// The budget is reset.
    fn reset(&self) {
        let mut change = self.deny_cache.begin_change(self.check.budget());
        change.set_sent(true);
        *self.is_exhausted.lock() = false;
        change.answered(&Ok(self.decide()));
    }

    /// Returns whether the next check is denied without asking.
    fn denies_without_asking(&self) -> bool {
        let group = Group::from(self.check.clone());
        let mut is_asked = false;
        let answer = self.deny_cache.answer_or_ask(group, |_| {
            is_asked = true;
            Answer::ready(Ok(self.decide()))
        });
        drop(answer);
        !is_asked
    }
}

#[test]
fn denial_is_remembered_without_a_change() {
    loom::model(|| {
        let replica = Replica::new();
        replica.check();
        assert!(replica.denies_without_asking());
    });
}

#[test]
fn denial_from_before_a_change_is_never_the_answer_after_it() {
    loom::model(|| {
        let replica = Replica::new();
        let other = Arc::clone(&replica);
        let asking = thread::spawn(move || other.check());
        replica.reset();
        assert!(
            !replica.denies_without_asking(),
            "while the check is in flight"
        );
        asking.join().unwrap();
        assert!(
            !replica.denies_without_asking(),
            "once the check is answered"
        );
    });
}

#[test]
fn denial_from_before_two_changes_is_never_the_answer_after_either() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let replica = Replica::new();
        let [asks, resets] = [(); 2].map(|()| Arc::clone(&replica));
        let asking = thread::spawn(move || asks.check());
        let resetting = thread::spawn(move || resets.reset());
        replica.reset();
        assert!(!replica.denies_without_asking());
        asking.join().unwrap();
        resetting.join().unwrap();
        assert!(!replica.denies_without_asking());
    });
}

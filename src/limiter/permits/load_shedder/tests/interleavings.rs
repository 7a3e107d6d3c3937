//! All orders in which requests may take and give back the permits of a load shedder
//! (`make models`).

use std::hash::RandomState;

use loom::thread;

use super::super::*;
use crate::model::{Budget, Limit};

/// Asks for the only permit on three threads, and does something with what each gets.
fn on_three_threads<T: 'static>(act: fn(Option<Permit>) -> T) -> (Vec<T>, Arc<LoadShedder>) {
    let shedder = Arc::new(LoadShedder::default());
    let ask = |shedder: &Arc<LoadShedder>| {
        let shedder = Arc::clone(shedder);
        move || act(shedder.grant(budget()))
    };
    let threads = [(); 2].map(|()| thread::spawn(ask(&shedder)));
    let mut all = vec![ask(&shedder)()];
    all.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    (all, shedder)
}

fn budget() -> HashedBudget {
    let limit = Limit::concurrency("server", 1).unwrap();
    HashedBudget::new(&Budget::new(&limit, "server"), &RandomState::new())
}

#[test]
fn one_permit_is_granted_once_while_it_is_held() {
    loom::model(|| {
        let (permits, _shedder) = on_three_threads(|permit| permit);
        assert_eq!(permits.iter().flatten().count(), 1);
    });
}

#[test]
fn permit_that_is_given_back_is_granted_again() {
    loom::model(|| {
        let (granted, shedder) = on_three_threads(|permit| permit.is_some());
        assert!(granted.contains(&true), "the first to ask gets it");
        assert!(shedder.grant(budget()).is_some());
    });
}

//! All orders in which checks and calls may take and free the places of a lane (`make models`).

use loom::thread;

use super::super::*;
use super::{charge, lane};

/// Answers the calls of a place until none is queued, as `flight::send` does.
fn send(place: CallPlace) {
    let mut place = place;
    while let Some(next) = place.continue_or_free() {
        let lane = Arc::clone(next.lane());
        let leaving = lane.leaving.lock();
        place = next.with_first();
        drop(leaving);
        answer(&mut place);
    }
}

fn answer(place: &mut CallPlace) {
    place.is_worth_sending(Instant::now());
    place.batch().set_failure(|| Error::misuse("declined"));
    place.deliver();
    place.unload();
}

/// Sends the queued checks if a place is free, as `flight::start` does.
fn start(lane: &Arc<Lane>) {
    if let Some(place) = lane.place() {
        send(place);
    }
}

/// Asks, as `submit` and the first poll of its answer do.
fn submit_check(lane: &Arc<Lane>) -> Promised {
    let check = lane.add(&charge(), Urgency::Usual).unwrap();
    if check.is_alone {
        let leaving = lane.leaving.lock();
        let place = lane.place_alone(&check.promised, Instant::now());
        drop(leaving);
        match place {
            Some(mut place) => {
                answer(&mut place);
                if let Some(place) = place.continue_or_free() {
                    send(place);
                }
            }
            None => start(lane),
        }
    } else if check.has_place {
        start(lane);
    }
    check.promised
}

/// Asks on several threads at once. Afterwards, no check and no place is left behind.
fn ask_at_once(threads: usize) {
    let lane = lane();
    let asking: Vec<_> = (1..threads)
        .map(|_| {
            let lane = Arc::clone(&lane);
            thread::spawn(move || submit_check(&lane))
        })
        .collect();
    let mut checks = vec![submit_check(&lane)];
    checks.extend(asking.into_iter().map(|asking| asking.join().unwrap()));
    assert!(checks.iter_mut().all(|check| check.kept().is_some()));
    let queue = lane.queue();
    assert!(queue.batches.is_empty());
    assert_eq!((queue.unanswered, queue.in_flight), (0, 0));
}

#[test]
fn two_checks_are_answered_and_leave_no_place_in_use() {
    loom::model(|| ask_at_once(2));
}

#[test]
fn three_checks_are_answered_and_leave_no_place_in_use() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| ask_at_once(3));
}

#[test]
fn place_that_is_dropped_with_its_runtime_leaves_no_check_behind() {
    loom::model(|| {
        let lane = lane();
        let other = Arc::clone(&lane);
        let asking = thread::spawn(move || submit_check(&other));
        drop(lane.place());
        let mut check = asking.join().unwrap();
        assert!(check.kept().is_some());
        let queue = lane.queue();
        assert_eq!((queue.unanswered, queue.in_flight), (0, 0));
    });
}

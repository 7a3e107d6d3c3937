//! All orders in which the two ends of a promise may run (`make models`).

use loom::future::block_on;
use loom::thread;

use super::super::*;

fn promise() -> (Promise, Promised) {
    Promise::new(Instant::now(), &Arc::from("a server"))
}

/// Answers as a check that the server declined.
fn declined() -> Result<Decision, Error> {
    Err(Error::misuse("declined"))
}

#[test]
fn waiting_caller_gets_the_answer_and_is_woken_for_it() {
    loom::model(|| {
        let (promise, promised) = promise();
        let sender = thread::spawn(move || {
            promise.mark_sent();
            promise.answer(declined());
        });
        assert!(block_on(promised).unwrap_err().is_misuse());
        sender.join().unwrap();
    });
}

#[test]
fn caller_of_a_dropped_promise_gets_an_error_that_says_whether_it_was_sent() {
    loom::model(|| {
        let (promise, promised) = promise();
        let sender = thread::spawn(move || promise.mark_sent());
        let error = block_on(promised).unwrap_err();
        assert_eq!(error.may_have_charged(), sender.join().unwrap());
    });
}

#[test]
fn check_that_a_late_caller_calls_unsent_is_not_sent_afterwards() {
    loom::model(|| {
        let (promise, promised) = promise();
        let sender = thread::spawn(move || {
            let is_wanted = promise.mark_sent();
            promise.answer(declined());
            is_wanted
        });
        let Poll::Ready(Err(error)) = promised.give_up() else {
            panic!("a caller that gives up has an answer");
        };
        let is_sent = sender.join().unwrap();
        if !is_sent {
            assert!(!error.may_have_charged());
        }
        if error.is_unavailable() && !error.may_have_charged() {
            assert!(
                !is_sent,
                "it would be charged without its caller's knowledge"
            );
        }
    });
}

#[test]
fn dropped_caller_frees_its_waker_and_its_answer() {
    loom::model(|| {
        let (promise, promised) = promise();
        let state = Arc::clone(&promised.state);
        let sender = thread::spawn(move || promise.answer(declined()));
        drop(promised);
        sender.join().unwrap();
        assert!(matches!(*state.lock(), PromiseState::Over));
    });
}

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::super::connect::{self, Topology};
use super::*;

/// Creates a connection to a port on which nothing listens.
pub(in crate::store::redis) fn to_nowhere() -> Arc<KeptConnection> {
    let (topology, name) = connect::parse("redis://127.0.0.1:1", None, None).unwrap();
    let Topology::One(endpoint) = topology else {
        panic!("the URL names one server");
    };
    let terms = Arc::new(Terms {
        prefix: "test".into(),
        client_name: None,
        tags: Vec::new(),
    });
    let events = Arc::new(RedisEvents::new(name.into(), "store".into()));
    KeptConnection::new(endpoint, terms, events)
}

#[test]
fn attempt_that_ends_with_its_runtime_does_not_delay_the_attempts_of_others() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let ended = runtime();
    let running = runtime();
    let handle = ended.handle().clone();
    ended.shutdown_timeout(Duration::from_secs(60));
    let connection = to_nowhere();
    let failure = |answer: Result<Handle, String>| answer.err().unwrap();

    let in_ended = {
        let _inside = handle.enter();
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(answer) = pin!(connection.get()).poll(&mut cx) else {
            panic!("a runtime that ended cancels a task at once");
        };
        failure(answer)
    };
    let in_running = failure(running.block_on(connection.get()));

    assert_eq!(
        in_ended,
        "127.0.0.1:1: the attempt to connect ended with its tokio runtime"
    );
    assert!(in_running.contains("refused"), "{in_running}");
}

#[cfg(tollgate_loom)]
mod interleavings;

use tokio::time::advance;

use super::super::connection;
use super::super::node::Node;
use super::*;
use crate::model::{Check, Limit};
use crate::units::Quota;

/// Creates a lane. No test connects to its server.
pub(super) fn lane() -> Arc<Lane> {
    let node = Node {
        host: String::new(),
        connection: connection::tests::to_nowhere(),
        breaker: None,
    };
    let settings = LaneSettings {
        deadline: Duration::from_secs(60),
        max_waiting: 100,
        clock: None,
        deny_cache: None,
    };
    Lane::new(
        LaneRoute::Fixed(Arc::new(node)),
        "test".to_owned(),
        settings,
    )
}

pub(super) fn charge() -> Operation {
    let limit = Limit::token_bucket("api", Quota::per_minute(1)).unwrap();
    Operation::Charge(Check::new(&limit, "alice").into())
}

/// A call of a caller that is not polled again starts no other call. So the pace is counted from
/// the newest call of a task.
#[tokio::test(start_paused = true)]
async fn check_behind_a_blocked_caller_leaves_when_the_pace_of_the_call_before_is_over() {
    let lane = lane();
    let ask = || lane.add(&charge(), Urgency::Usual).unwrap();
    let pace = lane.settings.pace();

    let _first = ask();
    let of_task = lane.place().unwrap().with_first();
    advance(pace / 2).await;
    let second = ask();
    assert!(second.is_alone);
    let of_caller = lane.place_alone(&second.promised, Instant::now()).unwrap();

    assert!(
        !ask().has_place,
        "the call before left less than a pace ago"
    );
    advance(pace / 2).await;
    assert!(ask().has_place);
    drop((of_task, of_caller));
}

#[tokio::test(start_paused = true)]
async fn check_behind_two_blocked_callers_leaves_at_once() {
    let lane = lane();
    let ask = || lane.add(&charge(), Urgency::Usual).unwrap();
    let callers = [(); 2].map(|()| {
        let check = ask();
        assert!(check.is_alone);
        lane.place_alone(&check.promised, Instant::now()).unwrap()
    });

    let third = ask();
    assert!(!third.is_alone && third.has_place);
    let of_task = lane.place().unwrap().with_first();
    assert!(!ask().has_place, "the call of the task has just left");
    advance(lane.settings.pace()).await;
    assert!(ask().has_place);
    drop((callers, of_task));
}

use proptest::prelude::*;

use super::*;
use crate::units::Receipt;

/// A change of a budget, or of the time or the quota by which it is decided.
#[derive(Clone, Copy, Debug)]
enum Event {
    Charge(u64),
    Overdraft(u64),
    Refund(u32),
    /// The clock steps back by so many microseconds.
    StepBack(u64),
    /// From now on, checks have another quota.
    Quota(Bucket),
}

fn quotas() -> impl Strategy<Value = Bucket> {
    (1..4_u64, 1..2_000_u64, 1..6_u64).prop_map(|(units, micros, capacity)| Bucket {
        rate: Rate::new(units, micros),
        capacity,
    })
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..8_u64).prop_map(Event::Charge),
        1 => (1..4_u64).prop_map(Event::Overdraft),
        1 => (1..4_u32).prop_map(Event::Refund),
        1 => (1..20_000_u64).prop_map(Event::StepBack),
        1 => quotas().prop_map(Event::Quota),
    ]
}

proptest! {
    #[test]
    fn charge_on_the_fast_path_is_the_charge_that_would_be_decided(
        first in quotas(),
        history in prop::collection::vec((0..3_000_u64, events()), 1..60),
    ) {
        let mut quota = first;
        let mut state = None;
        let mut now = Timestamp::from_micros(1_000_000_000);
        let mut receipt = Receipt::default();
        for (later, event) in history {
            now = now + later;
            match event {
                Event::Charge(units) => {
                    let mut fast = state;
                    let mut slow = state;
                    let cost = Cost::units(units);
                    let decided = quota.decide(&mut slow, now, cost, Effect::Commit, false);
                    let level = fast.as_mut();
                    match level.and_then(|level| quota.charge(level, now, units)) {
                        Some(outcome) => {
                            prop_assert_eq!(outcome, decided);
                            prop_assert_eq!(fast, slow);
                        }
                        None => prop_assert_eq!(fast, state),
                    }
                    if decided.allowed {
                        receipt = Receipt {
                            at: now,
                            cost: units as u32,
                            drains_at: now + decided.drains_after,
                        };
                    }
                    state = slow;
                }
                Event::Overdraft(units) => quota.overdraw(&mut state, now, units, 10),
                Event::Refund(units) => {
                    let units = units.min(receipt.cost).into();
                    quota.refund(&mut state, now, receipt, units, false);
                }
                Event::StepBack(micros) => {
                    now = Timestamp::from_micros(now.as_micros() - micros);
                }
                Event::Quota(next) => quota = next,
            }
        }
    }
}

#[test]
fn charge_of_a_plain_level_is_on_the_fast_path_and_nothing_else() {
    let quota = Bucket {
        rate: Rate::new(1, 1_000),
        capacity: 2,
    };
    let at = Timestamp::from_micros;
    let mut state = None;
    let charge = |state: &mut Option<Level>, now| {
        quota.decide(state, at(now), Cost::units(1), Effect::Commit, false)
    };
    assert!(charge(&mut state, 5_000).allowed);
    let mut level = state.unwrap();

    // Nothing, more than fits, and the time before the last charge.
    assert_eq!(quota.charge(&mut level, at(5_000), 0), None);
    assert_eq!(quota.charge(&mut level, at(5_000), 2), None);
    assert_eq!(quota.charge(&mut level, at(4_999), 1), None);
    // Another rate.
    let slower = Bucket {
        rate: Rate::new(1, 2_000),
        ..quota
    };
    assert_eq!(slower.charge(&mut level, at(5_000), 1), None);
    assert_eq!(Some(level), state);

    let outcome = quota.charge(&mut level, at(5_000), 1).unwrap();
    assert_eq!((outcome.remaining, outcome.reset_after), (0, 2_000));
    // Units were given back.
    level.set_given_back(GivenBack {
        returned: 1_000,
        ..GivenBack::default()
    });
    assert_eq!(quota.charge(&mut level, at(9_000), 1), None);
}

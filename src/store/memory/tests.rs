//! Model tests: the table and the shard against plain maps, while they grow and shrink.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;
use proptest::prelude::*;

use super::shard::{BudgetAction, Shard};
use crate::algorithm::State;
use crate::model::{Change, Check, Key, Limit};
use crate::store::fingerprint::fingerprint;
use crate::store::group::{apply_change, charge, peek};
use crate::store::table::{Cursor, Hashed, Table};
use crate::units::{Quota, Receipt, Timestamp};

/// A run of operations on a range of keys, so that the table grows and shrinks by hundreds.
#[derive(Clone, Debug)]
enum KeyRange {
    Add(u16, u16),
    Remove(u16, u16),
    /// Walks over a number of places, and removes the entry at every n-th.
    Walk(u16, u8),
    /// Sweeps a number of times, some places at a time, and removes all multiples of a number.
    Sweep(u16, usize, u16),
}

fn run() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        (0..6_000_u16, 0..3_000_u16).prop_map(|(from, count)| KeyRange::Add(from, count)),
        (0..6_000_u16, 0..3_000_u16).prop_map(|(from, count)| KeyRange::Remove(from, count)),
        (0..16_000_u16, 1..4_u8).prop_map(|(places, nth)| KeyRange::Walk(places, nth)),
        (0..16_000_u16, 1..64_usize, 1..4_u16)
            .prop_map(|(times, places, of)| KeyRange::Sweep(times, places, of)),
    ]
}

struct HashedNumber {
    number: u16,
    hash: u64,
}

impl Hashed for HashedNumber {
    fn hash(&self) -> u64 {
        self.hash
    }
}

/// All entries, in the order of their places.
fn walk(table: &Table<HashedNumber>) -> Vec<u16> {
    let mut found = Vec::new();
    let mut place = Cursor::default();
    let mut through = false;
    while !through {
        found.extend(table.get(place).map(|it| it.number));
        (place, through) = table.next(place);
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn table_holds_what_a_plain_set_holds(runs in prop::collection::vec(run(), 1..30)) {
        // Keys are text. The hasher spreads text evenly, but with one seed in 2,000 not bare
        // numbers.
        let hasher = DefaultHashBuilder::default();
        let hash = |number: u16| hasher.hash_one(number.to_string());
        let mut table = Table::default();
        let mut model = BTreeSet::new();
        let mut cursor = Cursor::default();
        for run in runs {
            match run {
                KeyRange::Add(from, count) => for number in from..from + count {
                    if model.insert(number) {
                        table.insert(HashedNumber { number, hash: hash(number) });
                    }
                    let found = table.find_mut(hash(number), |it| it.number == number);
                    prop_assert!(found.is_some());
                },
                KeyRange::Remove(from, count) => for number in from..from + count {
                    let removed = table.remove(hash(number), |it| it.number == number);
                    prop_assert_eq!(removed.is_some(), model.remove(&number));
                },
                KeyRange::Walk(places, nth) => for step in 0..places {
                    let removed = table.get(cursor).filter(|_| step % u16::from(nth) == 0);
                    if let Some(number) = removed.map(|it| it.number) {
                        table.remove_at(cursor);
                        prop_assert!(model.remove(&number));
                    }
                    (cursor, _) = table.next(cursor);
                },
                KeyRange::Sweep(times, places, of) => for _ in 0..times {
                    let swept = RefCell::new(Vec::new());
                    table.sweep(&mut cursor, places, |&mut HashedNumber { number, .. }| {
                        let is_over = number % of == 0;
                        swept.borrow_mut().extend(is_over.then_some(number));
                        is_over
                    });
                    for number in swept.into_inner() {
                        prop_assert!(model.remove(&number));
                    }
                },
            }
            prop_assert_eq!(table.len(), model.len());
            let mut all = walk(&table);
            all.sort_unstable();
            prop_assert_eq!(all, model.iter().copied().collect::<Vec<_>>());
            prop_assert!(table.longest_move() <= 1_200, "{}", table.longest_move());
        }
    }

    #[test]
    fn shard_decides_as_a_plain_map_while_it_grows_expires_and_shrinks(
        runs in prop::collection::vec((0..6_000_u64, 0..4_000_u64, 0..4_000_000_u64), 1..12),
        cap in prop::option::of(1_usize..4_000),
    ) {
        let limit = Limit::token_bucket("limit", Quota::per_second(2)).unwrap();
        let secrets = Default::default();
        let mut shard = Shard::new(cap);
        let mut model: HashMap<u64, Option<State>> = HashMap::new();
        let mut now = Timestamp::from_micros(1_000_000);
        for (from, count, wait) in runs {
            for number in from..from + count {
                let key = Key::from(number);
                let check = Check::new(&limit, &key);
                let is_reset = number % 7 == 0;
                let decide = |state: &mut Option<State>| match is_reset {
                    true => apply_change(check.budget(), &Change::Reset, state, now),
                    false => charge(&check, state, now),
                };
                let action = match is_reset {
                    true => BudgetAction::Change(&Change::Reset),
                    false => BudgetAction::Charge,
                };
                let of = fingerprint(&secrets, check.limit(), check.key());
                let outcome = shard.apply(of, &limit, action, now, decide);
                if let Some(cap) = cap {
                    prop_assert!(shard.len() <= cap, "{} of {cap}", shard.len());
                } else {
                    let state = model.entry(number).or_default();
                    prop_assert_eq!(outcome.ok(), Some(decide(state)));
                }
                shard.sweep(now);
            }
            now = now + wait;
        }
        // Now all budgets have expired, and sweeps delete them.
        now = now + 10_000_000;
        for _ in 0..2_500 {
            now = now + 4_000;
            shard.sweep(now);
        }
        prop_assert_eq!(shard.len(), 0);
    }
}

/// The same key under several quotas of each kind of state.
fn limits() -> Vec<Vec<Limit>> {
    let quotas = [
        Quota::per_second(5),
        Quota::per_minute(90),
        Quota::per_second(2),
    ];
    let of = |make: &dyn Fn(Quota) -> Limit| quotas.map(make).to_vec();
    vec![
        of(&|quota| Limit::token_bucket("limit", quota).unwrap()),
        of(&|quota| Limit::fixed_window("limit", quota).unwrap()),
        of(&|quota| Limit::sliding_window_with("limit", quota, 4).unwrap()),
        of(&|quota| Limit::sliding_log("limit", quota).unwrap()),
    ]
}

proptest! {
    #[test]
    fn state_is_not_deletable_before_it_expires(
        kind in 0..4_usize,
        steps in prop::collection::vec((0..3_usize, 0..12_u8, -2_000_000..40_000_000_i64), 1..40),
    ) {
        let limits = &limits()[kind];
        let mut state = None;
        let mut now = 1_790_000_000_000_000_i64;
        let mut receipt = Receipt::default();
        for (limit, op, pause) in steps {
            now += if op % 3 == 0 { pause } else { pause / 100 };
            let time = Timestamp::from_micros(now.unsigned_abs());
            let check = Check::new(&limits[limit], "key");
            let state = &mut state;
            let budget = check.budget();
            match op {
                0 => _ = apply_change(budget, &Change::Reset, state, time),
                1..=3 => _ = apply_change(budget, &Change::give_back(receipt), state, time),
                4 => _ = peek(&check, state, time),
                _ => {
                    let is_charged = charge(&check, state, time).allowed && check.cost() > 0;
                    receipt = match is_charged {
                        true => Receipt::of_charge(time, check.cost()),
                        false => receipt,
                    };
                }
            }
            if let Some(state) = state {
                let end = state.expiry();
                prop_assert!(!state.is_deletable(end.saturating_sub(1)), "{:?}", state);
                prop_assert!(!state.is_deletable(time) || end <= time, "{:?}", state);
                // At most a window of 75 s later.
                prop_assert!(state.is_deletable(end + 75_000_000), "{:?}", state);
            }
        }
    }
}

#[test]
fn sliding_window_with_a_refund_is_swept_at_most_a_window_later() {
    let limit = Limit::sliding_window_with("limit", Quota::per_second(9), 4).unwrap();
    let secrets = Default::default();
    let mut shard = Shard::new(None);
    let second = |number: u64| Timestamp::from_micros(number * 1_000_000);
    for number in 0..100_u64 {
        let check = Check::new(&limit, Key::from(number));
        let of = fingerprint(&secrets, check.limit(), check.key());
        let mut charge_at = |now| {
            shard
                .apply(of, &limit, BudgetAction::Charge, now, |state| {
                    charge(&check, state, now)
                })
                .unwrap()
        };
        charge_at(second(1));
        charge_at(second(2));
        let refund = Change::give_back(Receipt::of_charge(second(2), 1));
        let action = BudgetAction::Change(&refund);
        let refunded = shard.apply(of, &limit, action, second(2), |state| {
            apply_change(check.budget(), &refund, state, second(2))
        });
        assert_eq!(refunded.unwrap().remaining, 8);
    }
    let mut left_at = |now: Timestamp| {
        for step in 0..32 {
            shard.sweep(now + step * 4_000);
        }
        shard.len()
    };
    assert_eq!(left_at(second(2)), 100);
    assert_eq!(left_at(second(3) + 500_000), 0);
}

#[test]
fn shard_sweeps_32_places_when_16_budgets_were_added_and_every_4_ms() {
    let limit = Limit::gcra("limit", Quota::per_second(1)).unwrap();
    let secrets = Default::default();
    let mut shard = Shard::new(None);
    let add = |shard: &mut Shard, number: u64, now| {
        let check = Check::new(&limit, Key::from(number));
        let of = fingerprint(&secrets, check.limit(), check.key());
        let charged = shard.apply(of, &limit, BudgetAction::Charge, now, |state| {
            charge(&check, state, now)
        });
        assert!(charged.unwrap().allowed);
    };
    let sweep = |shard: &mut Shard, now| {
        let before = shard.len();
        shard.sweep(now);
        before - shard.len()
    };
    let now = Timestamp::from_micros(1_000_000);
    // Nothing has expired yet.
    for number in 0..320 {
        add(&mut shard, number, now);
        assert_eq!(sweep(&mut shard, now), 0);
    }
    let mut now = now + 60_000_000;
    assert!((1..=32).contains(&sweep(&mut shard, now)));
    for number in 1_000..1_015 {
        add(&mut shard, number, now);
        assert_eq!(sweep(&mut shard, now), 0);
    }
    add(&mut shard, 1_015, now);
    assert!((1..=32).contains(&sweep(&mut shard, now)));
    // A group takes its budgets out of the table, and puts them back.
    for number in (1_000..1_016).cycle().take(100) {
        let key = Key::from(number);
        let of = fingerprint(&secrets, &limit, &key);
        let budget = shard.take(of);
        shard.put(budget);
        assert_eq!(sweep(&mut shard, now), 0);
    }
    for _ in 0..3 {
        assert_eq!(sweep(&mut shard, now + 3_999), 0);
        now = now + 4_000;
        assert!((1..=32).contains(&sweep(&mut shard, now)));
    }
}

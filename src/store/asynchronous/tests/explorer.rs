//! Goes through the worlds that a model can reach.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;

/// A model: the worlds after each event, what tells a world from others, and what holds in each.
pub(super) struct Explorer<N, H, C> {
    pub(super) next: N,
    pub(super) hash: H,
    pub(super) check: C,
}

impl<N, H, C> Explorer<N, H, C> {
    /// Goes through all worlds, the nearest ones first, but not much more than `at_most`. Returns
    /// how many there were.
    pub(super) fn explore<W, E>(&self, first: W, at_most: usize) -> usize
    where
        N: Fn(&W) -> Vec<(E, W)>,
        H: Fn(&W) -> u64,
        C: Fn(&W) -> Result<(), String>,
        E: Debug,
    {
        let mut seen = HashSet::from([(self.hash)(&first)]);
        // Each world that was reached: the place of the one before, and the event.
        let mut reached = vec![(0, None)];
        let mut worlds = VecDeque::from([(first, 0)]);
        while let Some((world, place)) = worlds.pop_front() {
            for (event, next) in (self.next)(&world) {
                if let Err(broken) = (self.check)(&next) {
                    let history = history(&reached, place);
                    panic!("{broken}: {history:?}, {event:?}");
                }
                if seen.len() < at_most && seen.insert((self.hash)(&next)) {
                    reached.push((place, Some(event)));
                    worlds.push_back((next, reached.len() - 1));
                }
            }
        }
        seen.len()
    }

    /// Follows one history, in which `choose` takes one of the events.
    pub(super) fn walk<W, E>(
        &self,
        first: W,
        steps: usize,
        mut choose: impl FnMut(&[(E, W)]) -> usize,
    ) where
        N: Fn(&W) -> Vec<(E, W)>,
        C: Fn(&W) -> Result<(), String>,
        E: Debug,
    {
        let mut world = first;
        let mut history = Vec::new();
        for _ in 0..steps {
            let mut next = (self.next)(&world);
            if next.is_empty() {
                return;
            }
            let (event, after) = {
                let chosen = choose(&next);
                next.swap_remove(chosen)
            };
            history.push(event);
            world = after;
            if let Err(broken) = (self.check)(&world) {
                panic!("{broken}: {history:?}");
            }
        }
    }
}

/// The events that led to a world.
fn history<E>(reached: &[(usize, Option<E>)], mut place: usize) -> Vec<&E> {
    let mut events = Vec::new();
    while place > 0 {
        events.extend(reached[place].1.as_ref());
        place = reached[place].0;
    }
    events.reverse();
    events
}

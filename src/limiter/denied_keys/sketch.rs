//! The most frequent of a stream, in bounded memory, by the space-saving algorithm (Metwally,
//! Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams",
//! 2005).
//!
//! There are `capacity` counters. A new item takes the counter with the smallest count and adds to
//! it, so a count is too large by at most the one that was taken over: its `error`. After `n` items
//! in all, that is at most `n / capacity`, and every item with more than that has a counter.

use hashbrown::HashTable;

/// A counted item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted<T> {
    pub(super) item: T,
    pub(super) count: u64,
    /// The real count is at least `count - error`.
    pub(super) error: u64,
}

pub(super) struct Sketch<T> {
    capacity: usize,
    /// Places in the vectors, by the hash of their items.
    places: HashTable<usize>,
    hashes: Vec<u64>,
    /// Apart from the items, because the smallest is searched for often.
    counts: Vec<u64>,
    errors: Vec<u64>,
    items: Vec<T>,
}

impl<T> Sketch<T> {
    /// An empty sketch, which allocates as it fills. The capacity is at least one.
    pub(super) const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            places: HashTable::new(),
            hashes: Vec::new(),
            counts: Vec::new(),
            errors: Vec::new(),
            items: Vec::new(),
        }
    }

    /// Counts an item with this hash `times` over. `new` makes it if it has no counter yet.
    pub(super) fn add(
        &mut self,
        hash: u64,
        times: u64,
        is_it: impl Fn(&T) -> bool,
        new: impl FnOnce() -> T,
    ) {
        let Self {
            places,
            hashes,
            counts,
            errors,
            items,
            ..
        } = self;
        if let Some(place) = places.find(hash, |place| is_it(&items[*place])) {
            counts[*place] += times;
            return;
        }
        let place = if items.len() < self.capacity {
            hashes.push(hash);
            counts.push(times);
            errors.push(0);
            items.push(new());
            items.len() - 1
        } else {
            let smallest = counts.iter().copied().min().unwrap_or(0);
            let Some(place) = counts.iter().position(|count| *count == smallest) else {
                return;
            };
            if let Ok(old) = places.find_entry(hashes[place], |it| *it == place) {
                old.remove();
            }
            (hashes[place], counts[place], errors[place]) = (hash, smallest + times, smallest);
            items[place] = new();
            place
        };
        places.insert_unique(hash, place, |place| hashes[*place]);
    }

    /// All counted items, in no order.
    pub(super) fn counted(&self) -> impl Iterator<Item = Counted<&T>> {
        let numbers = self.counts.iter().zip(&self.errors);
        let counted = self.items.iter().zip(numbers);
        counted.map(|(item, (count, error))| Counted {
            item,
            count: *count,
            error: *error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::hash::{BuildHasher, RandomState};

    use proptest::prelude::*;

    use super::*;

    fn sketch_of(capacity: usize, items: &[u8]) -> Vec<Counted<u8>> {
        let mut sketch = Sketch::new(capacity);
        let hasher = RandomState::new();
        for item in items {
            sketch.add(hasher.hash_one(item), 1, |it| it == item, || *item);
        }
        sketch
            .counted()
            .map(|Counted { item, count, error }| Counted {
                item: *item,
                count,
                error,
            })
            .collect()
    }

    #[test]
    fn few_items_are_counted_exactly() {
        let mut counted = sketch_of(3, &[7, 8, 7, 9, 7, 8]);
        counted.sort_by_key(|it| it.item);
        let exactly = |item, count| Counted {
            item,
            count,
            error: 0,
        };
        assert_eq!(counted, [exactly(7, 3), exactly(8, 2), exactly(9, 1)]);
    }

    #[test]
    fn new_item_takes_over_the_smallest_count() {
        let counted = sketch_of(2, &[1, 1, 1, 2, 3]);
        assert!(counted.contains(&Counted {
            item: 1,
            count: 3,
            error: 0
        }));
        assert!(counted.contains(&Counted {
            item: 3,
            count: 2,
            error: 1
        }));
    }

    proptest! {
        #[test]
        fn counts_are_bounds_of_the_real_ones_and_frequent_items_are_found(
            capacity in 1..20_usize,
            items in prop::collection::vec(prop_oneof![0..5_u8, any::<u8>()], 0..500),
        ) {
            let counted = sketch_of(capacity, &items);
            let mut real = HashMap::<u8, u64>::new();
            items.iter().for_each(|item| *real.entry(*item).or_default() += 1);
            prop_assert!(counted.len() == capacity.min(real.len()));
            let most_wrong = items.len() as u64 / capacity as u64;
            for Counted { item, count, error } in &counted {
                let real = real[item];
                prop_assert!(real <= *count && real + error >= *count && *error <= most_wrong);
            }
            for (item, count) in real {
                let is_found = counted.iter().any(|it| it.item == item);
                prop_assert!(is_found || count <= most_wrong, "{item} came {count} times");
            }
            let total: u64 = counted.iter().map(|it| it.count).sum();
            prop_assert_eq!(total, items.len() as u64);
        }
    }
}

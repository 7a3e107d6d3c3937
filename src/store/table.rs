//! A hash table that grows and shrinks in small steps (linear hashing).
//!
//! A table that doubles moves all entries at once, and frees the old memory at once. With 100,000
//! entries, that stalled a check for 14 ms. After millions of small frees, the free of a large
//! allocation made glibc merge them all, which took a second. So this table is a row of small
//! segments. It grows and shrinks by one segment, which exchanges entries with one other segment.

use hashbrown::HashTable;

/// The average number of entries in a segment above which the row grows. A segment has half to
/// twice as many. With 48, checks of 100,000 keys in turn took a sixth longer.
const PER_SEGMENT: usize = 384;

/// The row shrinks when its segments have this many times fewer entries.
const SHRINK: usize = 2;

/// The segment index starts at this bit of the hash. Inside a segment, hashbrown uses the lowest
/// and the highest bits. The bits from 32 on choose the shard.
const SEGMENT_BITS: u32 = 10;

/// A place in the table, with or without an entry. It stays valid while the table changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    segment: usize,
    bucket: usize,
}

pub(super) struct Table<T> {
    /// Never empty.
    segments: Vec<HashTable<T>>,
    len: usize,
}

/// An entry of a table.
pub(super) trait Hashed {
    /// The hash by which the table finds it.
    fn hash(&self) -> u64;
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            segments: vec![HashTable::new()],
            len: 0,
        }
    }
}

impl<T: Hashed> Table<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn find_mut(&mut self, hash: u64, is: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.segment_mut(hash)?.find_mut(hash, is)
    }

    pub(super) fn remove(&mut self, hash: u64, is: impl Fn(&T) -> bool) -> Option<T> {
        let found = self.segment_mut(hash)?.find_entry(hash, is).ok()?;
        let (entry, _) = found.remove();
        self.removed();
        Some(entry)
    }

    /// Adds an entry that is not in the table.
    pub(super) fn insert(&mut self, entry: T) {
        let hash = entry.hash();
        if let Some(segment) = self.segment_mut(hash) {
            segment.insert_unique(hash, entry, T::hash);
            self.len += 1;
        }
        if self.len > self.segments.len() * PER_SEGMENT {
            self.split();
        }
    }

    /// The entry at a place, if there is one.
    pub(super) fn get(&self, place: Cursor) -> Option<&T> {
        self.segments.get(place.segment)?.get_bucket(place.bucket)
    }

    pub(super) fn remove_at(&mut self, place: Cursor) {
        let segment = self.segments.get_mut(place.segment);
        if let Some(Ok(entry)) = segment.map(|it| it.get_bucket_entry(place.bucket)) {
            entry.remove();
            self.removed();
        }
    }

    /// The place after this one, and whether it wraps around to the first.
    pub(super) fn next(&self, place: Cursor) -> (Cursor, bool) {
        let Cursor { segment, bucket } = place;
        if self
            .segments
            .get(segment)
            .is_some_and(|table| bucket + 1 < table.num_buckets())
        {
            return (
                Cursor {
                    segment,
                    bucket: bucket + 1,
                },
                false,
            );
        }
        match segment + 1 {
            next if next < self.segments.len() => (
                Cursor {
                    segment: next,
                    bucket: 0,
                },
                false,
            ),
            _ => (Cursor::default(), true),
        }
    }

    /// Removes the entries for which `is_over` holds from the next few places of one segment. At
    /// its end, moves on to the next segment. Returns whether that was the last segment.
    pub(super) fn sweep(
        &mut self,
        from: &mut Cursor,
        steps: usize,
        mut is_over: impl FnMut(&mut T) -> bool,
    ) -> bool {
        let before = *from;
        let segments = self.segments.len();
        let Some(segment) = self.segments.get_mut(before.segment) else {
            *from = Cursor::default();
            return true;
        };
        let end = before.bucket + steps;
        let mut removed = 0;
        for bucket in before.bucket..end {
            if segment.get_bucket_mut(bucket).is_some_and(&mut is_over)
                && let Ok(entry) = segment.get_bucket_entry(bucket)
            {
                entry.remove();
                removed += 1;
            }
        }
        let through = end >= segment.num_buckets();
        if through {
            // A nearly empty segment frees memory.
            if segment.len() < segment.capacity() / 8 {
                segment.shrink_to(segment.len() * 2, T::hash);
            }
            let next = before.segment + 1;
            *from = Cursor {
                segment: if next < segments { next } else { 0 },
                bucket: 0,
            };
        } else {
            from.bucket = end;
        }
        for _ in 0..removed {
            self.removed();
        }
        through && from.segment == 0
    }

    /// The size of the largest segment. No operation moves more entries.
    #[cfg(test)]
    pub(super) fn longest_move(&self) -> usize {
        self.segments
            .iter()
            .map(HashTable::len)
            .max()
            .unwrap_or_default()
    }

    fn segment_mut(&mut self, hash: u64) -> Option<&mut HashTable<T>> {
        let index = index(hash, self.segments.len());
        self.segments.get_mut(index)
    }

    fn removed(&mut self) {
        self.len -= 1;
        let fewer = self.segments.len() - 1;
        if fewer > 0 && self.len < fewer * PER_SEGMENT / SHRINK {
            self.merge();
        }
    }

    /// Adds a segment, with entries of its buddy.
    fn split(&mut self) {
        let new = self.segments.len();
        let Some(buddy) = self.segments.get_mut(buddy(new)) else {
            return;
        };
        let mut segment = HashTable::with_capacity(buddy.len() / 2);
        for entry in buddy.extract_if(|entry| index(entry.hash(), new + 1) == new) {
            segment.insert_unique(entry.hash(), entry, T::hash);
        }
        self.segments.push(segment);
    }

    /// Removes the last segment. Its entries move to its buddy.
    fn merge(&mut self) {
        let Some(last) = self.segments.pop() else {
            return;
        };
        let buddy = buddy(self.segments.len());
        if let Some(buddy) = self.segments.get_mut(buddy) {
            buddy.reserve(last.len(), T::hash);
            for entry in last {
                buddy.insert_unique(entry.hash(), entry, T::hash);
            }
        }
        if self.segments.len() < self.segments.capacity() / 8 {
            self.segments.shrink_to(self.segments.len() * 2);
        }
    }
}

/// The segment of a hash, by as many bits as number all segments, or by one bit less if that
/// segment does not exist yet.
fn index(hash: u64, segments: usize) -> usize {
    let mask = segments.next_power_of_two() - 1;
    let index = (hash >> SEGMENT_BITS) as usize & mask;
    if index < segments {
        index
    } else {
        index & (mask >> 1)
    }
}

/// The segment that a new one splits, its number without the highest bit.
fn buddy(new: usize) -> usize {
    new ^ (1 << new.ilog2())
}

//! Overrides by limit and key.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
#[cfg(all(feature = "config", feature = "redis"))]
use tokio::task::yield_now;

use crate::model::{Key, Limit, Override};
use crate::telemetry;
use crate::units::{Mutex, Timestamp};

/// A power of two.
const SHARDS: usize = 64;

/// A power of two. With the most overrides, a tenth of the bits is set.
const MARKS: usize = 1 << 20;

/// The most overrides that are replaced before another task can run, in about a millisecond.
#[cfg(all(feature = "config", feature = "redis"))]
const STEP: usize = 1_000;

/// A table that all threads look into, and few change.
pub(super) struct OverrideTable {
    len: AtomicUsize,
    hasher: DefaultHashBuilder,
    /// A bit for each override that was added, by its hash. A key without an override, as most are,
    /// needs no lock. Created with the first override.
    marks: OnceLock<Box<[AtomicU64]>>,
    shards: [Mutex<HashTable<Arc<TableEntry>>>; SHARDS],
    /// Wakes callers that wait for units or permits, which look their overrides up again.
    changed: Notify,
}

pub(super) struct TableEntry {
    pub(super) given: Override,
    /// The set of limits whose file has it. `None` if it was set at run time.
    owner: Option<Weak<()>>,
    /// The limit that it was last applied to, and the limit in its place, if there is one.
    last: Mutex<Option<(Limit, Option<Limit>)>>,
    is_reported: AtomicBool,
}

impl Default for OverrideTable {
    fn default() -> Self {
        Self {
            len: AtomicUsize::new(0),
            hasher: DefaultHashBuilder::default(),
            marks: OnceLock::new(),
            shards: std::array::from_fn(|_| Mutex::default()),
            changed: Notify::new(),
        }
    }
}

impl OverrideTable {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The override that is in force, and the time, which is read only if there is one.
    pub(super) fn find(
        &self,
        limit: &str,
        key: &Key,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<(Arc<TableEntry>, Timestamp)> {
        let hash = self.hash(limit, key);
        if !self.has_mark(hash) {
            return None;
        }
        let shard = self.shard(hash);
        let entry = shard.lock().find(hash, |it| it.is_for(limit, key)).cloned();
        let entry = entry?;
        let now = now();
        entry.is_in_force(now).then_some((entry, now))
    }

    /// The next change after this call. A set of limits that is dropped ends the overrides of its
    /// file without one.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Adds an override, or replaces the one of the same limit and key.
    pub(super) fn insert(&self, given: Override, owner: Option<Weak<()>>) {
        self.add(given, owner);
        self.changed.notify_waiters();
    }

    fn add(&self, given: Override, owner: Option<Weak<()>>) {
        let hash = self.hash(given.limit_name(), given.key());
        self.mark(hash);
        let entry = Arc::new(TableEntry {
            given,
            owner,
            last: Mutex::default(),
            is_reported: AtomicBool::new(false),
        });
        let mut shard = self.shard(hash).lock();
        let limit = entry.given.limit_name();
        let key = entry.given.key();
        match shard.find_mut(hash, |it| it.is_for(limit, key)) {
            // Set and then announced, it is the same.
            Some(known) if known.given == entry.given && known.owner.is_none() => {}
            Some(known) => *known = entry,
            None => {
                let rehash =
                    |it: &Arc<TableEntry>| self.hash(it.given.limit_name(), it.given.key());
                shard.insert_unique(hash, entry, rehash);
                self.len.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Removes an override. Returns whether it was in force.
    pub(super) fn remove(&self, limit: &str, key: &Key, now: Timestamp) -> bool {
        let hash = self.hash(limit, key);
        let mut shard = self.shard(hash).lock();
        let Ok(found) = shard.find_entry(hash, |it| it.is_for(limit, key)) else {
            return false;
        };
        let (entry, _) = found.remove();
        self.len.fetch_sub(1, Ordering::Relaxed);
        drop(shard);
        self.changed.notify_waiters();
        entry.is_in_force(now)
    }

    /// Removes all overrides but those to keep.
    pub(super) fn retain(&self, keep: impl Fn(&TableEntry) -> bool) {
        for shard in &self.shards {
            self.retain_in(shard, &keep);
        }
    }

    fn retain_in(
        &self,
        shard: &Mutex<HashTable<Arc<TableEntry>>>,
        keep: impl Fn(&TableEntry) -> bool,
    ) {
        let mut shard = shard.lock();
        let before = shard.len();
        shard.retain(|entry| keep(entry));
        let removed = before.saturating_sub(shard.len());
        self.len.fetch_sub(removed, Ordering::Relaxed);
    }

    /// Replaces the overrides of an owner. A key that keeps its override has it at all times.
    pub(super) fn replace(&self, owner: Option<&Arc<()>>, all: Vec<Override>) {
        let kept: HashSet<_> = all.iter().map(|one| self.hash_of(one)).collect();
        self.retain(|entry| self.is_kept(entry, owner, &kept));
        all.into_iter().for_each(|one| self.add_new(one, owner));
        self.changed.notify_waiters();
    }

    /// Replaces the overrides that were set at run time. There can be many, so other tasks run in
    /// between.
    #[cfg(all(feature = "config", feature = "redis"))]
    pub(super) async fn replace_in_steps(&self, all: Vec<Override>) {
        let mut kept = HashSet::with_capacity(all.len());
        for some in all.chunks(STEP) {
            kept.extend(some.iter().map(|one| self.hash_of(one)));
            yield_now().await;
        }
        for shard in &self.shards {
            self.retain_in(shard, |entry| self.is_kept(entry, None, &kept));
            yield_now().await;
        }
        let mut added = 0;
        for one in all {
            self.add_new(one, None);
            added += 1;
            if added % STEP == 0 {
                yield_now().await;
            }
        }
        self.changed.notify_waiters();
    }

    /// Returns whether an entry stays when the overrides of an owner are replaced by those with
    /// these hashes. No client foresees the hashes, so two of them are not equal by intent.
    fn is_kept(&self, entry: &TableEntry, owner: Option<&Arc<()>>, kept: &HashSet<u64>) -> bool {
        match entry.is_of(owner) {
            true => kept.contains(&self.hash_of(&entry.given)),
            false => entry.has_owner(),
        }
    }

    /// Adds an override, unless it is there already.
    fn add_new(&self, one: Override, owner: Option<&Arc<()>>) {
        let hash = self.hash_of(&one);
        let shard = self.shard(hash).lock();
        let known = shard.find(hash, |it| it.is_for(one.limit_name(), one.key()));
        let is_known = known.is_some_and(|known| known.given == one && known.is_of(owner));
        drop(shard);
        if !is_known {
            self.add(one, owner.map(Arc::downgrade));
        }
    }

    /// The overrides that are in force.
    pub(super) fn list(&self, now: Timestamp) -> Vec<Override> {
        let mut list = Vec::with_capacity(self.len());
        for shard in &self.shards {
            let shard = shard.lock();
            let in_force = shard.iter().filter(|entry| entry.is_in_force(now));
            list.extend(in_force.map(|entry| entry.given.clone()));
        }
        list
    }

    fn has_mark(&self, hash: u64) -> bool {
        let (word, bit) = place(hash);
        let marks = self.marks.get();
        marks.is_some_and(|marks| marks[word].load(Ordering::Relaxed) & bit != 0)
    }

    fn mark(&self, hash: u64) {
        let (word, bit) = place(hash);
        let marks = self
            .marks
            .get_or_init(|| (0..MARKS / 64).map(|_| AtomicU64::new(0)).collect());
        marks[word].fetch_or(bit, Ordering::Relaxed);
    }

    fn shard(&self, hash: u64) -> &Mutex<HashTable<Arc<TableEntry>>> {
        // The table takes the bits at both ends.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    fn hash_of(&self, given: &Override) -> u64 {
        self.hash(given.limit_name(), given.key())
    }

    /// The key comes last, so its length need not be hashed to tell it from what follows.
    fn hash(&self, limit: &str, key: &Key) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(limit.as_bytes());
        // No name contains this byte.
        hasher.write_u8(0);
        hasher.write(key.as_bytes());
        hasher.finish()
    }
}

/// The word and the bit of a mark.
const fn place(hash: u64) -> (usize, u64) {
    let number = hash as usize % MARKS;
    (number / 64, 1 << (number % 64))
}

impl TableEntry {
    fn is_for(&self, limit: &str, key: &Key) -> bool {
        self.given.key() == key && self.given.limit_name() == limit
    }

    /// Returns whether it has not ended, and its file is in use.
    fn is_in_force(&self, now: Timestamp) -> bool {
        !self.given.is_over(now) && self.has_owner()
    }

    /// Returns whether it was set at run time, or its file is in use.
    fn has_owner(&self) -> bool {
        let is_used = |owner: &Weak<()>| owner.strong_count() > 0;
        self.owner.as_ref().is_none_or(is_used)
    }

    /// Returns whether it is from the file of a set of limits, or was set at run time.
    fn is_of(&self, owner: Option<&Arc<()>>) -> bool {
        match (&self.owner, owner) {
            (Some(own), Some(set)) => std::ptr::eq(own.as_ptr(), Arc::as_ptr(set)),
            (own, owner) => own.is_none() && owner.is_none(),
        }
    }

    /// The limit in place of another one. `None` if the limit cannot have the override. An event
    /// reports it.
    pub(super) fn overridden(&self, limit: &Limit) -> Option<Limit> {
        // Checks have the plain limit, and settlements the overridden one.
        let limit = limit.without_override();
        let mut last = self.last.lock();
        if let Some((given, overridden)) = &*last
            && given == limit
        {
            return overridden.clone();
        }
        let overridden = limit.overridden(self.given.effect());
        let error = overridden.as_ref().err().cloned();
        let overridden = overridden.ok();
        *last = Some((limit.clone(), overridden.clone()));
        drop(last);
        if let Some(error) = error
            && !self.is_reported.swap(true, Ordering::Relaxed)
        {
            telemetry::override_without_effect(self.given.key(), &error);
        }
        overridden
    }
}

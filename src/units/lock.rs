//! Locks without poison. A panic while one is held leaves whole values, so others go on.
//!
//! `make models` builds with the locks and atomics of loom in place of the standard library's. Loom
//! tries all orders in which threads may run.

#[cfg(not(tollgate_loom))]
use std::sync;
use std::sync::{PoisonError, TryLockError};

#[cfg(tollgate_loom)]
use loom::sync;

pub(crate) use self::sync::MutexGuard;
pub(crate) use self::sync::atomic::{AtomicU32, AtomicU64};
use self::sync::{RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    #[cfg(not(tollgate_loom))]
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    #[cfg(tollgate_loom)]
    pub(crate) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if another thread, or this one, holds the lock.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

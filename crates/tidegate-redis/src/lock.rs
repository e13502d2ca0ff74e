//! Locks. Nothing panics while it holds one, so what a lock protects is never half changed.

use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard as ReadGuard,
    RwLockWriteGuard as WriteGuard,
};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> ReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> WriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

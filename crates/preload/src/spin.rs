//! A lock that can be held across a fork, so that the child gets the guarded value in order.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Spin<T> {
    held: AtomicBool,
    inner: UnsafeCell<T>,
}

// SAFETY: `inner` is reached only by the thread that set `held`.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T: Default> Default for Spin<T> {
    fn default() -> Spin<T> {
        Spin::new(T::default())
    }
}

impl<T> Spin<T> {
    pub const fn new(inner: T) -> Spin<T> {
        Spin { held: AtomicBool::new(false), inner: UnsafeCell::new(inner) }
    }

    /// Takes the lock, until [`Spin::unlock`].
    pub fn lock(&self) {
        while self.held.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> bool {
        !self.held.swap(true, Ordering::Acquire)
    }

    /// Gives it back, in the child of a fork, too.
    pub fn unlock(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// Does something with the guarded value; `f` must not take the lock again.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.lock();
        // SAFETY: the lock is held.
        let answer = f(unsafe { &mut *self.inner.get() });
        self.unlock();
        answer
    }

    /// Does something with the guarded value where the lock is held by this thread, or by the one it was forked from.
    ///
    /// # Safety
    /// It has to be.
    pub unsafe fn with_held<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: by the caller's promise.
        f(unsafe { &mut *self.inner.get() })
    }
}

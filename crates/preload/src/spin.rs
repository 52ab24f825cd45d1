//! A lock that can be held across a fork, so that the child gets what it guards in order.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Spin<T> {
    held: AtomicBool,
    inner: UnsafeCell<T>,
}

// SAFETY: `inner` is reached only by whoever set `held`.
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

    /// Takes the lock if nobody has it.
    pub fn try_lock(&self) -> bool {
        !self.held.swap(true, Ordering::Acquire)
    }

    /// Gives it back, in the child of a fork, too.
    pub fn unlock(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// Does something with what it guards, which must not take it again.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.lock();
        // SAFETY: the lock is held.
        let answer = f(unsafe { &mut *self.inner.get() });
        self.unlock();
        answer
    }

    /// The same where the lock is held by this thread, or by the one it was forked from.
    ///
    /// # Safety
    /// It has to be.
    pub unsafe fn with_held<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the caller says so.
        f(unsafe { &mut *self.inner.get() })
    }
}

//! Which descriptors are light sockets.

use crate::sock::Sock;
use crate::spin::Spin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Descriptors from here on are never light sockets.
pub const FDS: usize = 1 << 16;

/// Whether a descriptor is one, for those many calls that are about others.
static LIGHT: [AtomicBool; FDS] = [const { AtomicBool::new(false) }; FDS];

pub static SOCKS: Spin<Vec<Option<Arc<Sock>>>> = Spin::new(Vec::new());

/// The light socket of a descriptor.
#[inline]
pub fn get(fd: i32) -> Option<Arc<Sock>> {
    if !is_light(fd) {
        return None;
    }
    SOCKS.with(|socks| socks.get(fd as usize).cloned().flatten())
}

#[inline]
pub fn is_light(fd: i32) -> bool {
    LIGHT.get(fd as usize).is_some_and(|light| light.load(Ordering::Relaxed))
}

/// Sets or removes a descriptor's socket; returns the previous one.
pub fn set(fd: i32, sock: Option<Arc<Sock>>) -> Option<Arc<Sock>> {
    let place = LIGHT.get(fd as usize)?;
    if sock.is_none() && !place.load(Ordering::Relaxed) {
        return None;
    }
    place.store(sock.is_some(), Ordering::Relaxed);
    SOCKS.with(|socks| {
        if socks.len() <= fd as usize {
            socks.resize(fd as usize + 1, None);
        }
        std::mem::replace(&mut socks[fd as usize], sock)
    })
}

/// Puts `new` in place of `old` at every descriptor; returns the removed references, to be dropped without the lock.
pub fn replace(old: &Arc<Sock>, new: &Arc<Sock>) -> Vec<Arc<Sock>> {
    SOCKS.with(|socks| {
        let same = socks.iter_mut().flatten().filter(|sock| Arc::ptr_eq(sock, old));
        same.map(|sock| std::mem::replace(sock, new.clone())).collect()
    })
}

/// All of them.
pub fn all() -> Vec<(i32, Arc<Sock>)> {
    SOCKS.with(|socks| socks.iter().enumerate().filter_map(|(fd, sock)| Some((fd as i32, sock.clone()?))).collect())
}

/// In a child, with the lock held since before the fork: `f` replaces every socket. The parent's sockets are not dropped,
/// since only the parent may send their last messages.
pub fn inherit(f: impl Fn(&Arc<Sock>) -> Arc<Sock>) {
    // SAFETY: the thread that forked holds the lock.
    unsafe {
        SOCKS.with_held(|socks| {
            let mut known: Vec<(Arc<Sock>, Arc<Sock>)> = Vec::new();
            for place in socks.iter_mut() {
                let Some(old) = place.take() else { continue };
                let new = match known.iter().find(|(before, _)| Arc::ptr_eq(before, &old)) {
                    Some((_, new)) => new.clone(),
                    None => {
                        let new = f(&old);
                        known.push((old.clone(), new.clone()));
                        new
                    }
                };
                *place = Some(new);
                std::mem::forget(old);
            }
            known.into_iter().for_each(|(old, _)| std::mem::forget(old));
        });
    }
}

//! The sockets that a program has put into `epoll`. A socket that becomes light, or that begins anew, is another one to the
//! kernel, and is added there again.

use crate::spin::Spin;
use crate::table::FDS;
use crate::{environment, kernel, sock, table};
use libc::{c_int, epoll_event};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Events and data by descriptor and `epoll`.
pub static REGISTERED: Spin<BTreeMap<(c_int, c_int), epoll_event>> = Spin::new(BTreeMap::new());

/// Whether a descriptor is in any, or is one that has any, for those many calls that are about others.
static KNOWN: [AtomicBool; FDS] = [const { AtomicBool::new(false) }; FDS];

fn known(fd: c_int) -> Option<&'static AtomicBool> {
    KNOWN.get(fd as usize)
}

/// A call of `epoll_ctl` has succeeded.
pub fn record(epoll: c_int, operation: c_int, fd: c_int, event: Option<epoll_event>) {
    let is_known = known(fd).is_some_and(|known| known.load(Ordering::Relaxed));
    match (operation, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) => {
            let (Some(of_fd), Some(of_epoll)) = (known(fd), known(epoll)) else { return };
            // Only sockets that are light, or may become light, are ever added again.
            if table::is_light(fd) || (environment::wanted().is_some() && sock::can_be_light(fd).is_some()) {
                of_fd.store(true, Ordering::Relaxed);
                of_epoll.store(true, Ordering::Relaxed);
                REGISTERED.with(|all| all.insert((fd, epoll), event));
            }
        }
        (libc::EPOLL_CTL_MOD, Some(event)) if is_known => {
            REGISTERED.with(|all| all.get_mut(&(fd, epoll)).map(|known| *known = event));
        }
        (libc::EPOLL_CTL_DEL, _) if is_known => {
            REGISTERED.with(|all| all.remove(&(fd, epoll)));
        }
        _ => {}
    }
}

/// A number is closed, or another one's: it is in no `epoll`, and is none.
#[inline]
pub fn forget(fd: c_int) {
    if known(fd).is_some_and(|known| known.load(Ordering::Relaxed)) {
        if let Some(known) = known(fd) {
            known.store(false, Ordering::Relaxed);
        }
        REGISTERED.with(|all| all.retain(|&(of, epoll), _| of != fd && epoll != fd));
    }
}

/// Adds a descriptor that the kernel no longer knows to its `epoll`s again; returns whether there are any, and with edges.
pub fn redo(fd: c_int) -> Option<bool> {
    let before = REGISTERED.with(|all| {
        all.range((fd, c_int::MIN)..=(fd, c_int::MAX)).map(|(&(_, epoll), &event)| (epoll, event)).collect::<Vec<_>>()
    });
    let edges = before.iter().any(|(_, event)| event.events & libc::EPOLLET as u32 != 0);
    for (epoll, mut event) in before.iter().copied() {
        // SAFETY: an event of ours. Where the program has closed that `epoll` there is nothing to put it into.
        unsafe { kernel::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }
    (!before.is_empty()).then_some(edges)
}

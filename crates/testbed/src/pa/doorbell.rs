//! Waits for light sockets, which have no descriptor, together with the kernel's sockets.

use super::PaError;
use rustix::event::{EventfdFlags, eventfd};
use sluicenet_socket::Watch;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// A descriptor that is readable while light sockets need attention.
pub(super) struct Doorbell {
    bell: OwnedFd,
    rung: Mutex<BTreeSet<u64>>,
}

impl Doorbell {
    pub fn new() -> Result<Arc<Doorbell>, PaError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|e| PaError::io("an eventfd", &e.into()))?;
        Ok(Arc::new(Doorbell { bell, rung: Mutex::default() }))
    }

    /// Rings for the socket `number` at every change of its readiness.
    pub fn watch(self: &Arc<Self>, number: u64) -> Watch {
        let doorbell = self.clone();
        Box::new(move |_| doorbell.ring(number))
    }

    fn ring(&self, number: u64) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        if rung.is_empty() {
            // The counter cannot overflow between two reads.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
        rung.insert(number);
    }

    /// The sockets that have rung since the last call.
    pub fn take(&self) -> BTreeSet<u64> {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        // An empty counter is no error.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        std::mem::take(&mut *rung)
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn it_is_readable_until_it_was_asked_and_names_each_socket_once() {
        let doorbell = Doorbell::new().unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(&*doorbell, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        assert!(!is_readable() && doorbell.take().is_empty());
        let mut watches = [7, 3, 7].map(|number| doorbell.watch(number));
        watches.iter_mut().for_each(|watch| watch(sluicenet_socket::Ready::default()));
        assert!(is_readable());
        assert_eq!(Vec::from_iter(doorbell.take()), [3, 7]);
        assert!(!is_readable());
        watches[1](sluicenet_socket::Ready::default());
        assert!(is_readable());
    }
}

//! Waiting for light sockets beside others: while a program waits, the sockets' pairs show their readiness.

use crate::mirror::keeping_errno;
use crate::sock::Sock;
use crate::table;
use libc::{c_int, fd_set, pollfd};
use std::sync::Arc;

/// The light sockets of a waiting call, until this is dropped.
pub struct Looking(Vec<Arc<Sock>>);

impl Looking {
    fn at(socks: Vec<Arc<Sock>>) -> Looking {
        keeping_errno(|| socks.iter().for_each(|sock| sock.ends.look()));
        Looking(socks)
    }

    /// The light sockets among the entries of `poll`.
    ///
    /// # Safety
    /// As for `poll` of the C library.
    pub unsafe fn at_entries(fds: *const pollfd, count: usize) -> Looking {
        if count == 0 || fds.is_null() {
            return Looking(Vec::new());
        }
        // SAFETY: by the caller's promise.
        let entries = unsafe { std::slice::from_raw_parts(fds, count) };
        Looking::at(entries.iter().filter_map(|entry| table::get(entry.fd)).collect())
    }

    /// The light sockets in the sets of `select`.
    ///
    /// # Safety
    /// As for `select` of the C library.
    pub unsafe fn at_sets(count: c_int, sets: [*const fd_set; 3]) -> Looking {
        let is_in = |fd: c_int, set: &*const fd_set| {
            // SAFETY: a set of the caller's, and a descriptor below its size.
            !set.is_null() && unsafe { libc::FD_ISSET(fd, *set) }
        };
        let fds = 0..count.clamp(0, libc::FD_SETSIZE as c_int);
        let light = fds.filter(|&fd| table::is_light(fd) && sets.iter().any(|set| is_in(fd, set)));
        Looking::at(light.filter_map(table::get).collect())
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        keeping_errno(|| {
            self.0.iter().for_each(|sock| sock.ends.look_away());
            self.0.clear();
        });
    }
}

//! Forks: a child has the descriptors and not the host.
//!
//! Listeners are the exception that programs with workers need: from the fork on, attempts to connect go through the pair
//! that both processes have, and whichever accepts first has the connection, at its own port of the switch.

use crate::interpose::files;
use crate::mirror::Ends;
use crate::sock::{Options, Sock};
use crate::{process, registered, relay, table};
use std::sync::Arc;

/// Registers the functions that follow with the C library.
pub fn register() {
    process::begin();
    // SAFETY: functions of ours that take nothing.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn before() {
    for (_, sock) in table::all() {
        sock.divert();
    }
    process::HOST.lock();
    process::with_held_host(light::Host::begin_fork);
    table::SOCKS.lock();
    registered::REGISTERED.lock();
    files::FILES.lock();
    for_sockets(|ends| ends.shown.lock(), |options| options.values.lock());
}

/// Calls the functions for the locked parts of each light socket, behind which no other lock is taken. The table has to be
/// held.
fn for_sockets(with_ends: impl Fn(&Ends), with_options: impl Fn(&Options)) {
    // SAFETY: this thread holds it, or the one that this was forked from did.
    unsafe {
        table::SOCKS.with_held(|socks| {
            // Several descriptors may be one socket.
            let mut all: Vec<&Arc<Sock>> = socks.iter().flatten().collect();
            all.sort_unstable_by_key(|sock| Arc::as_ptr(&sock.ends));
            all.dedup_by_key(|sock| Arc::as_ptr(&sock.ends));
            all.iter().for_each(|sock| with_ends(&sock.ends));
            let mut all: Vec<&Arc<Sock>> = socks.iter().flatten().collect();
            all.sort_unstable_by_key(|sock| Arc::as_ptr(&sock.options));
            all.dedup_by_key(|sock| Arc::as_ptr(&sock.options));
            all.iter().for_each(|sock| with_options(&sock.options));
        });
    }
}

fn unlock_sockets() {
    for_sockets(|ends| ends.shown.unlock(), |options| options.values.unlock());
}

unsafe extern "C" fn in_parent() {
    unlock_sockets();
    files::FILES.unlock();
    registered::REGISTERED.unlock();
    table::SOCKS.unlock();
    process::with_held_host(light::Host::end_fork);
    process::HOST.unlock();
    relay::begin();
}

unsafe extern "C" fn in_child() {
    unlock_sockets();
    files::FILES.unlock();
    registered::REGISTERED.unlock();
    table::inherit(|sock: &Arc<Sock>| sock.inherited());
    relay::forget();
    process::leave();
    table::SOCKS.unlock();
    process::HOST.unlock();
}

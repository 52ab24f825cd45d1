//! Forks: a child has the descriptors and not the host.
//!
//! Listeners are the exception that programs with workers need: from the fork on, attempts to connect go through the pair that both
//! processes have, and whichever accepts first has the connection, at its own port of the switch.

use crate::interpose::files;
use crate::sock::Sock;
use crate::{process, registered, table};

/// Has the C library call what follows.
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
    table::SOCKS.lock();
    registered::REGISTERED.lock();
    files::FILES.lock();
}

unsafe extern "C" fn in_parent() {
    files::FILES.unlock();
    registered::REGISTERED.unlock();
    table::SOCKS.unlock();
    process::HOST.unlock();
}

unsafe extern "C" fn in_child() {
    files::FILES.unlock();
    registered::REGISTERED.unlock();
    table::inherit(|sock: &std::sync::Arc<Sock>| sock.inherited());
    process::leave();
    table::SOCKS.unlock();
    process::HOST.unlock();
}

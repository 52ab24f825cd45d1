//! This process: its host, made when the first light socket needs it.

use crate::environment::{Wanted, say};
use crate::interpose::files;
use crate::mirror::Whole;
use crate::own;
use crate::spin::Spin;
use light::attach::{Attachment, attach};
use light::{Config, Host};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// How long the end of a process waits for a thread that opens its host.
const LOCKED_FOR: Duration = Duration::from_secs(2);

/// The host; locked while it is opened, and across a fork.
pub static HOST: Spin<Option<Host>> = Spin::new(None);
/// The process that owns the table. A child of vfork shares its parent's memory and may change nothing.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// Whether the process has sent its last messages.
static ENDED: AtomicBool = AtomicBool::new(false);

/// The number of this process.
fn number() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// Makes the table this process's.
pub fn begin() {
    OWNER.store(number(), Ordering::Relaxed);
}

/// Whether this process owns this memory.
pub fn owns_memory() -> bool {
    OWNER.load(Ordering::Relaxed) == number()
}

/// The host of this process.
pub fn host(wanted: &Wanted) -> Result<Host, i32> {
    let _whole = Whole::begin();
    HOST.with(|host| {
        if host.is_none() {
            *host = Some(open(wanted)?);
        }
        host.clone().ok_or(libc::ENETDOWN)
    })
}

/// Does something with the host, if there is one, with its lock held by this thread.
pub fn with_held_host(f: impl Fn(&Host)) {
    // SAFETY: by the caller's promise.
    unsafe { HOST.with_held(|host| host.iter().for_each(f)) };
}

fn open(wanted: &Wanted) -> Result<Host, i32> {
    let (port, index) = take_port(wanted)?;
    let port = port.with_numbers_from(own::least());
    let config = Config { answers: index == 0, ..wanted.config() };
    let opened = without_signals(|| Host::open(port, config)).map_err(|e| {
        say(&format!("port {}: {e}", wanted.ports[index]));
        libc::ENETDOWN
    })?;
    opened.descriptors().iter().for_each(|&fd| own::set_own(fd, true));
    // SAFETY: a function of ours that takes nothing.
    unsafe { libc::atexit(at_exit) };
    Ok(opened)
}

/// Has a thread that is begun in `f` get no signals: a program's are for its own threads, which may be waiting for them.
pub fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: sets of ours, filled before they are used.
    let before = unsafe {
        let (mut all, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let answer = f();
    // SAFETY: the set that was in force.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    answer
}

/// Takes the first free port.
fn take_port(wanted: &Wanted) -> Result<(Attachment, usize), i32> {
    let mut why = String::new();
    for (index, name) in wanted.ports.iter().enumerate() {
        match attach(Path::new(&wanted.control), name) {
            Ok(port) => return Ok((port, index)),
            Err(e) => why = e.to_string(),
        }
    }
    say(&format!("no port of {} for {}: {why}", wanted.ports.join(", "), wanted.control));
    Err(libc::ENETDOWN)
}

/// In a child, with the host's lock held since before the fork: the parent's host is the parent's.
pub fn leave() {
    // SAFETY: the thread that forked holds the lock.
    if let Some(host) = unsafe { HOST.with_held(Option::take) } {
        if let Some(connection) = host.connection() {
            own::set_own(connection.as_raw_fd(), false);
            // SAFETY: the child's copy of a descriptor that nothing of the child uses any more.
            unsafe { crate::kernel::close(connection.as_raw_fd()) };
        }
        std::mem::forget(host);
    }
    ENDED.store(false, Ordering::Relaxed);
    begin();
}

extern "C" fn at_exit() {
    files::flush();
    end();
}

/// The process ends: sent bytes are delivered, and its streams end.
pub fn end() {
    if !owns_memory() || ENDED.swap(true, Ordering::Relaxed) {
        return;
    }
    // A handler of a signal that ends the process may have interrupted the holder of the lock.
    let until = Instant::now() + LOCKED_FOR;
    while !HOST.try_lock() {
        if Instant::now() >= until {
            return;
        }
        std::thread::yield_now();
    }
    // SAFETY: the lock is held.
    let host = unsafe { HOST.with_held(|host| host.clone()) };
    HOST.unlock();
    if let Some(host) = host {
        host.end();
        // The host's last handle would end it once more, and wait for a thread that no longer exists at the end of a process.
        std::mem::forget(host);
    }
}

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

/// How long the end of a process waits for whoever opens its host.
const LOCKED_FOR: Duration = Duration::from_secs(2);

/// It is locked while the host is opened, and across a fork.
pub static HOST: Spin<Option<Host>> = Spin::new(None);
/// Whose the table is: in a child of vfork, which shares its parent's memory, nothing may be changed.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// Whether the process has said its last words.
static ENDED: AtomicBool = AtomicBool::new(false);

/// The number of this process.
fn number() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// Says that the table is this process's.
pub fn begin() {
    OWNER.store(number(), Ordering::Relaxed);
}

/// Whether this is the process whose memory this is.
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
    // SAFETY: the caller says so.
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

/// The first port that nobody has.
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

/// The process ends: what it sent goes, and its streams end.
pub fn end() {
    if !owns_memory() || ENDED.swap(true, Ordering::Relaxed) {
        return;
    }
    // A handler of a signal that ends the process may have interrupted whoever holds the lock.
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
        // Its last handle would end it once more, and wait for a thread that is not there any more at the end of a process.
        std::mem::forget(host);
    }
}

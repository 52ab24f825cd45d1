//! Refused system calls (SIGSYS): they fail with EPERM, and are counted. So the process goes on, and its log can tell what was
//! tried. But a thread that blocks signals meanwhile, as the C library does to start a program, ends the process.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use syscalls::Sysno;

/// More than the numbers of all system calls.
const NUMBERS: usize = 1 << 10;

/// Refused calls by number. The last place is for all greater numbers.
static REFUSED: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// Refused system calls so far, by name.
pub fn refused() -> Vec<(String, u64)> {
    let name = |number: usize| Sysno::new(number).map_or_else(|| format!("{number}"), |call| call.name().to_owned());
    let count = |(number, count): (usize, &AtomicU64)| (name(number), count.load(Ordering::Relaxed));
    REFUSED.iter().enumerate().map(count).filter(|(_, count)| *count > 0).collect()
}

/// Handles the signal from now on.
pub(super) fn install() -> io::Result<()> {
    // SAFETY: `sigaction` is plain numbers, for which zeros are a value.
    let mut new = unsafe { std::mem::zeroed::<libc::sigaction>() };
    new.sa_sigaction = on_sigsys as *const () as usize;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is valid; its handler does only permitted work.
    match unsafe { libc::sigaction(libc::SIGSYS, &new, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Does only work that is allowed in a signal handler: atomics. The kernel has put the registers back as they were before the
/// call. So the number of the call is in the context, and the result is written there.
extern "C" fn on_sigsys(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands the context of the interrupted thread, which no one else uses meanwhile.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let (number, result) = {
        let register = &mut machine.gregs[libc::REG_RAX as usize];
        (*register as usize, register)
    };
    #[cfg(target_arch = "aarch64")]
    let (number, result) = (machine.regs[8] as usize, &mut machine.regs[0]);
    *result = -libc::EPERM as _;
    REFUSED[number.min(NUMBERS - 1)].fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::super::Uses;
    use super::super::calls::{limit, listed};
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// More than the system calls of today's kernels.
    const CALLS: i64 = 512;

    /// The calls of the kernel's own probes (x86_64: `uretprobe`, `uprobe`). No filter sees them; anywhere else they raise SIGILL.
    const PROBES: std::ops::RangeInclusive<i64> = 335..=336;

    fn call(number: i64, arguments: [i64; 3]) -> io::Result<i64> {
        let [a, b, c] = arguments;
        // SAFETY: the kernel refuses these calls before it looks at their arguments.
        match unsafe { libc::syscall(number, a, b, c, 0, 0, 0) } {
            -1 => Err(io::Error::last_os_error()),
            done => Ok(done),
        }
    }

    fn is_refused<T: std::fmt::Debug>(tried: io::Result<T>) -> bool {
        matches!(&tried, Err(e) if e.raw_os_error() == Some(libc::EPERM))
    }

    /// Runs a test on a thread that is limited; no other test runs there.
    fn limited(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| match limit(&Uses::default()).unwrap() {
                true => test(),
                false => println!("skipped: this kernel limits no system calls"),
            });
        });
    }

    fn count(name: &str) -> u64 {
        refused().into_iter().find_map(|(call, count)| (call == name).then_some(count)).unwrap_or(0)
    }

    #[test]
    fn every_call_that_is_not_listed_fails_and_is_counted() {
        limited(|| {
            let (execve, ptrace) = (count("execve"), count("ptrace"));
            for number in (0..CALLS).filter(|number| !listed().contains(number) && !PROBES.contains(number)) {
                assert!(is_refused(call(number, [0; 3])), "{:?}", Sysno::new(number as usize));
            }
            assert!(count("execve") > execve && count("ptrace") > ptrace, "{:?}", refused());
            assert!(is_refused::<()>(Err(Command::new("true").exec())));
        });
    }

    #[test]
    fn listed_calls_fail_with_arguments_that_a_switch_never_has() {
        limited(|| {
            for domain in [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK] {
                let socket = call(libc::SYS_socket, [domain.into(), libc::SOCK_RAW.into(), 0]);
                assert!(is_refused(socket), "domain {domain}");
            }
            let code = i64::from(libc::PROT_READ | libc::PROT_EXEC);
            assert!(is_refused(call(libc::SYS_mmap, [0, 4096, code])));
            assert!(is_refused(call(libc::SYS_mprotect, [0, 4096, code])));
            for flags in [0, libc::CLONE_VM, libc::CLONE_NEWUSER, libc::CLONE_VM | libc::CLONE_VFORK] {
                assert!(is_refused(call(libc::SYS_clone, [flags.into(), 0, 0])), "{flags:x}");
            }
            assert!(is_refused(call(libc::SYS_tgkill, [1, 1, libc::SIGKILL.into()])));
            assert!(is_refused(call(libc::SYS_prctl, [libc::PR_SET_SECUREBITS.into(), 0, 0])));
            assert!(is_refused(call(libc::SYS_ioctl, [0, libc::TIOCSTI as i64, 0])));
            // That somebody is signalled, that others wait, that a pipe grows.
            for request in
                [libc::F_SETOWN, F_SETSIG, libc::F_SETLK, libc::F_SETLEASE, libc::F_NOTIFY, libc::F_SETPIPE_SZ]
            {
                assert!(is_refused(call(libc::SYS_fcntl, [-1, request.into(), 0])), "request {request}");
            }
            for mode in [0o4755, 0o2600, 0o777, 0o660, 0o604, 0o400, 0] {
                assert!(is_refused(call(libc::SYS_fchmod, [-1, mode, 0])), "mode {mode:o}");
            }
        });
    }

    /// As in the kernel's `fcntl.h`.
    const F_SETSIG: libc::c_int = 10;

    #[test]
    fn modes_and_requests_that_a_switch_has_are_allowed() {
        for (shares, modes) in [(false, vec![0o600]), (true, vec![0o600, 0o660])] {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if !limit(&Uses { shares, ..Uses::default() }).unwrap() {
                        return println!("skipped: this kernel limits no system calls");
                    }
                    let allowed = |number, second: i64| {
                        let refused = call(number, [-1, second, 0]).unwrap_err();
                        assert_eq!(refused.raw_os_error(), Some(libc::EBADF), "{number}: {second:o}");
                    };
                    modes.iter().for_each(|mode| allowed(libc::SYS_fchmod, *mode));
                    for request in [libc::F_GETFD, libc::F_SETFL, libc::F_DUPFD_CLOEXEC, libc::F_ADD_SEALS] {
                        allowed(libc::SYS_fcntl, request.into());
                    }
                });
            });
        }
    }

    #[test]
    fn only_a_switch_that_has_to_connects() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        for connects in [false, true] {
            std::thread::scope(|scope| {
                scope.spawn(|| match limit(&Uses { connects, ..Uses::default() }).unwrap() {
                    // Connected already: EISCONN or EINVAL, and not EPERM, if the call is allowed.
                    true => assert_eq!(is_refused(connect(&one)), !connects),
                    false => println!("skipped: this kernel limits no system calls"),
                });
            });
        }
        drop(other);
    }

    fn connect(socket: &std::os::unix::net::UnixStream) -> io::Result<i64> {
        use std::os::fd::AsRawFd;
        call(libc::SYS_connect, [socket.as_raw_fd().into(), 0, 0])
    }

    #[test]
    fn threads_work_and_have_the_limits_too() {
        limited(|| {
            let started = std::thread::Builder::new().name("one more".into()).spawn(|| {
                let one = std::os::unix::net::UnixStream::pair().unwrap();
                io::Write::write_all(&mut &one.0, &vec![7; 1 << 12]).unwrap();
                (std::time::Instant::now(), is_refused(call(libc::SYS_unshare, [0; 3])))
            });
            assert!(started.unwrap().join().unwrap().1);
        });
    }

    /// `cargo test -p sluicenet-dataplane --lib confine -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn what_the_limits_cost_a_call() {
        const CALLS: u32 = 2_000_000;
        let measured = |number: i64, arguments: [i64; 3]| {
            let start = std::time::Instant::now();
            (0..CALLS).for_each(|_| _ = call(number, arguments));
            start.elapsed().as_nanos() as f64 / f64::from(CALLS)
        };
        // A call that is allowed with any arguments, and one of which the filter looks at an argument.
        let both = || [measured(libc::SYS_getpid, [0; 3]), measured(libc::SYS_ioctl, [-1, libc::TIOCOUTQ as i64, 0])];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = both();
                if limit(&Uses::default()).unwrap() {
                    println!("ns a call, getpid and ioctl: {before:.1?} without the limits, {:.1?} with them", both());
                }
            });
        });
    }
}

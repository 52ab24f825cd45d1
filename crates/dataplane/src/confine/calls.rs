//! The system calls of a process that forwards frames (seccomp). Any other call fails with EPERM.
//!
//! A refused call may come from a library that this list does not know. Then a switch that is killed loses the frames of all
//! its tenants; a switch whose call fails goes on, and says so.

use super::{Uses, refused};
use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, Error, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;
use std::io;

/// Calls that are allowed with any arguments.
const ANY: &[c_long] = &[
    // Frames, questions to the kernel, control connections.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_ppoll,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    // The sockets of guests and clients. `socket` itself is limited below, and `connect` is not here.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    // Memory that programs attach to, and events.
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_eventfd2,
    libc::SYS_dup,
    libc::SYS_close,
    // Files: the switch's own when it reloads, and those beside guests' sockets. Landlock limits which.
    libc::SYS_openat,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_unlinkat,
    libc::SYS_getcwd,
    // Memory and threads. `mmap`, `mprotect` and `clone` are limited below.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_capget,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Time and random numbers. Not every clock can be read without a call.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    // The end of the helper.
    libc::SYS_wait4,
    // The only one that is refused in another way, below.
    libc::SYS_clone3,
];

/// Older forms of the same calls.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] =
    &[libc::SYS_open, libc::SYS_poll, libc::SYS_readlink, libc::SYS_stat, libc::SYS_lstat, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// The flags of `clone` that decide whether it makes a thread, and nothing but a thread.
const THREAD: c_int = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
const NAMESPACES: c_int = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// Requests of `ioctl`: that a socket does not wait (FIONBIO), frames that a device has not sent yet (TIOCOUTQ), and whether a
/// file is a terminal (TCGETS).
const IOCTLS: [u64; 3] = [0x5421, 0x5411, 0x5401];

/// Requests of `fcntl`: copies of descriptors, their flags, and seals of memory. Those that lock files, lease them, or name a
/// process to signal are not here.
const FCNTLS: [c_int; 8] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// The modes of the sockets of guests: for their owner, and for a group too.
const OWNERS: c_int = 0o600;
const SHARED: c_int = 0o660;

/// Limits this thread to these calls; returns whether the kernel supports that.
pub(super) fn limit(uses: &Uses) -> io::Result<bool> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    let threads = only_threads(arch).map_err(io::Error::other)?;
    let all = allowed(arch, uses).map_err(io::Error::other)?;
    refused::install()?;
    for filter in [threads, all] {
        match apply_filter(&filter) {
            Ok(()) => {}
            // A kernel without it.
            Err(Error::Prctl(e) | Error::Seccomp(e))
                if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) =>
            {
                return Ok(false);
            }
            Err(e) => return Err(io::Error::other(format!("a filter of system calls (seccomp): {e}"))),
        }
    }
    Ok(true)
}

/// The arguments of `clone3` are in memory, where no filter sees them. The C library then uses `clone`.
fn only_threads(arch: TargetArch) -> Result<BpfProgram, BackendError> {
    let calls = [(libc::SYS_clone3, Vec::new())].into();
    SeccompFilter::new(calls, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32), arch)?.try_into()
}

fn allowed(arch: TargetArch, uses: &Uses) -> Result<BpfProgram, BackendError> {
    let bits =
        |argument, mask: c_int, value: c_int| is(argument, Op::MaskedEq(mask as u32 as u64), value as u32 as u64);
    let number = |argument, value: c_int| is(argument, Op::Eq, value as u32 as u64);
    let own = std::process::id();
    let mut calls: BTreeMap<c_long, Vec<SeccompRule>> =
        ANY.iter().chain(OLDER).map(|&call| (call, Vec::new())).collect();
    if uses.connects {
        calls.insert(libc::SYS_connect, Vec::new());
    }
    // No other network than that of the sockets that are open already.
    calls.insert(libc::SYS_socket, vec![number(0, libc::AF_UNIX)?]);
    calls.insert(libc::SYS_socketpair, vec![number(0, libc::AF_UNIX)?]);
    // No program that was not there at the start.
    calls.insert(libc::SYS_mmap, vec![bits(2, libc::PROT_EXEC, 0)?]);
    calls.insert(libc::SYS_mprotect, vec![bits(2, libc::PROT_EXEC, 0)?]);
    // Threads, but no processes and no namespaces.
    calls.insert(libc::SYS_clone, vec![bits(0, THREAD | NAMESPACES, THREAD)?]);
    calls.insert(libc::SYS_prctl, vec![number(0, libc::PR_SET_NAME)?, number(0, PR_SET_VMA)?]);
    calls.insert(libc::SYS_fcntl, FCNTLS.into_iter().map(|request| number(1, request)).collect::<Result<_, _>>()?);
    let modes = [OWNERS].into_iter().chain(uses.shares.then_some(SHARED));
    calls.insert(libc::SYS_fchmod, modes.map(|mode| number(1, mode)).collect::<Result<_, _>>()?);
    // The end of this process after a fault of its own.
    calls.insert(libc::SYS_tgkill, vec![is(0, Op::Eq, own.into())?]);
    calls.insert(libc::SYS_ioctl, IOCTLS.into_iter().map(|request| is(1, Op::Eq, request)).collect::<Result<_, _>>()?);
    SeccompFilter::new(calls, SeccompAction::Trap, SeccompAction::Allow, arch)?.try_into()
}

/// The C library names parts of its memory.
const PR_SET_VMA: c_int = 0x5356_4d41;

/// A rule for one argument, of which the kernel reads 32 bits.
fn is(argument: u8, op: Op, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, Len::Dword, op, value)?])
}

/// Calls that are allowed, at least with some arguments.
#[cfg(test)]
pub(super) fn listed() -> Vec<c_long> {
    let some = [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_fcntl, libc::SYS_fchmod];
    ANY.iter().chain(OLDER).copied().chain(some).collect()
}

//! Why a port could not be opened, and whether that can pass.
//!
//! A reason can pass if somebody else removes it without a change of the file: a container starts, a device is switched
//! on, another program ends. Then the port is absent and the switch tries again. A reason that lasts is one of the file
//! or of the privileges of the switch: a reload with such a port changes nothing.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sluicenet_dataplane::kernel::KernelError;
use std::fmt;
use std::io;

/// Why a port could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub reason: String,
    /// Whether a later attempt with the same file may succeed.
    pub passes: bool,
    /// Whether another program has what the port needs, as a switch that has just ended does for a moment.
    pub busy: bool,
}

impl Failure {
    /// A reason that only another file, or another start, removes.
    pub fn lasting(reason: String) -> Failure {
        Failure { reason, passes: false, busy: false }
    }

    /// The helper is still opening the port's device, which others may delay.
    pub fn slow() -> Failure {
        let reason = "opening its device takes long: no frame has come by it yet".to_owned();
        Failure { reason, passes: true, busy: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        Failure { reason: e.to_string(), passes: passes(&e), busy: is_busy(&e) }
    }
}

impl From<KernelError> for Failure {
    fn from(e: KernelError) -> Failure {
        Failure { reason: e.to_string(), passes: passes(e.why()), busy: is_busy(e.why()) }
    }
}

/// Errors that pass, by number.
const PASSING: [Errno; 15] = [
    // A namespace, a device, a folder, or a process is not there yet, or has just gone.
    Errno::NOENT,
    Errno::NODEV,
    Errno::NXIO,
    Errno::SRCH,
    // The device is switched off.
    Errno::NETDOWN,
    // Somebody else has it: an earlier switch, an earlier port whose last frames are still on their way.
    Errno::BUSY,
    Errno::ADDRINUSE,
    // The other side did not answer.
    Errno::TIMEDOUT,
    Errno::CONNREFUSED,
    Errno::AGAIN,
    Errno::INTR,
    // The host has run out of memory, descriptors or buffers.
    Errno::NOMEM,
    Errno::NOBUFS,
    Errno::MFILE,
    Errno::NFILE,
];

/// Whether somebody else has what was asked for.
fn is_busy(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::AddrInUse)
}

/// Whether an error can pass.
fn passes(error: &io::Error) -> bool {
    if let Some(errno) = Errno::from_io_error(error) {
        return PASSING.contains(&errno);
    }
    // An error with a text of ours has no number, but the kind that the number would have.
    PASSING.iter().any(|errno| {
        let kind = io::Error::from(*errno).kind();
        // Numbers without a kind of their own share one.
        kind != io::Error::from(Errno::NODEV).kind() && kind == error.kind()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_can_remove_passes_and_all_else_lasts() {
        let by_number = |errno: Errno| Failure::from(io::Error::from(errno)).passes;
        assert!(PASSING.into_iter().all(by_number));
        let busy: Vec<_> = PASSING.into_iter().filter(|&errno| Failure::from(io::Error::from(errno)).busy).collect();
        assert_eq!(busy, [Errno::BUSY, Errno::ADDRINUSE]);
        let lasting = [
            Errno::PERM,
            Errno::ACCESS,
            Errno::INVAL,
            Errno::NOTDIR,
            Errno::EXIST,
            Errno::ISDIR,
            Errno::NAMETOOLONG,
            Errno::OPNOTSUPP,
            Errno::NOSYS,
            Errno::LOOP,
            Errno::ROFS,
            Errno::IO,
        ];
        for errno in lasting {
            assert!(!by_number(errno), "{errno}");
        }
    }

    #[test]
    fn an_error_with_a_text_of_its_own_is_judged_by_its_kind() {
        let said = |kind| Failure::from(io::Error::new(kind, "said so")).passes;
        for kind in [
            io::ErrorKind::NotFound,
            io::ErrorKind::NetworkDown,
            io::ErrorKind::AddrInUse,
            io::ErrorKind::ResourceBusy,
            io::ErrorKind::TimedOut,
        ] {
            assert!(said(kind), "{kind}");
        }
        for kind in [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::InvalidInput,
            io::ErrorKind::NotADirectory,
            io::ErrorKind::AlreadyExists,
            io::ErrorKind::Other,
        ] {
            assert!(!said(kind), "{kind}");
        }
    }
}

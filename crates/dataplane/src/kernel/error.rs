//! Failed requests to the kernel.

use std::fmt;
use std::io;

/// The path of a thread's own namespace.
pub(super) const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// The failed request, and the reason.
#[derive(Debug)]
pub struct KernelError {
    what: String,
    why: io::Error,
}

impl KernelError {
    pub(super) fn new(what: impl Into<String>, why: impl Into<io::Error>) -> KernelError {
        KernelError { what: what.into(), why: why.into() }
    }

    /// Adds the namespace of the failed request.
    pub fn within(self, namespace: &str) -> KernelError {
        let place = if namespace == OWN_NAMESPACE { "this process's own namespace" } else { namespace };
        KernelError { what: format!("{} in {place}", self.what), ..self }
    }

    /// The kernel's own error.
    pub fn why(&self) -> &io::Error {
        &self.why
    }

    fn hint(&self) -> Option<&'static str> {
        match self.why.kind() {
            io::ErrorKind::PermissionDenied => Some("it takes root (CAP_NET_ADMIN, CAP_SYS_ADMIN)"),
            io::ErrorKind::Unsupported => Some("this kernel does not have it"),
            _ => None,
        }
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        self.hint().map_or(Ok(()), |hint| write!(f, ": {hint}"))
    }
}

impl std::error::Error for KernelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

impl From<KernelError> for io::Error {
    fn from(e: KernelError) -> io::Error {
        io::Error::new(e.why.kind(), e.to_string())
    }
}

/// Adds a description of the failed request.
pub(super) trait Tried<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T, KernelError>;
}

impl<T, E: Into<io::Error>> Tried<T> for Result<T, E> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T, KernelError> {
        self.map_err(|why| KernelError::new(what(), why))
    }
}

//! The limits of a process that forwards frames: after them it asks the kernel only for the [system calls](calls) and
//! [files](files) that it needs. They hold for this thread and for all threads that it starts. Nothing can undo them.

mod calls;
pub mod files;
mod refused;

pub use files::Folders;
pub use refused::refused;

use std::io;

/// The limits that this kernel supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined {
    /// Whether the system calls are limited (seccomp).
    pub calls: bool,
    /// Whether the files are limited (Landlock).
    pub files: bool,
}

/// Limits this thread, and the threads that it starts from now on. A kernel without seccomp or Landlock leaves the process
/// without that limit.
///
/// # Errors
/// The kernel supports a limit and refuses it.
pub fn confine(folders: &Folders) -> io::Result<Confined> {
    // The list of system calls has none of Landlock's.
    let files = files::limit(folders)?;
    Ok(Confined { calls: calls::limit()?, files })
}

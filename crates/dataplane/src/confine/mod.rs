//! The limits of a process that forwards frames: after them it asks the kernel only for the [system calls](calls) and
//! [files](files) that it needs. They hold for this thread and for all threads that it starts. Nothing can undo them.

mod calls;
pub mod files;
mod refused;

pub use files::Folders;
pub use refused::refused;

use std::io;

/// What a process does after it has limited itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The folders that it uses.
    pub folders: Folders,
    /// Whether it connects to Unix sockets.
    pub connects: bool,
    /// Whether it makes sockets that a group may connect to.
    pub shares: bool,
}

/// The limits in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confined {
    /// Whether the system calls are limited (seccomp).
    pub calls: bool,
    /// The rights that this kernel leaves unlimited although it limits files (Landlock), each with the kernel that limits it;
    /// `None` if it limits no files.
    pub files: Option<Vec<&'static str>>,
}

/// Limits this thread, and the threads that it starts from now on. A kernel without seccomp or Landlock leaves the process
/// without that limit.
///
/// # Errors
/// The kernel supports a limit and refuses it.
pub fn confine(uses: &Uses) -> io::Result<Confined> {
    // The list of system calls has none of Landlock's.
    let files = files::limit(&uses.folders)?;
    Ok(Confined { calls: calls::limit(uses)?, files })
}

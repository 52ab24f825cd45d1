//! Errors with result files; messages tell a user which file is concerned and which action helps.

use std::fmt;
use std::path::{Path, PathBuf};

/// An error on a result directory or one of its files.
#[derive(Debug)]
pub enum RecordError {
    /// The operating system refused an action: the disk is full, the directory cannot be written, ...
    Io {
        /// The file or directory concerned.
        path: PathBuf,
        /// The attempted action, as "write", "rename", ...
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file has other contents than its name says.
    Corrupt {
        /// The file concerned.
        path: PathBuf,
        /// The expected and the actual contents.
        detail: String,
    },
    /// Another process is writing a result to the directory.
    Busy {
        /// The directory concerned.
        dir: PathBuf,
    },
    /// The directory already holds a result, and the caller did not allow replacing it.
    Exists {
        /// The directory concerned.
        dir: PathBuf,
        /// The existing result.
        detail: String,
    },
}

impl RecordError {
    /// An [`RecordError::Io`] about `path`, to use with `map_err`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> RecordError {
        let path = path.to_owned();
        move |source| RecordError::Io { path, action, source }
    }

    /// A [`RecordError::Corrupt`] about `path`.
    pub(crate) fn corrupt(path: &Path, detail: impl fmt::Display) -> RecordError {
        RecordError::Corrupt { path: path.to_owned(), detail: detail.to_string() }
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Io { path, action, source } => write!(f, "{}: cannot {action}: {source}", path.display()),
            RecordError::Corrupt { path, detail } => write!(f, "{}: {detail}", path.display()),
            RecordError::Busy { dir } => {
                write!(
                    f,
                    "{}: another run or sweep is writing its results here; give another directory, or wait",
                    dir.display()
                )
            }
            RecordError::Exists { dir, detail } => {
                write!(f, "{}: already holds {detail}; give another directory, or --force to replace it", dir.display())
            }
        }
    }
}

impl std::error::Error for RecordError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RecordError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

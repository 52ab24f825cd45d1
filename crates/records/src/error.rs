//! What can go wrong with result files, said so that a user knows which file and what to do.

use std::fmt;
use std::path::{Path, PathBuf};

/// An error on a result directory or one of its files.
#[derive(Debug)]
pub enum RecordError {
    /// The operating system refused: the disk is full, the directory cannot be written, ...
    Io {
        /// The file or directory concerned.
        path: PathBuf,
        /// What was attempted, as "write", "rename", ...
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file exists but does not hold what its name promises.
    Corrupt {
        /// The file concerned.
        path: PathBuf,
        /// What was expected and what was found.
        detail: String,
    },
    /// Another process is writing a result there.
    Busy {
        /// The directory concerned.
        dir: PathBuf,
    },
    /// The directory already holds a result, and nothing said that it may be replaced.
    Exists {
        /// The directory concerned.
        dir: PathBuf,
        /// What it holds.
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
                write!(f, "{}: another run is writing its result here; give another directory, or wait", dir.display())
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

//! Why a result cannot be exported; messages name the folder, the setting and the action that helps.

use sluicenet_records::{RecordError, Status};
use std::fmt;
use std::path::{Path, PathBuf};

/// Something that records lack, and the setting of the scenario that records it.
pub type Missing = (&'static str, &'static str);

/// An error of an export.
#[derive(Debug)]
pub enum ExportError {
    /// The records cannot be read.
    Records(RecordError),
    /// An input file of the run does not fit it, or cannot be read.
    Input(Box<sluicenet_scenario::Error>),
    /// The folder holds no result of a run.
    NoRun {
        /// The folder.
        dir: PathBuf,
        /// A folder in it that holds one, if there is one: then this is a sweep.
        run: Option<PathBuf>,
    },
    /// The run did not end.
    Incomplete {
        /// The manifest.
        path: PathBuf,
        /// How far the run came.
        status: Status,
    },
    /// The records lack something that the format needs.
    Lacks {
        /// The folder of the records.
        dir: PathBuf,
        /// What they lack: each with the setting that records it, as a scenario's line.
        missing: Vec<Missing>,
        /// What else helps; empty if nothing does.
        otherwise: String,
    },
    /// The format has no room for something in the records.
    Unfit {
        /// The folder of the records.
        dir: PathBuf,
        /// What has no room, and the limit.
        detail: String,
    },
    /// The output cannot be written, or takes no more.
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl From<RecordError> for ExportError {
    fn from(e: RecordError) -> ExportError {
        ExportError::Records(e)
    }
}

impl From<sluicenet_scenario::Error> for ExportError {
    fn from(e: sluicenet_scenario::Error) -> ExportError {
        ExportError::Input(Box::new(e))
    }
}

impl ExportError {
    /// An [`ExportError::Write`] about `path`, to use with `map_err`.
    pub(crate) fn write(path: &Path) -> impl Fn(std::io::Error) -> ExportError {
        move |source| ExportError::Write { path: path.to_owned(), source }
    }
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::Records(e) => e.fmt(f),
            ExportError::Input(e) => e.fmt(f),
            ExportError::NoRun { dir, run: None } => {
                write!(f, "{}: holds no result: it has no manifest.json of sluicenet", dir.display())
            }
            ExportError::NoRun { dir, run: Some(run) } => {
                let (dir, run) = (dir.display(), run.display());
                write!(f, "{dir}: holds several runs, and an export is of one: name it, as {run}")
            }
            ExportError::Incomplete { path, status } => {
                let path = path.display();
                write!(
                    f,
                    "{path}: the run is incomplete ({status}): run it again, or export its records with --partial"
                )
            }
            ExportError::Lacks { dir, missing, otherwise } => {
                let what: Vec<&str> = missing.iter().map(|m| m.0).collect();
                let settings: Vec<String> = missing.iter().map(|m| format!("`{}`", m.1)).collect();
                let (dir, what, settings) = (dir.display(), what.join(" and no "), settings.join(" and "));
                write!(f, "{dir}: the records have no {what}: run the scenario again with {settings}{otherwise}")
            }
            ExportError::Unfit { dir, detail } => write!(f, "{}: {detail}", dir.display()),
            ExportError::Write { path, source } => write!(f, "{}: cannot write: {source}", path.display()),
        }
    }
}

impl std::error::Error for ExportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ExportError::Records(e) => Some(e),
            ExportError::Input(e) => Some(e),
            ExportError::Write { source, .. } => Some(source),
            _ => None,
        }
    }
}

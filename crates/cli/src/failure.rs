//! How a verb can fail, and the exit code that says so.

use sluicenet_experiment::run::RunError;
use sluicenet_records::RecordError;
use sluicenet_scenario as scenario;
use std::process::ExitCode;

/// Why a verb did not succeed.
#[derive(Debug)]
pub(super) enum Failure {
    /// Bad usage or input, a place that cannot take results, results that cannot be read. Exit code 2.
    Input(String),
    /// As `Input`: a scenario that cannot be used, perhaps after warnings.
    Scenario(scenario::Error),
    /// The run failed: loss in a lossless class, a deadlock, wrong sums, a disk that is full. Exit code 1.
    Failed(String),
    /// As `Failed`, but the message was already printed.
    Told,
    /// Stopped by Ctrl-C; the records so far are readable. Exit code 130, as of a shell's SIGINT.
    Interrupted(String),
}

impl Failure {
    /// The complete message to print, in the style of rustc.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::Input(text) if text.starts_with("error: ") => Some(text.clone()),
            Failure::Scenario(e) => Some(e.to_string()),
            Failure::Input(text) | Failure::Failed(text) => Some(format!("error: {text}")),
            Failure::Interrupted(text) => Some(format!("interrupted: {text}")),
            Failure::Told => None,
        }
    }

    /// The warnings before it.
    pub fn warnings(&self) -> &[scenario::Warning] {
        match self {
            Failure::Scenario(e) => &e.diagnostic().warnings,
            _ => &[],
        }
    }

    /// The exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Input(_) | Failure::Scenario(_) => 2,
            Failure::Failed(_) | Failure::Told => 1,
            Failure::Interrupted(_) => 130,
        })
    }
}

impl From<scenario::Error> for Failure {
    fn from(e: scenario::Error) -> Failure {
        Failure::Scenario(e)
    }
}

impl From<RecordError> for Failure {
    fn from(e: RecordError) -> Failure {
        match e {
            RecordError::Exists { .. } | RecordError::Busy { .. } => Failure::Input(e.to_string()),
            RecordError::Io { .. } | RecordError::Corrupt { .. } => Failure::Failed(e.to_string()),
        }
    }
}

impl Failure {
    /// A failure to read or decide something before any run: the input's fault, whatever the system says.
    pub fn input(e: impl std::fmt::Display) -> Failure {
        Failure::Input(e.to_string())
    }

    /// A failure to write where writing is the only work: the place is at fault.
    pub fn into_input(self) -> Failure {
        match self {
            Failure::Failed(text) => Failure::Input(text),
            other => other,
        }
    }
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Failure {
        match e {
            RunError::Build(e) => e.into(),
            RunError::Directory(e) => Failure::input(e),
            RunError::Records(e) => e.into(),
            RunError::Audit(_) | RunError::Frames { .. } => Failure::Failed(e.to_string()),
        }
    }
}

//! Errors as the specification wants them: a number, a short message and details.

use super::version::Version;
use serde_json::{Value, json};

/// "Incompatible CNI version".
pub const INCOMPATIBLE_VERSION: u32 = 1;
/// "Unsupported field in network configuration": the details contain key and value.
pub const UNSUPPORTED_FIELD: u32 = 2;
/// "Container unknown or does not exist": the runtime need not clean up.
pub const UNKNOWN_CONTAINER: u32 = 3;
/// "Invalid necessary environment variables": the details contain their names.
pub const ENVIRONMENT: u32 = 4;
/// "I/O failure".
pub const IO: u32 = 5;
/// "Failed to decode content".
pub const DECODE: u32 = 6;
/// "Invalid network config".
pub const INVALID_CONFIG: u32 = 7;
/// "Try again later".
pub const TRY_AGAIN: u32 = 11;
/// Of STATUS: "The plugin is not available".
pub const UNAVAILABLE: u32 = 50;
/// Of STATUS: "The plugin is not available, and existing containers in the network may have limited connectivity".
pub const LIMITED: u32 = 51;
/// A delegated plugin failed and gave no error of the specification.
pub const DELEGATED: u32 = 100;
/// The switch does not take the port.
pub const REFUSED: u32 = 101;
/// The kernel refused a request.
pub const KERNEL: u32 = 102;
/// CHECK: the attachment is not as it was made.
pub const CHANGED: u32 = 103;

/// All numbers, for the documentation's test.
#[cfg(test)]
pub const ALL: [u32; 14] = [
    INCOMPATIBLE_VERSION,
    UNSUPPORTED_FIELD,
    UNKNOWN_CONTAINER,
    ENVIRONMENT,
    IO,
    DECODE,
    INVALID_CONFIG,
    TRY_AGAIN,
    UNAVAILABLE,
    LIMITED,
    DELEGATED,
    REFUSED,
    KERNEL,
    CHANGED,
];

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its number.
    pub code: u32,
    /// A short message.
    pub message: String,
    /// The place and the reason.
    pub details: String,
}

impl Error {
    /// An error.
    pub fn new(code: u32, message: impl Into<String>, details: impl Into<String>) -> Error {
        Error { code, message: message.into(), details: details.into() }
    }

    /// A key of the configuration with a value that is none.
    pub fn key(key: &str, why: impl std::fmt::Display) -> Error {
        Error::new(INVALID_CONFIG, "invalid network configuration", format!("key {key:?}: {why}"))
    }

    /// The same error, with what could not be undone after it.
    pub fn and(mut self, undo: Result<(), Error>) -> Error {
        if let Err(undo) = undo {
            self.details = format!("{}; not all of it could be undone: {}", self.details, undo.sentence());
        }
        self
    }

    /// Message and details in one line.
    pub fn sentence(&self) -> String {
        match self.details.is_empty() {
            true => self.message.clone(),
            false => format!("{}: {}", self.message, self.details),
        }
    }

    /// As the runtime reads it.
    pub fn json(&self, version: Version) -> Value {
        json!({ "cniVersion": version.name(), "code": self.code, "msg": self.message, "details": self.details })
    }
}

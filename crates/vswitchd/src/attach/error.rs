//! Why a namespace was not attached, or not detached.

use sluicenet_dataplane::kernel::KernelError;
use std::fmt;
use std::io;

/// Why a namespace was not attached, or not detached. Nothing of a failed attachment is left, except where the message says so.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// The request contradicts itself, or a value is none.
    Invalid(String),
    /// The port, or the namespace, is attached already.
    Already {
        /// The port.
        port: String,
        /// The namespace.
        netns: String,
    },
    /// The namespace does not exist, or went away meanwhile.
    NoNamespace {
        /// The namespace.
        netns: String,
        /// The failed request.
        why: KernelError,
    },
    /// No switch answers.
    NoSwitch(io::Error),
    /// The switch does not take the port.
    Refused(String),
    /// The switch has no such port.
    NoSuchPort(String),
    /// The switch serves as many connections as it can, and has not read the request.
    Busy(String),
    /// The switch was asked and has not answered. It may have done what it was asked for.
    Unanswered(io::Error),
    /// The kernel refused a request.
    Kernel(KernelError),
    /// The record of attachments cannot be read or written.
    Record(io::Error),
    /// The attachment failed, and so did the attempt to undo it.
    Left {
        /// The first error.
        why: Box<AttachError>,
        /// The error of the attempt to undo it.
        undo: Box<AttachError>,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Invalid(why) | AttachError::Refused(why) | AttachError::NoSuchPort(why) => write!(f, "{why}"),
            AttachError::Busy(why) => write!(f, "the switch is busy: {why}; try again later"),
            AttachError::Unanswered(why) => {
                write!(f, "{why}: the switch was asked and has not answered; `sluicenet switch show` tells its ports")
            }
            AttachError::Already { port, netns } => write!(
                f,
                "namespace {netns} is attached already, as port {port}; `sluicenet switch detach {port}` undoes that"
            ),
            AttachError::NoNamespace { netns, why } => {
                write!(f, "{why}")?;
                match netns.starts_with('/') {
                    true => Ok(()),
                    false => write!(f, "; --create makes a namespace {netns}"),
                }
            }
            AttachError::NoSwitch(why) => write!(f, "{why}"),
            AttachError::Kernel(why) => write!(f, "{why}"),
            AttachError::Record(why) => write!(f, "the record of attachments: {why}"),
            AttachError::Left { why, undo } => write!(f, "{why}; not all of it could be undone: {undo}"),
        }
    }
}

impl std::error::Error for AttachError {}

impl From<KernelError> for AttachError {
    fn from(why: KernelError) -> AttachError {
        AttachError::Kernel(why)
    }
}

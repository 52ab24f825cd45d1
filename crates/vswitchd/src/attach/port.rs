//! Ports that commands add to a switch without a namespace of their own.

use super::asked::{may_be_done, request};
use super::record::{Record, Records};
use super::{AttachError, given_once};
use crate::config::port_from_words;
use crate::control::Request;
use std::path::Path;

/// Adds a port to a switch, and records it, so that the switch opens it again when it starts again.
///
/// # Errors
/// The switch refuses the port, or the record cannot be written.
pub fn add_port(control: &Path, name: &str, settings: &[String]) -> Result<String, AttachError> {
    given_once(settings)?;
    port_from_words(name, settings).map_err(|e| AttachError::Invalid(format!("port {name:?}: {}", e.sentence())))?;
    let records = Records::at(control);
    // As in an attachment, the record says that the switch was asked, before it is.
    let record = Record { port: name.to_owned(), settings: settings.to_vec(), added: true, ..Record::default() };
    {
        let _lock = records.lock().map_err(AttachError::Record)?;
        if let Some(other) = records.get(name).map_err(AttachError::Record)? {
            return Err(AttachError::Refused(format!("there is a port {} already", other.port)));
        }
        records.write(&record).map_err(AttachError::Record)?;
    }
    let added = request(control, &Request::AddPort { name: name.to_owned(), settings: settings.to_vec() });
    if added.as_ref().is_err_and(|e| !may_be_done(e)) {
        records.remove(name).map_err(AttachError::Record)?;
    }
    added
}

/// Removes a port from a switch, and from the record. A port of an attachment is refused.
///
/// # Errors
/// The switch has no such port, or the record cannot be written.
pub fn remove_port(control: &Path, name: &str) -> Result<String, AttachError> {
    let records = Records::at(control);
    if records.get(name).map_err(AttachError::Record)?.is_some_and(|record| record.netns.is_some()) {
        let why = format!("port {name} was attached with its namespace: `sluicenet switch detach {name}` removes both");
        return Err(AttachError::Refused(why));
    }
    let removed = request(control, &Request::DelPort { name: name.to_owned() });
    // A port that the switch does not have, as one that its start left out, may still have a record.
    if matches!(removed, Ok(_) | Err(AttachError::NoSuchPort(_))) {
        records.remove(name).map_err(AttachError::Record)?;
    }
    removed
}

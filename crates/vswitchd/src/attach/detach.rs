//! Undoes an attachment, whole or not.

use super::AttachError;
use super::asked::request;
use super::record::{Record, Records};
use crate::control::Request;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::Namespace;
use std::io::ErrorKind;
use std::path::Path;

/// Detaches the port, or the namespace, of this name: the port, the pair and, if `attach` made it, the namespace are removed,
/// if they still exist. The switch need not run. Returns the record of the attachment; `None` if there is none.
///
/// # Errors
/// A part of it could not be removed. The attachment stays recorded, and can be detached again.
pub fn detach(control: &Path, port_or_netns: &str) -> Result<Option<Record>, AttachError> {
    let records = Records::at(control);
    let all = records.all().map_err(AttachError::Record)?;
    let short =
        |netns: &str| netns.strip_prefix("/run/netns/").or(netns.strip_prefix("/var/run/netns/")).map(str::to_owned);
    let name = short(port_or_netns).unwrap_or_else(|| port_or_netns.to_owned());
    let netns = |record: &Record| record.netns.as_deref().map(|netns| short(netns).unwrap_or_else(|| netns.to_owned()));
    let by_port = all.iter().position(|record| record.port == port_or_netns);
    let Some(at) = by_port.or_else(|| all.iter().position(|record| netns(record).as_deref() == Some(&name))) else {
        return Ok(None);
    };
    undo(control, &records, &all[at])?;
    Ok(all.into_iter().nth(at))
}

/// Removes all parts of an attachment that still exist, and then its record.
pub(super) fn undo(control: &Path, records: &Records, record: &Record) -> Result<(), AttachError> {
    if record.added {
        match request(control, &Request::DelPort { name: record.port.clone() }) {
            // A switch that does not run has no ports.
            Ok(_) | Err(AttachError::NoSuchPort(_) | AttachError::NoSwitch(_)) => {}
            // It may still have the port, and would serve it without a record.
            Err(e) => return Err(e),
        }
    }
    let missing = |e: &KernelError| e.why().kind() == ErrorKind::NotFound;
    // First, so that an attempt after a failure still finds the pair, which tells whose namespace it is.
    if let (Some(made), Some(netns)) = (record.made_netns, &record.netns) {
        match Namespace::open(netns) {
            // Another namespace of this name is not ours. The kernel gives numbers of namespaces again, but a pair ends with the
            // namespace that one of its devices is in.
            Ok(namespace) if namespace.identity()? == made && has_its_pair(record)? => Namespace::delete(netns)?,
            Ok(_) => {}
            Err(e) if missing(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    if let Some(pair) = &record.pair {
        match Namespace::open(&pair.netns) {
            Ok(switch) => switch.enter(|| -> Result<(), KernelError> {
                let mut links = Links::open()?;
                match links.find(&pair.device)? {
                    // It may go away meanwhile, with the namespace of its other end.
                    Some(_) => links.delete(&pair.device).or_else(|e| match links.find(&pair.device)? {
                        None => Ok(()),
                        Some(_) => Err(e),
                    }),
                    None => Ok(()),
                }
            })??,
            Err(e) if missing(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let _lock = records.lock().map_err(AttachError::Record)?;
    records.remove(&record.port).map_err(AttachError::Record)?;
    match &record.own_netns {
        Some(netns) => remove_if_empty(records, netns),
        None => Ok(()),
    }
}

/// Whether the pair of an attachment exists, if it was made.
fn has_its_pair(record: &Record) -> Result<bool, AttachError> {
    let Some(pair) = &record.pair else { return Ok(true) };
    match Namespace::open(&pair.netns) {
        Ok(switch) => Ok(switch.enter(|| Links::open()?.find(&pair.device))??.is_some()),
        Err(e) if e.why().kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Removes the namespace of the switch's ends after the last one.
fn remove_if_empty(records: &Records, netns: &str) -> Result<(), AttachError> {
    let used = |record: &Record| record.own_netns.as_deref() == Some(netns);
    if records.all().map_err(AttachError::Record)?.iter().any(used) {
        return Ok(());
    }
    let Ok(namespace) = Namespace::open(netns) else { return Ok(()) };
    if namespace.enter(|| Links::open()?.count())?? == 0 {
        Namespace::delete(netns)?;
    }
    Ok(())
}

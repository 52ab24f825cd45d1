//! The attachments of containers, as the switch's records keep them.

use super::config::{Attachment, Network};
use super::error::{Error, INVALID_CONFIG, IO, KERNEL, REFUSED, TRY_AGAIN, UNKNOWN_CONTAINER};
use serde::{Deserialize, Serialize};
use sluicenet_vswitchd::attach::record::{Record, Records};
use sluicenet_vswitchd::attach::{AttachError, detach};
use sluicenet_vswitchd::config::default_control;
use sluicenet_vswitchd::control::running;
use std::path::{Path, PathBuf};

/// The longest beginning of a port's name: with the hash it fits the names of ports.
const NAME_BYTES_MAX: usize = 20;

/// The note that an attachment's record has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    network: String,
    #[serde(flatten)]
    attachment: Attachment,
}

/// An attachment that exists, at least in parts.
#[derive(Clone, Debug)]
pub struct Attached {
    /// Whose it is.
    pub attachment: Attachment,
    /// The control socket of its switch, which need not run.
    pub control: PathBuf,
    /// What was made for it.
    pub record: Record,
}

impl Attached {
    /// Undoes it.
    pub fn detach(&self) -> Result<(), Error> {
        detach(&self.control, &self.record.port).map(drop).map_err(error)
    }
}

/// The note of an attachment.
pub fn note(network: &str, attachment: &Attachment) -> String {
    let note = Note { network: network.to_owned(), attachment: attachment.clone() };
    serde_json::to_string(&note).expect("texts")
}

/// The control socket of the network's switch.
pub fn control(network: &Network) -> Result<PathBuf, Error> {
    if let Some(switch) = &network.switch {
        return Ok(named(switch));
    }
    let folder = folder();
    match &running(&folder)[..] {
        [(_, path)] => Ok(path.clone()),
        [] => Err(Error::new(TRY_AGAIN, "no switch", format!("no switch runs in {}", folder.display()))),
        several => {
            let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
            let why = format!("it is missing, and several switches run; expected: one of {}", names.join(", "));
            Err(Error::key("switch", why))
        }
    }
}

/// All attachments of a network.
pub fn all(network: &Network) -> Result<Vec<Attached>, Error> {
    let controls = match &network.switch {
        Some(switch) => vec![named(switch)],
        None => Records::controls(&folder()),
    };
    let mut found = Vec::new();
    for control in controls {
        let records =
            Records::at(&control).all().map_err(|e| Error::new(IO, "records of attachments", e.to_string()))?;
        for record in records {
            let note = record.note.as_deref().and_then(|note| serde_json::from_str::<Note>(note).ok());
            let Some(Note { attachment, .. }) = note.filter(|note| note.network == network.name) else { continue };
            found.push(Attached { attachment, control: control.clone(), record });
        }
    }
    Ok(found)
}

/// An attachment.
pub fn find(network: &Network, attachment: &Attachment) -> Result<Option<Attached>, Error> {
    Ok(all(network)?.into_iter().find(|attached| attached.attachment == *attachment))
}

/// A name for the port: that of the pod, or the beginning of the container's identifier, and a hash of the attachment.
pub fn port_name(network: &str, attachment: &Attachment, pod: Option<&str>) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let readable = pod.filter(|pod| pod.starts_with(|c: char| c.is_ascii_alphanumeric()) && pod.chars().all(fits));
    let beginning = match readable {
        Some(pod) => &pod[..pod.len().min(NAME_BYTES_MAX)],
        None => &attachment.container[..attachment.container.len().min(12)],
    };
    // FNV-1a of 32 bits: containers of one server with the same beginning have other hashes.
    let parts = [network, "/", &attachment.container, "/", &attachment.ifname];
    let hash = parts
        .iter()
        .flat_map(|part| part.bytes())
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{beginning}-{hash:08x}")
}

/// An error of attaching or detaching, with the specification's number.
pub fn error(why: AttachError) -> Error {
    let details = why.to_string();
    let (code, message) = match &why {
        AttachError::Invalid(_) => (INVALID_CONFIG, "invalid network configuration"),
        AttachError::NoNamespace { .. } => (UNKNOWN_CONTAINER, "the container has gone"),
        AttachError::NoSwitch(_) => (TRY_AGAIN, "no switch"),
        AttachError::Busy(_) | AttachError::Unanswered(_) => (TRY_AGAIN, "the switch does not answer"),
        AttachError::Already { .. } | AttachError::Refused(_) | AttachError::NoSuchPort(_) => {
            (REFUSED, "the switch does not take the container")
        }
        AttachError::Record(_) => (IO, "records of attachments"),
        AttachError::Left { .. } => (KERNEL, "an attachment that failed is still there in parts"),
        _ => (KERNEL, "the kernel refused a request"),
    };
    Error::new(code, message, details)
}

fn named(switch: &str) -> PathBuf {
    match switch.starts_with('/') {
        true => switch.into(),
        false => default_control(switch),
    }
}

/// The folder of the control sockets of switches.
fn folder() -> PathBuf {
    let any = default_control("any");
    any.parent().unwrap_or(Path::new("/")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container: &str, ifname: &str) -> Attachment {
        Attachment { container: container.into(), ifname: ifname.into() }
    }

    #[test]
    fn a_port_is_named_after_its_pod_or_its_container() {
        let long = "3f2a9c5b7d1e3f2a9c5b7d1e3f2a9c5b7d1e3f2a9c5b7d1e3f2a9c5b7d1e3f2a";
        let name = |network, ifname, pod| port_name(network, &attachment(long, ifname), pod);
        let one = name("net", "eth0", None);
        assert!(one.starts_with("3f2a9c5b7d1e-") && one.len() == 21, "{one}");
        assert_eq!(one, name("net", "eth0", None));
        assert_ne!(one, name("net", "eth1", None));
        assert_ne!(one, name("other", "eth0", None));
        assert!(name("net", "eth0", Some("web-0")).starts_with("web-0-"));
        assert_eq!(name("net", "eth0", Some("a-pod-with-a-name-of-many-letters")).len(), 29);
        for strange in ["-x", "a b", "a/b", "ä", ""] {
            assert_eq!(name("net", "eth0", Some(strange)), one, "{strange}");
        }
    }

    #[test]
    fn the_note_names_the_attachment() {
        let note = note("net", &attachment("c0ffee", "eth0"));
        assert_eq!(note, r#"{"network":"net","containerID":"c0ffee","ifname":"eth0"}"#);
        let read: Note = serde_json::from_str(&note).unwrap();
        assert_eq!(read.attachment, attachment("c0ffee", "eth0"));
    }
}

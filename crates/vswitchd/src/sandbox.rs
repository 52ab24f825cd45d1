//! The sandbox of a switch: the files and system calls that are left once its ports are open.

use super::config::{Config, PortKind};
use sluicenet_dataplane::confine::{Confined, Folders, Uses, confine, files::may_make_socket};
use sluicenet_dataplane::vhost::Socket;
use std::io;
use std::path::{Path, PathBuf};
use tracing::warn;

/// The limits that the switch has set itself.
#[derive(Debug, Default)]
pub(super) struct Sandbox {
    folders: Option<Folders>,
    /// Whether the switch may connect to no socket.
    connects_nowhere: bool,
    /// The limits in force, as the log names them.
    pub limits: &'static str,
}

impl Sandbox {
    /// Limits this thread, and all that it starts.
    ///
    /// # Errors
    /// The kernel supports a limit and refuses it.
    pub fn enter(config: &Config) -> io::Result<Sandbox> {
        if !config.sandbox {
            return Ok(Sandbox { limits: "none", ..Sandbox::default() });
        }
        let uses = Uses {
            folders: folders(config),
            connects: config.ports.iter().any(|port| connects(&port.kind)),
            shares: config.socket_group.is_some(),
        };
        let confined = confine(&uses)?;
        missing(&confined).into_iter().for_each(|reason| warn!(reason, "sandbox incomplete"));
        let limits = match (confined.calls, confined.files.as_ref().map(Vec::is_empty)) {
            (true, Some(true)) => "calls files",
            (true, Some(false)) => "calls files-in-part",
            (true, None) => "calls",
            (false, Some(true)) => "files",
            (false, Some(false)) => "files-in-part",
            (false, None) => "none",
        };
        let connects_nowhere = confined.calls && !uses.connects;
        Ok(Sandbox { folders: confined.files.is_some().then_some(uses.folders), connects_nowhere, limits })
    }

    /// Why the sandbox does not allow a port, if it does not.
    pub fn objection(&self, kind: &PortKind) -> Option<String> {
        if self.connects_nowhere && connects(kind) {
            return Some(
                "since its start the switch may connect to no socket; use `socket` instead of `connect`, or name the port in \
                 the file and start the switch again"
                    .into(),
            );
        }
        let (folders, path) = (self.folders.as_ref()?, kind.socket()?);
        (!may_make_socket(folders, path)).then(|| {
            format!(
                "{}: since its start the switch may make no socket there; name its folder in `socket_folders` of [switch], \
                 or by `--socket-folder` without a file, and start the switch again",
                path.display()
            )
        })
    }
}

/// The limits that this kernel does not support, a sentence each.
fn missing(confined: &Confined) -> Vec<String> {
    let calls = (!confined.calls).then(|| "this kernel limits no system calls (CONFIG_SECCOMP_FILTER)".to_owned());
    let files = match &confined.files {
        None => Some("this kernel limits no files (Landlock, Linux 5.13)".to_owned()),
        Some(rights) if rights.is_empty() => None,
        Some(rights) => Some(format!("this kernel does not limit: {}", rights.join(", "))),
    };
    calls.into_iter().chain(files).collect()
}

/// Whether the switch connects to the socket of a port.
fn connects(kind: &PortKind) -> bool {
    matches!(kind, PortKind::VhostUser { socket: Socket::Connect(_), .. })
}

/// The folders that a switch uses after its start.
fn folders(config: &Config) -> Folders {
    let folder = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
    let sockets = config.ports.iter().filter_map(|port| port.kind.socket().map(folder));
    let sockets: Vec<PathBuf> = sockets.chain(config.socket_folders.iter().cloned()).collect();
    Folders { read: config.files().map(folder).collect(), remove: vec![folder(&config.control)], sockets }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_limit_is_named() {
        let whole = Confined { calls: true, files: Some(Vec::new()) };
        assert_eq!(missing(&whole), Vec::<String>::new());
        let part = Confined { files: Some(vec!["TCP (Linux 6.7)", "signals (Linux 6.12)"]), ..whole };
        assert_eq!(missing(&part), ["this kernel does not limit: TCP (Linux 6.7), signals (Linux 6.12)"]);
        assert_eq!(missing(&Confined { calls: false, files: None }).len(), 2);
    }
}

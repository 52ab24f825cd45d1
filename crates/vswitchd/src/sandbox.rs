//! The sandbox of a switch: the files and system calls that are left once its ports are open.

use super::config::{Config, PortKind};
use sluicenet_dataplane::confine::{Folders, confine, files::may_make_socket};
use sluicenet_dataplane::vhost::Socket;
use std::io;
use std::path::{Path, PathBuf};
use tracing::warn;

/// The limits that the switch has set itself.
#[derive(Debug, Default)]
pub(super) struct Sandbox {
    folders: Option<Folders>,
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
            return Ok(Sandbox { folders: None, limits: "none" });
        }
        let folders = folders(config);
        let confined = confine(&folders)?;
        if !confined.calls {
            let reason = "this kernel limits no system calls (CONFIG_SECCOMP_FILTER)";
            warn!(reason, "sandbox incomplete");
        }
        if !confined.files {
            warn!(reason = "this kernel limits no files (Landlock, Linux 5.13)", "sandbox incomplete");
        }
        let limits = match (confined.calls, confined.files) {
            (true, true) => "calls files",
            (true, false) => "calls",
            (false, true) => "files",
            (false, false) => "none",
        };
        Ok(Sandbox { folders: confined.files.then_some(folders), limits })
    }

    /// Why the sandbox does not allow a port, if it does not.
    pub fn objection(&self, kind: &PortKind) -> Option<String> {
        let (Some(folders), PortKind::VhostUser { socket: Socket::Listen(path), .. }) = (&self.folders, kind) else {
            return None;
        };
        (!may_make_socket(folders, path)).then(|| {
            format!(
                "{}: since its start the switch may make no socket there; name its folder in `socket_folders` of [switch], \
                 or by `--socket-folder` without a file, and start the switch again",
                path.display()
            )
        })
    }
}

/// The folders that a switch uses after its start.
fn folders(config: &Config) -> Folders {
    let folder = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
    let sockets = config.ports.iter().filter_map(|port| match &port.kind {
        PortKind::VhostUser { socket: Socket::Listen(path), .. } => Some(folder(path)),
        _ => None,
    });
    let key =
        config.uplink.iter().filter_map(|uplink| uplink.overlay.as_ref()).map(|overlay| folder(&overlay.key_file));
    let file = config.has_file().then(|| folder(&config.file));
    let sockets: Vec<PathBuf> = sockets.chain(config.socket_folders.iter().cloned()).collect();
    Folders { read: file.into_iter().chain(key).collect(), remove: vec![folder(&config.control)], sockets }
}

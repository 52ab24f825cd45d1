//! The installed programs, kernel and modules of guests.

use super::{GuestError, at};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Modules that are loaded if the kernel has them: congestion controls that a scenario may ask for, and what departure times need.
const OPTIONAL_MODULES: [&str; 5] = ["tcp_vegas", "tcp_dctcp", "sch_fq", "sch_ingress", "cls_bpf"];

/// A guest's network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Nic {
    /// Made for virtual machines
    Virtio,
    /// Intel's, emulated whole
    E1000,
}

impl Nic {
    /// The modules of the device and of the socket diagnostics that an agent uses, each after the modules that it
    /// needs.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Nic::Virtio => &[
                "virtio_ring",
                "virtio",
                "virtio_pci_modern_dev",
                "virtio_pci_legacy_dev",
                "virtio_pci",
                "failover",
                "net_failover",
                "virtio_net",
                "inet_diag",
                "udp_diag",
            ],
            Nic::E1000 => &["e1000", "inet_diag", "udp_diag"],
        }
    }

    /// The package of a kernel with these modules.
    fn package(self) -> &'static str {
        match self {
            Nic::Virtio => "linux-image-cloud-amd64",
            // The cloud kernel lacks e1000.
            Nic::E1000 => "linux-image-amd64",
        }
    }
}

/// The installed programs, kernel and modules of a guest.
#[derive(Clone, Debug)]
pub struct Parts {
    pub(crate) qemu: PathBuf,
    pub(super) busybox: PathBuf,
    pub(crate) kernel: PathBuf,
    pub(super) modules: Vec<PathBuf>,
}

impl Parts {
    /// The installed parts of guests with network device `nic`.
    ///
    /// # Errors
    /// The first missing part, and the packages to install.
    pub fn find(nic: Nic) -> Result<Parts, GuestError> {
        let qemu = program("qemu-system-x86_64")?;
        let busybox = program("busybox")?;
        let boot = Path::new("/boot");
        let files = std::fs::read_dir(boot).map_err(at(boot))?.flatten();
        let mut versions: Vec<String> =
            files.filter_map(|f| f.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned)).collect();
        // Kernels made for guests boot faster.
        versions.sort_by_key(|version| (!version.contains("cloud"), std::cmp::Reverse(version.clone())));
        for version in &versions {
            if let Some(modules) = modules(Path::new("/lib/modules").join(version).as_path(), nic) {
                let kernel = boot.join(format!("vmlinuz-{version}"));
                return Ok(Parts { qemu, busybox, kernel, modules });
            }
        }
        let (names, package) = (nic.modules().join(", "), nic.package());
        Err(GuestError::Missing(format!(
            "no kernel in /boot with the modules {names}, not compressed ({package} has them)"
        )))
    }
}

/// The modules of a network device among those of a kernel, without those that are built in; `None` when one is missing.
fn modules(of: &Path, nic: Nic) -> Option<Vec<PathBuf>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![of.join("kernel")];
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(&folder).ok()?.flatten() {
            let path = file.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(name) = path.file_name().and_then(|n| n.to_str()?.strip_suffix(".ko")) {
                found.insert(name.to_owned(), path.clone());
            }
        }
    }
    let built_in = std::fs::read_to_string(of.join("modules.builtin")).unwrap_or_default();
    let is_built_in = |name: &str| built_in.lines().any(|line| line.ends_with(&format!("/{name}.ko")));
    let wanted = nic.modules().iter().filter(|name| !is_built_in(name));
    let mut all: Vec<PathBuf> = wanted.map(|&name| found.get(name).cloned()).collect::<Option<_>>()?;
    all.extend(OPTIONAL_MODULES.iter().filter_map(|&name| found.get(name).cloned()));
    Some(all)
}

/// The path of a program.
///
/// # Errors
/// [`GuestError::Missing`] when the program is not on the path.
pub fn program(name: &str) -> Result<PathBuf, GuestError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|p| p.is_file()).ok_or_else(|| GuestError::Missing(format!("no {name}")))
}

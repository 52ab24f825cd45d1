//! `doctor`: features of this machine that sluicenet can use. Nothing here needs root, and nothing is changed.

use super::failure::Failure;
use super::table::{Table, short};
use super::{Global, cells, output};
use rustix::fs::{Access, access};
use rustix::thread::CapabilitySet;
use serde::Serialize;
use sluicenet_dataplane::kernel::netns;
use sluicenet_vswitchd::privileges;
use std::path::Path;
use std::process::Command;

#[derive(Serialize)]
struct Finding {
    name: &'static str,
    found: Option<String>,
    /// Purpose of the requirement.
    purpose: &'static str,
    needed: bool,
}

pub(super) fn main(global: Global) -> Result<(), Failure> {
    let version = |program: &str, args: &[&str]| {
        // The system's own tools are not in every user's search path.
        let run = |program: &str| Command::new(program).args(args).output().ok();
        let out = run(program).or_else(|| run(&format!("/usr/sbin/{program}")))?;
        let text = if out.stdout.is_empty() { out.stderr } else { out.stdout };
        String::from_utf8_lossy(&text).lines().next().map(|l| l.trim().chars().take(60).collect::<String>())
    };
    let finding = |name, found, purpose, needed| Finding { name, found, purpose, needed };
    let memory = memory_bytes().map(|(all, free)| format!("{}B, {}B free", short(all), short(free)));
    let data = ["../shared/data", "../../shared/data"].iter().find(|d| Path::new(d).is_dir());
    let samples = data.map(|d| {
        let count = std::fs::read_dir(d).map_or(0, |entries| entries.flatten().count());
        format!("{d}: {count} entries")
    });
    let scratch = super::files::Scratch::new().ok();
    let place = std::env::temp_dir().display().to_string();
    let findings = [
        finding("sluicenet", Some(env!("CARGO_PKG_VERSION").into()), "this program", true),
        finding("cores", Some(cells::cores().to_string()), "sweeps use all, a run as many as --threads", true),
        finding("memory", memory, "about 1 GB for the demo", true),
        finding("temporary files", scratch.map(|_| format!("{place}: writable")), "bench without --out", true),
        finding("python3", version("python3", &["--version"]), "the Python package, from 3.11", false),
        finding("namespaces", namespaces(), "the testbed; ports for containers (kind veth, tap)", false),
        finding("packet sockets", packet_sockets(), "the uplink (kind packet)", false),
        finding("/dev/net/tun", may_use("/dev/net/tun"), "ports for containers (kind tap)", false),
        finding("huge pages", huge_pages(), "nothing needs them: guests' memory may be in some", false),
        finding(
            "qemu",
            version("qemu-system-x86_64", &["--version"]),
            "guests at the switch (kind vhost-user), of a testbed",
            false,
        ),
        finding("/dev/kvm", may_use("/dev/kvm"), "fast guests; without it QEMU emulates them", false),
        finding("busybox", version("busybox", &[]), "the file system of guests, from busybox-static", false),
        finding("guest kernel", guest_kernel(), "guests, from linux-image-cloud-amd64", false),
        finding(
            "open vswitch",
            version("ovs-vswitchd", &["--version"]),
            "bench overload --switch ovs; testbed fattree",
            false,
        ),
        finding("ip", version("ip", &["-V"]), "tests in namespaces, from iproute2", false),
        finding("ethtool", version("ethtool", &["--version"]), "tests in namespaces", false),
        finding("iperf3", version("iperf3", &["--version"]), "traffic of your own at the switch", false),
        finding("tshark", version("tshark", &["--version"]), "reading captures", false),
        finding("chromium", version("chromium", &["--version"]), "pictures of report pages", false),
        finding("sample files", samples, "tests against other simulators' files", false),
    ];
    if global.json {
        output::json(&findings);
    } else {
        let mut t = Table::new(4, ["", "", "found", "for"]);
        for f in &findings {
            let mark = match (&f.found, f.needed) {
                (Some(_), _) => "✔",
                (None, true) => "✘",
                (None, false) => "-",
            };
            let absent = if f.needed { "missing" } else { "not found (optional)" };
            t.row([mark, f.name, f.found.as_deref().unwrap_or(absent), f.purpose]);
        }
        output::print(&t.text());
    }
    match findings.iter().find(|f| f.needed && f.found.is_none()) {
        None => Ok(()),
        Some(f) => Err(Failure::Failed(format!("{} is missing: {}", f.name, f.purpose))),
    }
}

/// Whether network namespaces can be made, and their content changed.
fn namespaces() -> Option<String> {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::SYS_ADMIN;
    let may = privileges::own().contains(needed) && netns::may_make_namespaces().is_ok();
    may.then(|| "may be made".into())
}

fn packet_sockets() -> Option<String> {
    privileges::own().contains(CapabilitySet::NET_RAW).then(|| "may be opened".into())
}

/// Whether a device may be read and written.
fn may_use(path: &str) -> Option<String> {
    access(path, Access::READ_OK | Access::WRITE_OK).is_ok().then(|| "may be used".into())
}

/// How many are set aside, of 2 MiB.
fn huge_pages() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").ok()?;
    let count: u64 = text.trim().parse().ok()?;
    (count > 0).then(|| format!("{count} of 2 MiB"))
}

/// The newest of Debian's kernels for virtual machines, with its modules.
fn guest_kernel() -> Option<String> {
    let names = std::fs::read_dir("/boot").ok()?.flatten().filter_map(|f| f.file_name().into_string().ok());
    let versions = names.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned));
    versions.filter(|v| v.contains("cloud") && Path::new("/lib/modules").join(v).is_dir()).max()
}

/// All memory and free memory, in bytes.
fn memory_bytes() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok().map(|kb| kb * 1024.0)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

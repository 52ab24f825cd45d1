//! Networks of namespaces on this machine. Their parts are removed when they are dropped.

use crate::live::PATIENCE;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::{Feature, Links, TokenBucket};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::leftovers::{self, Leftover};
use sluicenet_dataplane::process::Program;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::Scenario;
use sluicenet_wire::ethernet::{FCS_LEN, HEADER_LEN, MacAddress};
use std::fs::DirBuilder;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The device of a host.
pub(crate) const HOST_DEVICE: &str = "eth0";
/// Full frames that can wait at a host: the default length of a device's queue.
const HOST_QUEUE: u32 = 1_000;
/// Where the folders of networks are.
const FOLDERS: &str = "/run/sluicenet";

/// The folder of a network's files; deleted when dropped.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes it. `sluicenet clean` finds it after a crash.
    pub fn create(name: &str) -> io::Result<Folder> {
        let path = Path::new(FOLDERS).join(name);
        leftovers::add(Leftover::Folder(path.clone()))?;
        std::fs::create_dir_all(FOLDERS)?;
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Folder(path))
    }
}

impl Deref for Folder {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::fs::remove_dir_all(&self.0).is_ok() {
            leftovers::forget(&Leftover::Folder(self.0.clone()));
        }
    }
}

/// The namespaces of a network; deleted when dropped. The programs in them must have ended.
#[derive(Debug, Default)]
pub(crate) struct Spaces(Vec<Namespace>);

impl Spaces {
    /// Makes a namespace in which the kernel sends nothing by itself; returns its index.
    pub fn add(&mut self, name: &str) -> io::Result<usize> {
        self.0.push(Namespace::create(name)?);
        let at = self.0.len() - 1;
        self.0[at].silence()?;
        Ok(at)
    }
}

impl Deref for Spaces {
    type Target = [Namespace];
    fn deref(&self) -> &[Namespace] {
        &self.0
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for namespace in &self.0 {
            // `sluicenet clean` finds namespaces that could not be deleted.
            let _ = Namespace::delete(namespace.name());
        }
    }
}

/// Has a device carry frames as they are on the wire, and switches it on.
pub(crate) fn plain(links: &mut Links, device: &str, mtu: u32) -> Result<(), KernelError> {
    for feature in [Feature::TxChecksum, Feature::Tso, Feature::Gso, Feature::Gro] {
        links.set_feature(device, feature, false)?;
    }
    links.set_mtu(device, mtu)?;
    links.up(device)
}

/// A host's end of its link.
pub(crate) struct HostEnd<'a> {
    pub space: &'a Namespace,
    pub mac: MacAddress,
    pub address: Ipv4Addr,
    pub prefix: u8,
}

/// Makes a host's link from the device `edge` at the fabric. The host knows its neighbours, because frames to all hosts are none of
/// the fabric's.
pub(crate) fn connect<'a>(
    (fabric, edge): (&Namespace, &str),
    host: &HostEnd<'_>,
    mtu: u32,
    neighbours: impl Iterator<Item = (Ipv4Addr, &'a MacAddress)> + Send,
) -> io::Result<()> {
    fabric.enter(|| {
        let mut links = Links::open()?;
        links.create_veth(edge, HOST_DEVICE, host.space)?;
        plain(&mut links, edge, mtu)
    })??;
    host.space.enter(|| {
        let mut links = Links::open()?;
        links.set_mac(HOST_DEVICE, host.mac.0)?;
        plain(&mut links, HOST_DEVICE, mtu)?;
        links.add_address(HOST_DEVICE, IpAddr::V4(host.address), host.prefix)?;
        for (address, mac) in neighbours {
            links.add_neighbour(HOST_DEVICE, IpAddr::V4(address), mac.0)?;
        }
        Ok::<_, KernelError>(())
    })??;
    Ok(())
}

/// The share of a link's rate that the kernel counts: its queues do not see preambles, gaps and check sequences.
pub(crate) fn counted(scenario: &Scenario, rate: Rate) -> Rate {
    let frame = frame_bytes(scenario);
    let wire = frame + FCS_LEN as u64 + scenario.framing.gap_bytes();
    Rate(rate.as_bps() * frame / wire)
}

/// The queue of a host's adapter, of a link's rate: a veth takes frames at any speed.
pub(crate) fn host_queue(scenario: &Scenario, rate: Rate) -> TokenBucket {
    let frame = frame_bytes(scenario) as u32;
    TokenBucket { rate: counted(scenario, rate).as_bps() / 8, burst: 2 * frame, limit: HOST_QUEUE * frame }
}

/// Bytes of a full frame, as queues of the kernel count them.
fn frame_bytes(scenario: &Scenario) -> u64 {
    scenario.framing.mtu.as_bytes() + HEADER_LEN as u64
}

/// Waits until it is so; an error, with its log, if a program has ended or takes too long.
pub(crate) fn wait_for(
    (name, program, log): (&str, &mut Program, &Path),
    stop: &AtomicBool,
    so: impl Fn() -> bool,
) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !so() {
        check(stop)?;
        if program.try_wait()?.is_some() || Instant::now() > until {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            return Err(io::Error::other(format!("{name} did not start: {}", said.trim())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// An error if `stop` was raised.
pub(crate) fn check(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Relaxed) { Err(io::Error::new(ErrorKind::Interrupted, "stopped")) } else { Ok(()) }
}

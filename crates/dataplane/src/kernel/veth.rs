//! A veth pair between the switch and a tenant, and what is set at its ends.

use super::error::{KernelError, Tried};
use super::link::{Feature, Links};
use super::netns::{self, Namespace};
use std::io;

/// What Linux charges a full frame of an MTU of 1500.
const FULL_FRAME: u64 = 2304;

/// Frames that wait at a tenant's device. A queue costs nothing until it is used; and what waits in it its senders have in their sockets'
/// send buffers, of 212,992 bytes each where they did not ask for others: 277 datagrams of 8 bytes, or 93 full frames.
///
/// So what bounds it is the machine's memory, a quarter of which it may take with full frames: where sockets are so many, no queue holds
/// them all. What no socket pays for, such as what a tenant passes on, has its end there too.
fn tenant_queue(memory: u64) -> u32 {
    (memory / 4 / FULL_FRAME).clamp(100_000, i32::MAX as u64) as u32
}

/// Bytes of memory that wait for a neighbour's address, in place of Linux's 212,992, one socket's: what the queue holds.
fn unresolved_bytes(queue: u32) -> i32 {
    (u64::from(queue) * FULL_FRAME).min(i32::MAX as u64) as i32
}

/// The machine's memory, in bytes.
fn memory() -> Result<u64, KernelError> {
    const PATH: &str = "/proc/meminfo";
    let text = std::fs::read_to_string(PATH).tried(|| PATH.to_owned())?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "it has no line MemTotal");
    Ok(kib.ok_or_else(unknown).tried(|| PATH.to_owned())? << 10)
}

/// A veth pair between the switch and a tenant.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    /// Where the switch's end is: best a namespace of the switch's own, without addresses.
    pub switch: &'a Namespace,
    /// The name of that end.
    pub switch_device: &'a str,
    /// Where the tenant's end is.
    pub tenant: &'a Namespace,
    /// The name of that end.
    pub tenant_device: &'a str,
}

impl Veth<'_> {
    /// Makes the pair, ready for a [`ValvePort`](super::valve::ValvePort); the tenant's end has no address yet.
    pub fn create(&self, mac: [u8; 6], mtu: u32) -> Result<(), KernelError> {
        self.switch.enter(|| {
            let mut links = Links::open()?;
            links.create_veth(self.switch_device, self.tenant_device, self.tenant)?;
            links.set_mtu(self.switch_device, mtu)?;
            self.prepare(&mut links)
        })??;
        self.tenant.enter(|| {
            let mut links = Links::open()?;
            links.set_mac(self.tenant_device, mac)?;
            links.set_mtu(self.tenant_device, mtu)?;
            self.prepare_tenant(&mut links, false)?;
            links.up(self.tenant_device)
        })??;
        self.switch.enter(|| Links::open()?.up(self.switch_device))??;
        Ok(())
    }

    /// Makes the pair as the kernel does, for switches of other kinds; with `checksummed` the tenant's frames carry their
    /// checksums.
    pub fn create_plain(&self, mac: [u8; 6], checksummed: bool) -> Result<(), KernelError> {
        self.switch.enter(|| Links::open()?.create_veth(self.switch_device, self.tenant_device, self.tenant))??;
        self.tenant.enter(|| {
            let mut links = Links::open()?;
            links.set_mac(self.tenant_device, mac)?;
            if checksummed {
                links.set_feature(self.tenant_device, Feature::TxChecksum, false)?;
            }
            links.up(self.tenant_device)
        })??;
        self.switch.enter(|| Links::open()?.up(self.switch_device))?
    }

    /// The switch's end, in NAPI mode, and nothing in its stack that answers.
    pub(super) fn prepare(&self, links: &mut Links) -> Result<(), KernelError> {
        links.set_feature(self.switch_device, Feature::Gro, true)?;
        let ipv6 = format!("net/ipv6/conf/{}/disable_ipv6", self.switch_device);
        if std::path::Path::new("/proc/sys").join(&ipv6).exists() {
            netns::set_sysctl(&ipv6, "1")?;
        }
        Ok(())
    }

    /// The tenant's end: a queue that holds all its sockets can send, and one as long for each neighbour that is asked for. With `offload` frames wait there unsegmented and without
    /// checksums, and segments are made when the ring takes them: a veth whose own segmentation is on goes past the ring.
    pub(super) fn prepare_tenant(&self, links: &mut Links, offload: bool) -> Result<(), KernelError> {
        // Of a queue of this kind that is there only the length changes: it keeps its frames.
        let queue = tenant_queue(memory()?);
        links.set_fifo(self.tenant_device, queue)?;
        for family in ["ipv4", "ipv6"] {
            let waiting = format!("net/{family}/neigh/{}/unres_qlen_bytes", self.tenant_device);
            if std::path::Path::new("/proc/sys").join(&waiting).exists() {
                netns::set_sysctl(&waiting, &unresolved_bytes(queue).to_string())?;
            }
        }
        links.set_feature(self.tenant_device, Feature::Tso, false)?;
        for feature in [Feature::TxChecksum, Feature::Gso] {
            links.set_feature(self.tenant_device, feature, offload)?;
        }
        if offload {
            links.only_checksum_offload(self.tenant_device)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_as_long_as_a_quarter_of_the_memory() {
        assert_eq!(tenant_queue(24 << 30), 2_796_202);
        assert_eq!((tenant_queue(0), tenant_queue(u64::MAX)), (100_000, i32::MAX as u32));
        assert_eq!((unresolved_bytes(100_000), unresolved_bytes(u32::MAX)), (230_400_000, i32::MAX));
        assert!(memory().unwrap() > 1 << 20);
    }
}

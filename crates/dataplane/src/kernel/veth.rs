//! A veth pair between the switch and a tenant, and the settings of its ends.

use super::error::KernelError;
use super::link::{Feature, Link, Links};
use super::netns::{self, Namespace};
use super::tenant_queue;
use std::io;

/// A veth pair between the switch and a tenant.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    /// Where the switch's end is: best a namespace of the switch's own, without addresses.
    pub switch: &'a Namespace,
    /// The name of the switch's end.
    pub switch_device: &'a str,
    /// Where the tenant's end is.
    pub tenant: &'a Namespace,
    /// The name of the tenant's end.
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

    /// Whether both ends are there and frames can go both ways; changes nothing.
    ///
    /// # Errors
    /// An end is missing or switched off, the two devices are no pair, or they have different MTUs.
    pub fn look(&self) -> Result<(), KernelError> {
        self.prove()?;
        let of = |namespace: &Namespace, device: &str| {
            namespace.enter(|| Links::open()?.get(device))?.map_err(|e| e.within(namespace.name()))
        };
        self.check(&of(self.switch, self.switch_device)?, &of(self.tenant, self.tenant_device)?)
    }

    /// Whether the two devices are one pair, as the kernel says. The tenant rules its namespace, and may have put another device
    /// in place of its own. Waits for nothing and changes nothing.
    ///
    /// # Errors
    /// An end is missing, or the two are no pair.
    pub(super) fn prove(&self) -> Result<(), KernelError> {
        let ours = self.switch.enter(|| {
            let mut links = Links::open()?;
            // In this order: the first question gives the tenant's namespace its number.
            let end = links.pair_end(self.switch_device)?;
            Ok::<_, KernelError>((end, links.number_of(self.tenant)?))
        })?;
        let (ours, tenant) = ours.map_err(|e| e.within(self.switch.name()))?;
        let theirs = self.tenant.enter(|| Links::open()?.pair_end(self.tenant_device))?;
        let theirs = theirs.map_err(|e| e.within(self.tenant.name()))?;
        let in_its_namespace = match ours.peer_netns {
            Some(number) => tenant == Some(number),
            None => self.switch.is(self.tenant)?,
        };
        match in_its_namespace && ours.peer != 0 && (ours.peer, theirs.peer) == (theirs.index, ours.index) {
            true => Ok(()),
            false => {
                let (device, namespace, switch_device) = (self.tenant_device, self.tenant.name(), self.switch_device);
                let why = format!(
                    "{switch_device} is not the other end of its pair; \
                     `ip -n {namespace} -d link show {device}` shows what it is"
                );
                let why = io::Error::new(io::ErrorKind::NotFound, why);
                Err(KernelError::new(format!("the device {device} of {namespace}"), why))
            }
        }
    }

    /// Whether frames can go both ways between the ends as they are now.
    pub(super) fn check(&self, ours: &Link, theirs: &Link) -> Result<(), KernelError> {
        let (device, namespace) = (self.tenant_device, self.tenant.name());
        let refused = |kind, why: String| {
            let what = format!("the device {device} of {namespace}");
            Err(KernelError::new(what, io::Error::new(kind, why)))
        };
        if !theirs.up {
            let why = format!("it is switched off; `ip -n {namespace} link set {device} up` switches it on");
            return refused(io::ErrorKind::NetworkDown, why);
        }
        // A veth drops frames that are longer than its other end takes.
        if theirs.mtu != ours.mtu {
            let why = format!(
                "its MTU is {}, and that of {}, the switch's end, is {}: what one end sends, the other has to take; \
                 `ip link set {} mtu {}` in the namespace of the switch's end makes them one",
                theirs.mtu, self.switch_device, ours.mtu, self.switch_device, theirs.mtu
            );
            return refused(io::ErrorKind::InvalidInput, why);
        }
        Ok(())
    }

    /// Prepares the tenant's end: a queue that holds all frames that its sockets can send, and one as long for each
    /// unresolved neighbour. With `offload`, frames wait there unsegmented and without checksums, and segments are made when
    /// the ring takes them: a veth whose own segmentation is on goes past the ring.
    pub(super) fn prepare_tenant(&self, links: &mut Links, offload: bool) -> Result<(), KernelError> {
        tenant_queue::prepare(links, self.tenant_device)?;
        let queue = tenant_queue::queue_frames();
        for family in ["ipv4", "ipv6"] {
            let waiting = format!("net/{family}/neigh/{}/unres_qlen_bytes", self.tenant_device);
            if std::path::Path::new("/proc/sys").join(&waiting).exists() {
                netns::set_sysctl(&waiting, &tenant_queue::unresolved_bytes(queue).to_string())?;
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

//! Every server: adapter, VMs, virtual switch.

use super::switch::agree;
use super::{Counts, ParameterSet, Routing, ZBridge};
use crate::error::{Result, Warning};
use crate::setting::{Kind, Section};
use crate::units::{BUFFER, Bytes, DELAY, LINK_RATE, POSITIVE_TIME, Quantity};
use crate::{choices, settings};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// VMs of a server: 6 bits number them.
pub(crate) const VM_MAX: u32 = 62;
/// How long frames wait for earlier ones [d]: longer than any queue of the tables takes to drain (100 KB at 10 Gb/s: 80 us a
/// hop), shorter than any retransmission timeout of TCP.
const PATIENCE: Duration = Duration::from_ms(1);
/// VMs of a server with two vNICs each: as many ports and two uplinks are what a virtual switch has.
const VMS_OF_TWO: u32 = 31;

choices! {
    /// How an adapter queues the frames of its host.
    pub enum Queueing {
        /// One virtual output queue for each destination, served round robin.
        Voq = "voq",
        /// One queue.
        Fifo = "fifo",
    }
}

choices! {
    /// What a full adapter does.
    pub enum WhenFull {
        /// It stops its host.
        Stop = "stop",
        /// It drops.
        Drop = "drop",
    }
}

settings! {
    /// every server's network adapter
    pub model struct Adapter in "adapter" (s, set: ParameterSet, routing: Routing, zbridge: &ZBridge, pairs: Option<&QueuePairs>) {
        /// its transmit buffer; default two frames with transport = "roce"
        // A queue pair leaves its packets in memory until the link is free. A CNP could not slow those in a buffer.
        buffer: Bytes [BUFFER] = pairs.map_or(Bytes(512_000), |pairs| pairs.buffer),
        /// from host to wire and from wire to host
        delay: Duration [DELAY] = set.plain_or(Duration::ZERO, Duration::from_ns(500)),
        /// one queue for each destination, or one for all
        queueing: Queueing = Queueing::Voq,
        /// stop the host, or drop
        when_full: WhenFull = WhenFull::Stop,
        /// whether frames that overtook others wait for them; default true where frames of a flow take several paths
        let resequencing: bool = routing.divides_flows() && !zbridge.enabled,
        /// the longest time that they wait; default 1 ms, for packets of RoCE in a lossless class a quarter of roce.timeout
        let resequencing_timeout: Option<Duration> [POSITIVE_TIME],
        /// How long it keeps frames that overtook others of their flow, to put them in order; not at all where absent.
        #[serde(serialize_with = "crate::units::canonical")]
        field resequencing: Option<Duration> = resequencing.then(|| resequencing_timeout.unwrap_or(PATIENCE)),
        /// The same for packets of queue pairs in lossless classes.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::units::canonical")]
        field reordering: Option<Duration> =
            pairs.filter(|_| resequencing.is_some()).map(|pairs| resequencing_timeout.unwrap_or(pairs.patience())),
    }
}

/// The settings of queue pairs that defaults of adapters depend on.
pub(crate) struct QueuePairs {
    /// The transmit buffer.
    pub buffer: Bytes,
    /// Time without progress after which packets are sent again.
    pub timeout: Duration,
    /// Whether there are flows of other transports, too.
    pub has_others: bool,
}

impl QueuePairs {
    /// How long packets of lossless classes wait for earlier ones [d]: pauses delay these for longer than queues do, and a
    /// missing packet is reported before its sender's timer expires.
    fn patience(&self) -> Duration {
        Duration::from_ps(self.timeout.as_ps() / 4)
    }
}

impl Adapter {
    /// Checks how the keys relate.
    pub(crate) fn check(
        &self,
        s: &Section<'_>,
        zbridge: &ZBridge,
        pairs: Option<&QueuePairs>,
        warn: &mut Vec<Warning>,
    ) -> Result<()> {
        if self.resequencing.is_some() && zbridge.enabled {
            return Err(s
                .error("resequencing", "zBridge puts frames in order: adapters need not")
                .hint("remove `resequencing`"));
        }
        if s.has("resequencing_timeout") && self.resequencing.is_none() {
            let (file, line) = s.line("resequencing_timeout");
            let message = "`resequencing_timeout` has no effect: resequencing is off".into();
            warn.push(Warning { file, line, message });
        }
        if let (Some(patience), Some(pairs)) = (self.reordering, pairs)
            && patience >= pairs.timeout
        {
            let (file, line) = s.line("resequencing_timeout");
            let message =
                "packets of RoCE that are sent again wait for the one that was lost: `resequencing_timeout` is not \
                           shorter than roce.timeout"
                    .into();
            warn.push(Warning { file, line, message });
        }
        Ok(())
    }

    /// Warns of frames that overtake each other where the default of `buffer` may have no room for those that wait: beside
    /// queue pairs, whose packets it is for, and on lossless paths without queue pairs.
    pub(crate) fn warn_of_early_frames(
        &self,
        s: &Section<'_>,
        (pairs, is_lossless): (Option<&QueuePairs>, bool),
        routing: (String, u32),
        warn: &mut Vec<Warning>,
    ) {
        if self.resequencing.is_none() || s.has("buffer") {
            return;
        }
        let message = match pairs {
            Some(pairs) if pairs.has_others => {
                "frames take several paths, and those of other transports than RoCE wait in `adapter.buffer` if they \
                 overtake others: it holds two frames by default; give adapter.buffer, as \"512 KB\", or set \
                 routing = \"ecmp\""
            }
            None if is_lossless => {
                "frames take several paths, and those that overtake others wait in `adapter.buffer`, 512 KB by default: \
                 where many hosts send to one, TCP sends again what finds no room there; give adapter.buffer, as \
                 \"4 MB\", or set routing = \"ecmp\""
            }
            _ => return,
        };
        warn.push(Warning { file: routing.0, line: routing.1, message: message.into() });
    }
}

settings! {
    /// every server
    pub model struct Server in "server" (s, set: ParameterSet) {
        /// VMs on each server
        // Slide 19: an HLA, an MLA, a worker and a background VM on each.
        vms: u32 [1..=VM_MAX + 1] = set.of(1, 1, 4),
        /// whether a virtual switch is between the VMs and the adapter
        virtual_network: bool = set.of(false, false, true),
        /// the priority of a second, lossy vNIC of each VM; default: VMs have one vNIC
        #[serde(skip_serializing_if = "Option::is_none")]
        lossy_vnic: Option<u8> [0..=7],
    }
}

impl Server {
    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>) -> Result<()> {
        if self.lossy_vnic.is_none() {
            return Ok(());
        }
        if !self.virtual_network {
            return Err(s
                .error("lossy_vnic", "there is no virtual network, so that no machine has a vNIC")
                .hint("set server.virtual_network = true"));
        }
        if self.vms > VMS_OF_TWO {
            let message = format!("{} machines with two vNICs each are more than a virtual switch has ports", self.vms);
            return Err(s.error_at(&["vms", "lossy_vnic"], message).expected(format!("at most {VMS_OF_TWO}")));
        }
        Ok(())
    }

    /// The priority of the lossy vNICs, a bit.
    pub(crate) fn lossy_priority(&self) -> u8 {
        self.lossy_vnic.map_or(0, |priority| 1 << priority)
    }
}

settings! {
    /// a machine that is slow to receive
    #[derive(Copy)]
    pub model struct SlowVm in "slow" (s) {
        /// its server
        host: u32 [0..=crate::HOST_MAX],
        /// its number there; default 0
        vm: u32 [0..=VM_MAX] = 0,
        /// the rate at which it receives frames
        rate: Rate [LINK_RATE],
    }
}

settings! {
    /// every server's virtual switch
    pub model struct VSwitch in "vswitch" (s, fixed: Option<bool>, server: &Server, counts: Counts) {
        /// frames a port's queue holds
        slots: u32 [1..=1 << 20] = 1024,
        /// whether a full queue stops the sender instead of dropping frames
        lossless: bool = fixed.unwrap_or(false),
        /// rate of a virtual machine's port
        vm_rate: Rate [LINK_RATE] = Rate::gbps(10),
        /// VMs that receive more slowly than `vm_rate`
        #[serde(skip_serializing_if = "Vec::is_empty")]
        slow: Vec<SlowVm> as (Kind::Tables(&[SlowVm::SPEC])) = slow(s, vm_rate, server, counts)?,
    }
}

fn slow(s: &Section<'_>, vm_rate: Rate, server: &Server, counts: Counts) -> Result<Vec<SlowVm>> {
    let mut all: Vec<SlowVm> = Vec::new();
    for t in s.tables("slow")? {
        let slow = SlowVm::read(&t)?;
        exists(&t, (slow.host, slow.vm), server, counts)?;
        if all.iter().any(|other| (other.host, other.vm) == (slow.host, slow.vm)) {
            return Err(t.error("host", "this machine stands here twice"));
        }
        if slow.rate > vm_rate {
            let message = format!("faster than the machine's port, which has vswitch.vm_rate = {}", vm_rate.written());
            return Err(t.error("rate", message));
        }
        all.push(slow);
    }
    if !all.is_empty() && !server.virtual_network {
        return Err(s
            .error("slow", "there is no virtual network, so that no machine has a port of its own")
            .hint("set server.virtual_network = true"));
    }
    Ok(all)
}

/// Refuses a VM, by `host` and `vm` of a table, that the network has not.
pub(super) fn exists(t: &Section<'_>, (host, vm): (u32, u32), server: &Server, counts: Counts) -> Result<()> {
    if host >= counts.hosts {
        return Err(t.error("host", format!("there are {} servers, counted from 0", counts.hosts)));
    }
    if vm >= server.vms {
        return Err(t.error("vm", format!("a server has {} virtual machines, counted from 0", server.vms)));
    }
    Ok(())
}

impl VSwitch {
    /// Checks how the keys relate. `fixed` is whether `[scenario]` says that the network is lossless.
    pub(crate) fn check(&self, s: &Section<'_>, fixed: Option<bool>, server: &Server) -> Result<()> {
        agree(s, "lossless", (self.lossless, fixed), "virtual")?;
        if s.has("lossless") && self.lossless && !server.virtual_network {
            return Err(s
                .error("lossless", "there is no virtual network that could be lossless")
                .hint("set server.virtual_network = true"));
        }
        Ok(())
    }
}

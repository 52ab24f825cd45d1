//! The stack of the hypervisors below the VMs' transports: credits, reliability, tunnels.

use super::server::{VM_MAX, exists};
use super::switch::MTU;
use super::{Counts, Framing, Policy, Server};
use crate::error::Result;
use crate::setting::{Kind, Section};
use crate::units::{Bytes, DURATION_MAX};
use crate::{choices, settings};
use sluicenet_proto::time::Duration;
use sluicenet_proto::transport::zbridge::ChannelConfig;

/// The hint of an error about external hosts.
const OUTSIDE: &str = "set topology.external_hosts = 0, or give machines a second vNIC for them by server.lossy_vnic";

settings! {
    /// credits between virtual machines: a frame is sent when its receiver has granted room for it
    pub model struct ZCredit in "zcredit" (
        s, fixed: Option<bool>, server: &Server, policy: &Policy, counts: Counts
    ) {
        /// whether credits are used
        enabled: bool = fixed.unwrap_or(false),
        /// frames in the receive queue of a VM, and the most that may be on their way to it
        // 5.3.3.
        rx_queue: u32 [1..=1 << 16] = 512,
        /// credits of a turn, and of a grant if so many are needed
        batch: u32 [1..=1 << 16] = rx_queue.min(8),
        /// frames of a VM that may wait for credits
        // The source names no transmit queue: as long as a port's of the vSwitch [d].
        tx_queue: u32 [1..=1 << 16] = 1024,
        /// VMs with longer turns if several wait
        #[serde(skip_serializing_if = "Vec::is_empty")]
        weight: Vec<Weight> as (Kind::Tables(&[WeightKeys::SPEC])) = weights(s, (server, policy), counts)?,
    }
}

settings! {
    /// a machine's share of what a receiver grants
    struct WeightKeys in "weight" (s) {
        /// a tenant, for all its VMs, instead of host and vm
        tenant: Option<String>,
        /// its server
        host: Option<u32> [0..=crate::HOST_MAX],
        /// its number there; default 0
        vm: Option<u32> [0..=VM_MAX],
        /// length of its turns, relative to a VM without an entry
        weight: u32 [1..=1 << 16],
    }
}

/// A virtual machine that is granted more credits than others if several wait for them.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Weight {
    /// Its server.
    pub host: u32,
    /// Its number there.
    pub vm: u32,
    /// The length of its turns.
    pub weight: u32,
}

fn weights(s: &Section<'_>, (server, policy): (&Server, &Policy), counts: Counts) -> Result<Vec<Weight>> {
    let mut weights: Vec<Weight> = Vec::new();
    let mut named = std::collections::BTreeSet::new();
    for t in s.tables("weight")? {
        let keys = WeightKeys::read(&t)?;
        let machines = match keys.tenant {
            None => {
                let one = (keys.host.ok_or_else(|| t.missing("host"))?, keys.vm.unwrap_or(0));
                exists(&t, one, server, counts)?;
                vec![one]
            }
            Some(_) if keys.host.is_some() || keys.vm.is_some() => {
                return Err(t.error("tenant", "a tenant is all of its machines: `host` and `vm` say which alone"));
            }
            Some(name) => match policy.tenant.iter().find(|tenant| tenant.name == name) {
                Some(tenant) => tenant.machines.clone(),
                None => return Err(t.error("tenant", "no [[policy.tenant]] has this name")),
            },
        };
        for (host, vm) in machines {
            if !named.insert((host, vm)) {
                let message = format!("machine {vm} of host {host} stands here twice");
                return Err(t.error_at(&["host", "tenant"], message));
            }
            weights.push(Weight { host, vm, weight: keys.weight });
        }
    }
    Ok(weights)
}

impl ZCredit {
    /// Checks how the keys relate. `fixed` is whether `[scenario]` says that there are credits.
    pub(crate) fn check(&self, s: &Section<'_>, fixed: Option<bool>, server: &Server, counts: Counts) -> Result<()> {
        is_of_stack(s, self.enabled, fixed)?;
        check_credits(s, self.rx_queue, self.batch)?;
        if self.enabled && !server.virtual_network {
            return Err(s
                .error("enabled", "credits are between virtual machines, and there is no virtual network")
                .hint("set server.virtual_network = true"));
        }
        if self.enabled && counts.external > 0 && server.lossy_vnic.is_none() {
            let message =
                format!("{} hosts are external: they have no hypervisor, and nobody there grants", counts.external);
            return Err(s.error("enabled", message).hint(OUTSIDE));
        }
        Ok(())
    }
}

/// Checks the queue and the turns of credits, in a scenario and in the file of a switch.
///
/// # Errors
/// A turn that the queue cannot take.
pub fn check_credits(s: &Section<'_>, rx_queue: u32, batch: u32) -> Result<()> {
    if batch <= rx_queue {
        return Ok(());
    }
    Err(s
        .error("batch", format!("a batch of {batch} credits does not fit a receive queue of {rx_queue}"))
        .hint(format!("from 1 to {rx_queue}, or raise rx_queue")))
}

/// Refuses a part of zFabric that `hypervisor` rules out. A part that it includes may be left out.
fn is_of_stack(s: &Section<'_>, enabled: bool, fixed: Option<bool>) -> Result<()> {
    if fixed != Some(false) || !enabled {
        return Ok(());
    }
    Err(s
        .error("enabled", "scenario.hypervisor says that there is no zFabric")
        .hint("write hypervisor = \"zfabric\", or flow_control in its place"))
}

/// Timeouts of zBridge. With a shorter one senders do nothing but ask.
pub const ZBRIDGE_TIMEOUT: core::ops::RangeInclusive<Duration> = Duration::from_us(1)..=DURATION_MAX;
/// The largest buffer of a pair, in frames.
pub const ZBRIDGE_BUFFER_MAX: u32 = 1 << 24;

settings! {
    /// reliability between servers: frames are numbered, put in order, and sent again where they are lost
    pub model struct ZBridge in "zbridge" (s, fixed: Option<bool>) {
        /// whether zBridge is used
        enabled: bool = fixed.unwrap_or(false),
        /// one in this many frames of a pair of VMs asks for an acknowledgement
        // 5.3.4: P is 1024.
        period: u32 [1..=1 << 23] = 1024,
        /// frames of a pair that are kept until they are acknowledged: at least two periods
        // Larger than what the network holds; the source does not say how large: four periods [d].
        buffer: u32 [2..=ZBRIDGE_BUFFER_MAX] = (4 * period).clamp(4096, ZBRIDGE_BUFFER_MAX),
        /// how long a sender waits before it asks which frames have arrived
        // 5.3.4: three orders of magnitude above the base round trip, which is 27 us (5.2.1).
        timeout: Duration [ZBRIDGE_TIMEOUT] = Duration::from_ms(27),
    }
}

impl ZBridge {
    /// How each channel is set up; see [`ChannelConfig::single_path`].
    pub fn channel(&self, single_path: bool) -> ChannelConfig {
        ChannelConfig { buffer: self.buffer, period: self.period, timeout: self.timeout, single_path }
    }

    /// Bytes by which it makes a frame between servers longer.
    pub fn growth(&self) -> u64 {
        if self.enabled { sluicenet_wire::zbridge::GROWTH as u64 } else { 0 }
    }

    /// Checks how the keys relate. `fixed` is whether `[scenario]` says that zBridge is used.
    pub(crate) fn check(&self, s: &Section<'_>, fixed: Option<bool>, server: &Server, counts: Counts) -> Result<()> {
        is_of_stack(s, self.enabled, fixed)?;
        check_channel(s, self.period, self.buffer)?;
        if self.enabled && !server.virtual_network {
            return Err(s
                .error("enabled", "zBridge stands between virtual switches, and there is no virtual network")
                .hint("set server.virtual_network = true"));
        }
        if self.enabled && counts.external > 0 && server.lossy_vnic.is_none() {
            let message =
                format!("{} hosts are external: they have no hypervisor, and nobody there answers", counts.external);
            return Err(s.error("enabled", message).hint(OUTSIDE));
        }
        Ok(())
    }
}

/// Checks the buffer of a channel, in a scenario and in the file of a switch.
///
/// # Errors
/// A buffer of less than two periods.
pub fn check_channel(s: &Section<'_>, period: u32, buffer: u32) -> Result<()> {
    if buffer / 2 >= period {
        return Ok(());
    }
    let message = format!("a buffer of {buffer} frames is less than two periods of {period}");
    let error = s.error_at(&["buffer", "period"], message);
    Err(error.hint("it would be full before an acknowledgement is asked for"))
}

choices! {
    /// How frames between servers are encapsulated.
    pub enum Encapsulation {
        /// Each frame in a datagram.
        Udp = "udp",
        /// All between two servers in one connection.
        Tcp = "tcp",
    }
}

settings! {
    /// the tunnels between virtual switches
    pub model struct Overlay in "overlay" (s, fixed: Option<bool>, server: &Server, zbridge: &ZBridge) {
        /// whether frames between servers are encapsulated
        enabled: bool = server.virtual_network,
        /// udp: each frame in a datagram; tcp: all between two servers in one connection; default udp
        let transport: Encapsulation = if fixed == Some(true) { Encapsulation::Tcp } else { Encapsulation::Udp },
        /// bytes added to each
        // 3.2.3.1: 54 B added, and the MTU lowered from 1500 to 1446 B; below that by zBridge's header, if it is used.
        encapsulation: Bytes = Bytes(54),
        /// the largest IP packet of a virtual machine
        mtu: Bytes [MTU] = Bytes(1446 - zbridge.growth()),
        /// Whether all between two servers goes through one TCP connection of theirs.
        #[serde(skip_serializing_if = "core::ops::Not::not")]
        field tcp: bool = transport == Encapsulation::Tcp,
    }
}

impl Overlay {
    /// Checks how the keys relate to the rest of the network.
    pub(crate) fn check(
        &self,
        s: &Section<'_>,
        (server, zbridge): (&Server, &ZBridge),
        (s_framing, framing): (&Section<'_>, &Framing),
    ) -> Result<()> {
        if self.enabled && !server.virtual_network {
            return Err(s
                .error("enabled", "an overlay needs virtual switches, and there is no virtual network")
                .hint("set server.virtual_network = true"));
        }
        let (inner, outer) = (self.mtu.0, framing.mtu.0);
        let tunnel = self.encapsulation.0.saturating_add(zbridge.growth());
        if !self.enabled || inner.saturating_add(tunnel) <= outer {
            return Ok(());
        }
        let message = format!("{inner} B and {tunnel} B of tunnel do not fit the physical MTU of {outer} B");
        let error = match ["mtu", "encapsulation"].iter().any(|key| s.has(key)) {
            true => s.error_at(&["mtu", "encapsulation"], message),
            false => s_framing.error_at(&["mtu"], message),
        };
        let (largest, least) = (outer.saturating_sub(tunnel), MTU.start().0);
        Err(error.hint(match largest >= least {
            true => format!("overlay.mtu is at most {largest} B here"),
            false => {
                let room = outer.saturating_sub(least + zbridge.growth());
                format!("overlay.encapsulation is at most {room} B here")
            }
        }))
    }

    /// Checks the tunnel of TCP. `fixed` is whether `[scenario]` says that there is one.
    pub(crate) fn check_tunnel(
        &self,
        s: &Section<'_>,
        fixed: Option<bool>,
        (zbridge, server, counts): (&ZBridge, &Server, Counts),
    ) -> Result<()> {
        if fixed.is_some_and(|fixed| fixed != self.tcp) {
            return Err(s
                .error("transport", "scenario.hypervisor says what is between servers")
                .hint("remove `transport`, or write flow_control in place of hypervisor"));
        }
        if self.tcp && !self.enabled {
            return Err(s
                .error_at(&["transport", "enabled"], "a tunnel needs an overlay, and there is none")
                .hint("set overlay.enabled = true"));
        }
        if self.tcp && zbridge.enabled {
            return Err(s
                .error("transport", "TCP between servers sends again what is lost, and so does zBridge")
                .hint("set zbridge.enabled = false"));
        }
        if self.tcp && counts.external > 0 && server.lossy_vnic.is_none() {
            let message = format!("{} hosts are external: they have no hypervisor, and no tunnel", counts.external);
            return Err(s.error("transport", message).hint(OUTSIDE));
        }
        Ok(())
    }
}

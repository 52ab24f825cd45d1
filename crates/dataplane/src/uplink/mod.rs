//! The port of a physical link, with real PFC frames in both directions and the overlay's tunnels. The state machines are
//! [`sluicenet_node::uplink`] and [`sluicenet_node::vtep`].
//! Without an overlay it is a trunk: a frame's 802.1Q tag gives its broadcast domain and its class. The port adds the tag when
//! the frame leaves and removes it when it arrives. With an overlay, each tenant is a domain, and frames for a station on
//! another server go through a tunnel to that server.
//! The port takes arriving frames from the device at once. They are charged to the receive buffer of their class until the
//! switch gives them back. The port takes frames of the switch while their class has room; they wait here while the neighbour
//! pauses the class.

mod credits;
mod gate_report;
mod inside;
mod kind;
mod report;
mod tcp_tunnels;
mod zbridge;

use crate::clock::Clock;
use crate::controller::ControllerLink;
use crate::fabric::Device;
use crate::kernel::packet::PacketDevice;
use crate::port::{self, BrokenPort, Candidate, Delivery, Descriptor, Offload, OverlayChange, Port};
use credits::ZCredit;
pub use gate_report::report_coordinator;
use inside::{Inside, LONGEST, Overlay};
pub use kind::UplinkKind;
use rustix::event::{PollFd, PollFlags};
use sluicenet_node::credits::CreditConfig;
use sluicenet_node::gate::{Gate, StationPolicy};
use sluicenet_node::uplink::{self, Front, Gated, Link, Managed, Queues};
use sluicenet_node::vale::{Action, WatchdogConfig};
use sluicenet_node::vtep::Vtep;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zbridge::ChannelConfig;
use sluicenet_wire::ethernet::{HEADER_LEN, MacAddress};
use sluicenet_wire::vlan;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
pub use tcp_tunnels::TcpTunnelConfig;
use tcp_tunnels::TcpTunnels;
use zbridge::ZBridge;

/// The most frames taken from the device in a round, and the size of a full batch; after a smaller batch, no frame is left.
const FRAMES: usize = 1024;
const WHOLE_BATCH: usize = 32;

/// When an idle device is checked again while other ports keep the switch busy: a check is a system call and takes longer than
/// a round. The time is far below the response time of either end of a link.
const LOOK_AGAIN: Duration = Duration::from_us(5);

/// When a full device is tried again.
const TRY_AGAIN: Duration = Duration::from_us(500);

/// The port.
#[derive(Debug)]
pub struct Uplink<D, K = Queues<Vec<u8>>> {
    device: D,
    inside: Inside<K>,
    lent: u32,
    /// Whether the device was full at the last attempt.
    refused: bool,
    /// When the device was found idle, if it has been idle since.
    looked_in_vain: Option<Instant>,
}

impl<D: Device> Uplink<D> {
    /// A trunk.
    pub fn trunk(device: D, link: Link) -> Uplink<D> {
        Uplink::trunk_of(device, link, Queues::default())
    }

    /// The uplink of an overlay, whose tunnels have the link's address.
    pub fn overlay(device: D, link: Link, vtep: Vtep<u32>, controller: ControllerLink) -> Uplink<D> {
        Uplink::overlay_of(device, link, vtep, controller, Queues::default())
    }
}

impl<D: Device, K: UplinkKind> Uplink<D, K> {
    /// A trunk with these queues.
    pub fn trunk_of(device: D, link: Link, kind: K) -> Uplink<D, K> {
        Uplink::new(device, link, None, kind)
    }

    /// The uplink of an overlay with these queues. If frames get CN-TAGs, the tunnel must leave room for one.
    pub fn overlay_of(device: D, link: Link, mut vtep: Vtep<u32>, controller: ControllerLink, kind: K) -> Uplink<D, K> {
        vtep.set_waiting_classes(link.lossless);
        Uplink::new(device, link, Some(Overlay { vtep, controller, consulted: None }), kind)
    }

    /// Frames of tenants in the tunnel need credits in these classes; all servers of the overlay have to do the same. At most
    /// `shown` frames of a station are in the switch at a time; those of all stations have to fit into one of its queues. The
    /// turns of the stations in `weights`, with their tenant's number here, are longer by these factors.
    ///
    /// # Panics
    /// Without an overlay.
    pub fn set_credits(
        &mut self,
        config: CreditConfig,
        classes: PrioritySet,
        shown: u32,
        weights: BTreeMap<(u16, MacAddress), u32>,
    ) {
        assert!(self.inside.overlay.is_some(), "credits are given to stations of an overlay");
        self.inside.zcredit = Some(Box::new(ZCredit::new(config, classes, shown, weights)));
    }

    /// Lost frames of tenants in the tunnel are sent again in these classes; all servers of the overlay have to do the same.
    /// The tunnel must have room for the additional header (`TunnelConfig::reserved`).
    ///
    /// # Panics
    /// Without an overlay.
    pub fn set_zbridge(&mut self, config: ChannelConfig, classes: PrioritySet, rng: Rng) {
        assert!(self.inside.overlay.is_some(), "channels are between stations of an overlay");
        self.inside.zbridge = Some(Box::new(ZBridge::new(config, classes, rng)));
    }

    /// Frames of tenants in these classes go through a TCP connection between two servers; all servers of the overlay have to
    /// do the same.
    ///
    /// # Panics
    /// Without an overlay.
    pub fn set_tcp_tunnels(&mut self, config: TcpTunnelConfig, rng: Rng) {
        let overlay = self.inside.overlay.as_mut().expect("tunnels are between servers of an overlay");
        self.inside.tcp_tunnels = Some(tcp_tunnels::set_up(&mut overlay.vtep, config, rng));
    }

    fn new(device: D, link: Link, overlay: Option<Overlay>, kind: K) -> Uplink<D, K> {
        Uplink { device, inside: Inside::new(link, overlay, kind), lent: 0, refused: false, looked_in_vain: None }
    }

    /// The flow-controlled link.
    pub fn link(&self) -> &uplink::Uplink<u32, Vec<u8>, K> {
        &self.inside.link
    }

    fn transmit(&mut self) -> io::Result<()> {
        let Uplink { device, inside, refused, .. } = self;
        *refused = false;
        while let Some(front) = inside.link.front(inside.now) {
            let taken = match front {
                Front::Pause(bytes) => device.send(bytes),
                Front::Frame(_) if device.keeps() => {
                    let kept = inside.link.sent(inside.now).and_then(|bytes| device.keep(bytes).err());
                    debug_assert!(kept.is_none(), "it said that it keeps one");
                    continue;
                }
                Front::Frame(bytes) => device.send(bytes),
            };
            if !taken? {
                *refused = true;
                break;
            }
            if let Some(bytes) = inside.link.sent(inside.now) {
                inside.reuse(bytes);
            }
        }
        device.flush()?;
        while let Some(bytes) = device.spare() {
            inside.reuse(bytes);
        }
        Ok(())
    }
}

/// The port of a device of the kernel is compiled in this crate, which is optimised for frames.
impl From<Uplink<PacketDevice>> for Box<dyn Port> {
    fn from(uplink: Uplink<PacketDevice>) -> Self {
        Box::new(uplink)
    }
}

impl From<Uplink<PacketDevice, Gated>> for Box<dyn Port> {
    fn from(uplink: Uplink<PacketDevice, Gated>) -> Self {
        Box::new(uplink)
    }
}

impl From<Uplink<PacketDevice, Managed<Vec<u8>>>> for Box<dyn Port> {
    fn from(uplink: Uplink<PacketDevice, Managed<Vec<u8>>>) -> Self {
        Box::new(uplink)
    }
}

impl<D: Device + Send, K: UplinkKind> Port for Uplink<D, K> {
    fn on_plug(&mut self, clock: Clock) {
        self.inside.clock = Some(clock);
    }

    fn on_round(&mut self, now: Instant) -> Result<(), BrokenPort> {
        let Uplink { device, inside, looked_in_vain, .. } = self;
        inside.now = now;
        inside.link.on_round(now);
        inside.begin_round();
        if looked_in_vain.is_none_or(|at| now.since(at) >= LOOK_AGAIN) {
            *looked_in_vain = Some(now);
            let mut taken = 0;
            while taken < FRAMES {
                let frames = device.receive(&mut |frame| inside.arrive(frame)).map_err(|_| BrokenPort)?;
                if frames > 0 {
                    *looked_in_vain = None;
                }
                if frames < WHOLE_BATCH {
                    inside.link.on_drained();
                    break;
                }
                taken += frames;
            }
        }
        // Arrived frames are read first: a pause may have been renewed before it ran out.
        inside.link.handle_timeout(inside.now);
        inside.consult();
        inside.run_credits();
        inside.run_zbridge();
        inside.run_tunnels();
        inside.run_gate();
        self.transmit().map_err(|_| BrokenPort)
    }

    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        let next = self.inside.next_frame();
        Ok(next.map(|at| Descriptor { buffer: at, len: self.inside.slots[at as usize].frame.len() as u32 }))
    }

    fn first_bytes(&self, buffer: u32) -> [u64; 2] {
        let mut start = [0; 16];
        self.read(buffer, &mut start);
        [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| start[at + i])))
    }

    fn domain(&self, buffer: u32) -> Option<u16> {
        Some(self.inside.slots[buffer as usize].domain)
    }

    fn priority(&self, buffer: u32) -> Option<Priority> {
        Some(self.inside.slots[buffer as usize].priority)
    }

    fn accept(&mut self) {
        self.inside.accept();
        self.lent += 1;
    }

    fn defer(&mut self) -> bool {
        self.inside.defer()
    }

    fn read(&self, buffer: u32, into: &mut [u8]) {
        let slot = &self.inside.slots[buffer as usize];
        let frame = &slot.bytes[slot.frame.clone()];
        let len = into.len().min(frame.len());
        into[..len].copy_from_slice(&frame[..len]);
    }

    fn give_back(&mut self, buffer: u32) {
        self.lent -= 1;
        self.inside.release(buffer);
    }

    fn lent(&self) -> u32 {
        self.lent
    }

    fn takes(&mut self) -> PrioritySet {
        self.inside.takes()
    }

    fn max_frame(&self) -> u32 {
        if self.inside.overlay.is_some() { LONGEST } else { self.inside.trunk_frame() }
    }

    fn admits(&mut self, frame: Candidate, read: &dyn Fn(&mut [u8])) -> Result<bool, BrokenPort> {
        if !K::IS_MANAGED && self.inside.overlay.is_none() {
            return Ok(true);
        }
        let mut addresses = [0; 12];
        read(&mut addresses);
        let [to, from] = [0, 6].map(|at| MacAddress(std::array::from_fn(|i| addresses[at + i])));
        let class = frame.priority;
        if K::IS_MANAGED
            && !(self.inside.limits_admit(frame.domain, class, to, read)
                && self.inside.link.queues().has_room_for(class, frame.domain, to, from))
        {
            return Ok(false);
        }
        let Inside { overlay: Some(overlay), zcredit, zbridge, now, .. } = &mut self.inside else { return Ok(true) };
        let has_credits = |z: &ZCredit| !z.classes.contains(class) || z.has_room((frame.domain, from), to);
        let has_channel = |z: &mut ZBridge| z.has_room(*now, (frame.domain, from, to, class));
        Ok(overlay.vtep.may_send(*now, frame.domain, from, class)
            && overlay.vtep.admits(*now, frame.domain, to, class)
            && zcredit.as_deref().is_none_or(has_credits)
            && zbridge.as_deref_mut().is_none_or(has_channel))
    }

    fn reserve(&mut self, _len: u32, _offload: &Offload) -> Result<bool, BrokenPort> {
        // Room depends on the class, see `takes`. But if a class is full because the device is full, the whole port is stuck.
        Ok(!self.refused || self.inside.takes() == PrioritySet::ALL)
    }

    fn deliver(&mut self, frame: &Delivery<'_>) {
        self.inside.leave(frame.bytes, frame.domain, frame.priority);
    }

    fn publish(&mut self) -> Result<(), BrokenPort> {
        self.inside.run_credits();
        self.inside.run_zbridge();
        self.inside.run_tunnels();
        self.inside.run_gate();
        self.transmit().map_err(|_| BrokenPort)
    }

    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort> {
        let may_run = self.inside.may_run_credits() || self.inside.may_run_zbridge() || self.inside.may_run_tunnels();
        let idle = (blocked || !self.inside.has_frame()) && !may_run;
        Ok(idle && (self.refused || self.inside.link.front(self.inside.now).is_none()))
    }

    fn wake_up(&mut self) {
        self.looked_in_vain = None;
    }

    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.device.wakers(self.refused, fds);
        let controller = self.inside.overlay.as_ref().and_then(|overlay| overlay.controller.waker());
        fds.extend(controller.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let link = self
            .inside
            .link
            .poll_timeout()
            .map(|at| if self.refused { at.max(self.inside.now + TRY_AGAIN) } else { at });
        let overlay = self.inside.overlay.as_ref().and_then(|o| o.vtep.poll_timeout());
        let credits = self.inside.zcredit.as_ref().and_then(|z| z.poll_timeout());
        let zbridge = self.inside.zbridge.as_ref().and_then(|z| z.poll_timeout());
        let tunnels = self.inside.tcp_tunnels.as_ref().and_then(TcpTunnels::poll_timeout);
        [link, overlay, credits, zbridge, tunnels].into_iter().flatten().min()
    }

    fn set_watchdog(&mut self, watchdog: WatchdogConfig) {
        // A pause that does not end is a deadlock of the link: its class is given up after the detection time.
        let detection_time = watchdog.reports_after().unwrap_or(Duration::MAX);
        self.inside.link.set_watchdog(detection_time, watchdog.restoration_time, watchdog.action == Action::Drop);
    }

    fn announce(&mut self, now: Instant, domain: u16, mac: [u8; 6], address: Ipv4Addr, here: bool) {
        // A domain that is no network of the overlay is local to this server.
        self.inside.house(now, (domain, MacAddress(mac)), here, |vtep, mac| match here {
            true => drop(vtep.add_station(now, domain, mac, address)),
            false => vtep.remove_station(now, domain, mac),
        });
    }

    fn learn(&mut self, now: Instant, domain: u16, mac: [u8; 6], address: IpAddr, here: bool) {
        if address.is_ipv6() && !here {
            // The station stays.
            if let Some(overlay) = &mut self.inside.overlay {
                overlay.vtep.learn_station(now, domain, MacAddress(mac), address, here);
            }
        } else {
            self.inside.house(now, (domain, MacAddress(mac)), here, |vtep, mac| {
                vtep.learn_station(now, domain, mac, address, here);
            });
        }
        // So the controller learns of the station before another server sees a frame from it and asks.
        self.inside.consult();
    }

    fn poll_stranger(&mut self) -> Option<(u16, [u8; 6], Option<Ipv4Addr>)> {
        self.inside.poll_stranger().map(|(domain, mac, address)| (domain, mac.0, address))
    }

    fn mtu(&self) -> Option<u32> {
        Some(match &self.inside.overlay {
            Some(overlay) => overlay.vtep.inner_mtu().into(),
            None => self.inside.trunk_frame().saturating_sub((HEADER_LEN + vlan::TAG_LEN) as u32),
        })
    }

    fn set_policy(&mut self, policy: Option<Arc<StationPolicy>>) {
        self.inside.gate = policy.map(Gate::new);
    }

    fn change_overlay(&mut self, change: &OverlayChange) {
        let Some(overlay) = &mut self.inside.overlay else { return };
        change.expelled.iter().for_each(|&server| overlay.vtep.expel(server));
        change.admitted.iter().for_each(|&(server, next_hop)| overlay.vtep.admit(server, MacAddress(next_hop)));
        self.inside.expel(&change.expelled);
        let Some(overlay) = &mut self.inside.overlay else { return };
        for &(domain, vni) in &change.bound {
            // The caller has checked that neither is bound to another.
            let bound = overlay.vtep.bind(domain, vni);
            debug_assert_eq!(bound, Ok(()));
        }
    }

    fn close(&mut self) {
        let now = self.inside.now;
        if let Some(gate) = self.inside.link.queues_mut().gate_mut() {
            gate.leave(now);
        }
        self.inside.link.pause_neighbour();
    }

    fn held(&self) -> u32 {
        let (arrived, leaving) = self.inside.link.inside();
        let credits = self.inside.zcredit.as_ref().map_or(0, |z| z.credits().queued());
        let unsent = self.inside.zbridge.as_ref().map_or(0, |z| z.unsent() + z.channels.copies());
        let streams = self.inside.tcp_tunnels.as_ref().map_or(0, |z| z.unsent() + z.unacknowledged());
        (arrived + leaving) as u32 + (credits + unsent + streams) as u32
    }

    fn inside(&self) -> port::Inside {
        let counters = self.inside.link.counters();
        let parked = self.inside.overlay.as_ref().map_or(0, |o| o.vtep.parked_out());
        let unsent = self.inside.zcredit.as_ref().map_or(0, |z| z.unsent())
            + self.inside.zbridge.as_ref().map_or(0, |z| z.unsent())
            + self.inside.tcp_tunnels.as_ref().map_or(0, |z| z.unsent() + z.unacknowledged());
        let waiting = (self.inside.link.of_switch() + parked) as u32 + unsent as u32;
        port::Inside { refused: counters.dropped_in, lost: counters.dropped_out, waiting }
    }

    /// Whether all credits are accounted for, no receive queue ever exceeded its limit, and no frame of a stream is missing.
    fn is_sound(&self) -> bool {
        self.inside.zcredit.as_ref().is_none_or(|z| z.credits().is_sound())
            && self.inside.tcp_tunnels.as_ref().is_none_or(TcpTunnels::is_sound)
    }

    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        self.inside.report(show);
        self.device.counters(show);
    }
}

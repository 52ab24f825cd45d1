//! Times of messages in an empty network, against which slowdowns are measured.
//!
//! The source sends at line rate from the first byte, no other host sends, and no window closes. The result is the time
//! at which the last bit has passed every store and stage of the path. It is exact for a single frame, and for a stream
//! whose window lets it flow.

use super::{Bumps, Directions, Plan, framing};
use sluicenet_node::device::PortId;
use sluicenet_node::guest::Transport;
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::{
    Address, FlowKey, Framing, IP_LIGHT_BYTES, IP_ROCE_BYTES, IP_TCP_BYTES, IP_UDP_BYTES, Packet,
};
use sluicenet_proto::frame::{HostId, Priority};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Routing, Scenario};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// A store a frame passes: it takes its time at `rate`, and `latency` to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stage {
    ps_per_byte_q16: u64,
    latency: u64,
    /// Whether the next stage begins at the first bit.
    first_bit: bool,
    /// Bytes added to a guest's frame on this stage, gap and preamble included.
    extra: u64,
    /// Bytes of `extra` that come after the last bit.
    gap: u64,
}

impl Stage {
    /// Whether no frame is ever through `self` later than through `other`.
    fn is_as_fast_as(&self, other: &Stage) -> bool {
        self.ps_per_byte_q16 <= other.ps_per_byte_q16
            && self.latency <= other.latency
            && self.first_bit >= other.first_bit
    }
}

/// The stores of one path between two hosts.
type Path = Vec<Stage>;

/// Properties of two hosts on which the paths between them depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ends {
    /// In a tree, on the level at which they turn: links and switches of a level are alike.
    Level(u8),
    /// In a tree, on which of the two are external, and on whether they are at the same root.
    External { src: bool, dst: bool, same_root: bool },
    /// In a graph, on the boxes next to them and on their own links, which may differ.
    Edges([NodeId; 2], [Stage; 2]),
    /// On themselves, where hosts of a graph have several links or links have bumps.
    Hosts(HostId, HostId),
}

/// Paths that are kept apart at a box; each may be the fastest for another message. More paths, as in a graph of many
/// unlike links, are merged into one that is as fast as the fastest of them on each link.
const PATHS_MAX: usize = 64;

/// Bits of a message's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// At the port of a virtual machine.
    pub port: u64,
    /// On a link, gaps, preambles and tunnel headers among them.
    pub link: u64,
}

/// The frames that messages are sent in.
pub struct Frames {
    framing: Framing,
    /// Bytes of a message in a full frame, and of the headers in front of them, by transport.
    max_payload: [u64; 4],
    header: [u16; 4],
    /// Bytes of the tunnel that virtual machines are behind.
    encapsulation: u64,
}

impl Frames {
    /// The frames of a priority: those of the lossy vNICs have no numbers of zBridge.
    pub fn of_priority(scenario: &Scenario, priority: Priority) -> Frames {
        let is_lossy = scenario.server.lossy_vnic == Some(priority);
        Frames::of(scenario, if is_lossy { 0 } else { scenario.zbridge.growth() })
    }

    /// The frames of a scenario. Those between servers are `growth` longer than in the overlay.
    fn of(scenario: &Scenario, growth: u64) -> Frames {
        let mtu = scenario.host_mtu().as_bytes();
        let timestamps = if scenario.tcp.timestamps { 12 } else { 0 };
        let tunnel = if scenario.overlay.enabled { scenario.overlay.encapsulation.as_bytes() } else { 0 };
        Frames {
            framing: framing(scenario),
            max_payload: [
                mtu - IP_TCP_BYTES as u64 - timestamps,
                mtu - IP_UDP_BYTES as u64,
                mtu - IP_LIGHT_BYTES as u64,
                scenario.roce_config().mtu.into(),
            ],
            header: [IP_TCP_BYTES + timestamps as u16, IP_UDP_BYTES, IP_LIGHT_BYTES, IP_ROCE_BYTES],
            encapsulation: if scenario.server.virtual_network { tunnel + growth } else { 0 },
        }
    }

    /// A message's number of frames, and the bytes of a full one and of the last one at a port.
    fn split(&self, bytes: u64, transport: Transport) -> (u64, u64, u64) {
        let t = transport as usize;
        let full = self.max_payload[t];
        let frames = bytes.div_ceil(full).max(1);
        let len = |payload: u64| self.framing.frame_len(self.header[t] + payload as u16) as u64;
        (frames, len(full), len(bytes - (frames - 1) * full))
    }

    /// Bits that a message of `bytes` takes at a port and on a link.
    pub fn bits_on(&self, bytes: u64, transport: Transport) -> Bits {
        let (frames, full, last) = self.split(bytes, transport);
        let port = (frames - 1) * full + last;
        let extra = self.encapsulation + self.framing.overhead() as u64;
        Bits { port: 8 * port, link: 8 * (port + frames * extra) }
    }
}

/// Times in an empty network, remembered for all pairs of hosts whose paths are alike.
pub struct Ideal {
    plan: Arc<Plan>,
    links: Directions,
    bumps: Bumps,
    /// The frames of messages.
    pub frames: Frames,
    stack: [Duration; 4],
    /// The rate of a virtual machine's port.
    vm: Option<Rate>,
    /// Whether all frames to one host come over the same link.
    by_destination: bool,
    /// In a tree, whether its roots are alike. With external hosts, some roots may have to store frames that other
    /// roots cut through.
    roots_alike: bool,
    /// In a tree, whether every root can be on the path of a message.
    over_all_roots: bool,
    paths: Mutex<BTreeMap<Ends, Arc<[Path]>>>,
    /// Times for frames of the lossy vNICs, which are of another priority and carry less.
    lossy: Option<(Priority, Box<Ideal>)>,
}

impl Ideal {
    pub(super) fn new(scenario: &Scenario, plan: Arc<Plan>, links: &Directions, bumps: &Bumps) -> Ideal {
        let growth = scenario.zbridge.growth();
        let lossy =
            scenario.server.lossy_vnic.map(|p| (p, Box::new(Ideal::of(scenario, plan.clone(), links, bumps, 0))));
        Ideal { lossy, ..Ideal::of(scenario, plan, links, bumps, growth) }
    }

    /// Where frames between servers are `growth` longer than in the overlay.
    fn of(scenario: &Scenario, plan: Arc<Plan>, links: &Directions, bumps: &Bumps, growth: u64) -> Ideal {
        let roots = plan.tree().map_or(0, |t| t.switches_at(t.levels()));
        Ideal {
            roots_alike: plan.external() == 0 || plan.external() >= roots,
            over_all_roots: scenario.topology.routing == Routing::Hash
                || scenario.topology.routing.divides_flows()
                || scenario.topology.routing.has_control(),
            plan,
            links: links.clone(),
            bumps: bumps.clone(),
            frames: Frames::of(scenario, growth),
            stack: [
                scenario.tcp.tx_delay + scenario.tcp.rx_delay,
                scenario.udp.tx_delay + scenario.udp.rx_delay,
                scenario.tcplight.tx_delay + scenario.tcplight.rx_delay,
                Duration::ZERO,
            ],
            vm: scenario.server.virtual_network.then_some(scenario.vswitch.vm_rate),
            by_destination: scenario.topology.routing == Routing::DModK,
            paths: Mutex::new(BTreeMap::new()),
            lossy: None,
        }
    }

    /// Times of frames of a priority.
    pub fn of_priority(&self, priority: Priority) -> &Ideal {
        self.lossy.as_ref().filter(|(p, _)| *p == priority).map_or(self, |(_, ideal)| ideal)
    }

    /// Time for `bytes` from one host to another, over the fastest of the paths that the routing can take.
    pub fn time(&self, src: HostId, dst: HostId, bytes: u64, transport: Transport) -> Duration {
        let (frames, full, last) = self.frames.split(bytes, transport);
        let paths = self.paths(src, dst);
        let fastest = paths.iter().map(|path| tandem(path, full, last, frames)).min();
        Duration(fastest.unwrap_or(0)) + self.stack[transport as usize]
    }

    /// Time for `bytes` from each of `senders` to one receiver, if its link is the bottleneck: the line-rate bound.
    ///
    /// The first frame that can be there starts on the receiver's link. From then on, the link sends frame after frame
    /// of all senders without a rest, framing and gaps included. The last frame still has the link's latency, the VM's
    /// port (if there is one) and the receiving stack ahead of it. Nothing can be faster, whatever the order of frames.
    /// Where frames can come over all of the receiver's links, each link counts with its part of all bits.
    pub fn many_to_one(&self, senders: &[HostId], receiver: HostId, bytes: u64, transport: Transport) -> Duration {
        let (frames, full, last) = self.frames.split(bytes, transport);
        let first = if frames > 1 { full } else { last };
        let behind = usize::from(self.vm.is_some() && receiver < self.plan.hosts() - self.plan.external());
        let (mut start, mut end) = (u64::MAX, u64::MAX);
        let together = self.rate_towards(senders, receiver);
        for path in senders.iter().flat_map(|&sender| self.paths(sender, receiver).to_vec()) {
            let (before, rest) = path.split_at(path.len() - 1 - behind);
            let (link, port) = (&rest[0], &rest[1..]);
            start = start.min(tandem(before, first, first, 1));
            let whole = link_time(link, full, last, frames * senders.len() as u64, senders.len() as u64);
            // The time to send all bits is divided among the receiver's links; the latency is not.
            let sending = self.time_on_one_link(link, together, whole - link.latency);
            end = end.min(sending + link.latency + tandem(port, last, last, 1));
        }
        Duration(start.saturating_add(end)) + self.stack[transport as usize]
    }

    /// Time that one link of a receiver needs for its part of `time`, when the other links carry as much as they can.
    fn time_on_one_link(&self, link: &Stage, together: Rate, time: u64) -> u64 {
        if self.by_destination {
            return time;
        }
        (time as u128 * together.ps_per_byte_q16() as u128 / link.ps_per_byte_q16 as u128) as u64
    }

    /// Rate of the links of a receiver over which frames of these senders can come: in a graph not of all links.
    fn rate_towards(&self, senders: &[HostId], receiver: HostId) -> Rate {
        if self.plan.ports(receiver) == 1 || self.plan.tree().is_some() {
            return self.plan.host_rate(receiver);
        }
        let mut last = BTreeSet::new();
        for &sender in senders {
            let (probe, mut seen, mut boxes) = (probe(sender, receiver), BTreeSet::from([sender]), vec![sender]);
            while let Some(node) = boxes.pop() {
                let ports = self.plan.router(node).map_or(vec![0], |router| router.candidate_ports(&probe));
                for (peer, peer_port) in ports.into_iter().map(|port| self.plan.peer(node, port)) {
                    if peer == receiver {
                        last.insert(peer_port);
                    } else if seen.insert(peer) {
                        boxes.push(peer);
                    }
                }
            }
        }
        Rate(last.into_iter().map(|port| self.plan.rate(receiver, port).as_bps()).sum())
    }

    /// The paths between two hosts, none of which is slower than another on every link.
    fn paths(&self, src: HostId, dst: HostId) -> Arc<[Path]> {
        let Some(key) = self.ends(src, dst) else { return self.find(src, dst) };
        let mut paths = self.paths.lock().unwrap_or_else(|e| e.into_inner());
        paths.entry(key).or_insert_with(|| self.find(src, dst)).clone()
    }

    /// Key of the paths between two hosts; `None` where the paths are searched anew.
    fn ends(&self, src: HostId, dst: HostId) -> Option<Ends> {
        if src == dst {
            return None;
        }
        if !self.bumps.plans.is_empty() {
            // Links of a level are not alike.
            return Some(Ends::Hosts(src, dst));
        }
        let Some(tree) = self.plan.tree() else {
            if self.plan.ports(src) + self.plan.ports(dst) > 2 {
                return Some(Ends::Hosts(src, dst));
            }
            let (from, to) = (self.plan.peer(src, 0), self.plan.peer(dst, 0));
            return Some(Ends::Edges([from.0, to.0], [self.stage(src, 0), self.stage(to.0, to.1)]));
        };
        let [src_is, dst_is] = [src, dst].map(|h| h >= tree.leaves());
        if src_is || dst_is {
            return Some(Ends::External {
                src: src_is,
                dst: dst_is,
                same_root: self.plan.peer(src, 0).0 == self.plan.peer(dst, 0).0,
            });
        }
        let level = tree.nca_level(src, dst);
        let known = level < tree.levels() || self.roots_alike || self.over_all_roots;
        known.then_some(Ends::Level(level))
    }

    fn find(&self, src: HostId, dst: HostId) -> Arc<[Path]> {
        let external = self.plan.hosts() - self.plan.external();
        let vm_port = |host: HostId| {
            let rate = self.vm.filter(|_| host < external)?;
            Some(Stage { ps_per_byte_q16: rate.ps_per_byte_q16(), latency: 0, first_bit: false, extra: 0, gap: 0 })
        };
        let between =
            if src == dst { vec![Path::new()] } else { self.walk(src, &probe(src, dst), &mut BTreeMap::new()) };
        let whole = |path: Path| vm_port(src).into_iter().chain(path).chain(vm_port(dst)).collect();
        between.into_iter().map(whole).collect()
    }

    /// The paths on from a box, as the ports of the boxes can be chosen; `known` has those from boxes seen before.
    fn walk(&self, from: NodeId, probe: &Packet, known: &mut BTreeMap<NodeId, Vec<Path>>) -> Vec<Path> {
        let (mut node, mut begin) = (from, Path::new());
        let ports = loop {
            let ports = match node.checked_sub(self.plan.hosts()) {
                None if node != from => return vec![begin],
                None => self.plan.host_router(node).map_or(vec![0], |r| r.candidate_ports(probe)),
                Some(s) => self.plan.switches()[s as usize].router.candidate_ports(probe),
            };
            match ports[..] {
                // Nothing arrives where there is no path.
                [] => return vec![begin],
                [port] => {
                    begin.extend(self.stages(node, port));
                    node = self.plan.peer(node, port).0;
                }
                _ => break ports,
            }
        };
        let mut paths = Vec::new();
        for port in ports {
            let next = self.plan.peer(node, port).0;
            if !known.contains_key(&next) {
                let found = if next < self.plan.hosts() { vec![Path::new()] } else { self.walk(next, probe, known) };
                known.insert(next, found);
            }
            for rest in &known[&next] {
                let path = self.stages(node, port).chain(rest.iter().copied()).collect();
                add_path(&mut paths, path);
            }
        }
        paths.into_iter().map(|path| begin.iter().copied().chain(path).collect()).collect()
    }

    /// The stores of a port's link: the port itself, and each bump in the link.
    fn stages(&self, node: NodeId, port: PortId) -> impl Iterator<Item = Stage> + '_ {
        let stage = self.stage(node, port);
        let through = self.bumps.through.get(&self.plan.link_index(node, port));
        let into_bumps = through.into_iter().flat_map(|through| &through.hops);
        let last = through.map_or(stage, |through| Stage { latency: through.rest.0, ..stage });
        into_bumps.map(move |hop| Stage { latency: hop.latency.0, first_bit: false, ..stage }).chain([last])
    }

    /// The store of a port's link.
    fn stage(&self, node: NodeId, port: PortId) -> Stage {
        let l = self.links.of(node, port);
        let tunnel = self.frames.encapsulation;
        Stage {
            ps_per_byte_q16: l.rate.ps_per_byte_q16(),
            latency: l.latency.0,
            first_bit: l.first_bit,
            extra: tunnel + self.frames.framing.overhead() as u64,
            gap: self.frames.framing.gap as u64,
        }
    }
}

/// Probe packet for the path between two hosts.
fn probe(src: HostId, dst: HostId) -> Packet {
    let flow = FlowKey { src: Address::new(src, 0), dst: Address::new(dst, 0), sport: 0, dport: 0 };
    Packet::udp(flow, 0, 0, 0, Framing::ETHERNET)
}

/// Adds a path unless a known path is as fast everywhere; removes the paths that are nowhere faster than the new one.
fn add_path(paths: &mut Vec<Path>, path: Path) {
    let as_fast = |a: &Path, b: &Path| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_as_fast_as(b));
    if paths.iter().any(|w| as_fast(w, &path)) {
        return;
    }
    paths.retain(|w| !as_fast(&path, w));
    paths.push(path);
    if paths.len() > PATHS_MAX {
        let all = paths.drain(..).reduce(|a, b| a.iter().zip(&b).map(|(a, b)| faster(a, b)).collect());
        paths.extend(all);
    }
}

/// As fast as either of two stores of a link.
fn faster(a: &Stage, b: &Stage) -> Stage {
    Stage {
        ps_per_byte_q16: a.ps_per_byte_q16.min(b.ps_per_byte_q16),
        latency: a.latency.min(b.latency),
        first_bit: a.first_bit || b.first_bit,
        ..*a
    }
}

/// When the last of `frames` frames, all of `full` bytes but the last, is through stages one after the other.
fn tandem(stages: &[Stage], full: u64, last: u64, frames: u64) -> u64 {
    let ser = |s: &Stage, len: u64| ((len + s.extra) * s.ps_per_byte_q16) >> 16;
    let through = |s: &Stage, start: u64, len: u64| {
        let bits = if s.first_bit { 0 } else { ser(s, len) - ((s.gap * s.ps_per_byte_q16) >> 16) };
        start + bits + s.latency
    };
    // Equal frames in tandem stores: frame i starts i times the slowest store so far after the first one.
    let mut first = 0;
    let mut slowest = 0;
    let mut tail = 0;
    for s in stages {
        let (start_first, start_tail) = (first, tail);
        let mut begin = start_tail;
        if frames > 1 {
            let before = start_first + (frames - 2) * slowest.max(ser(s, full));
            begin = begin.max(before + ser(s, full));
        } else {
            begin = begin.max(start_first);
        }
        slowest = slowest.max(ser(s, full));
        first = through(s, start_first, if frames > 1 { full } else { last });
        tail = through(s, begin, last);
    }
    tail
}

/// From the first bit of `frames` frames on a link, `short` of them of `last` bytes and the others of `full`, to the
/// arrival of the last bit.
fn link_time(link: &Stage, full: u64, last: u64, frames: u64, short: u64) -> u64 {
    let ser = |len: u64| ((len + link.extra) * link.ps_per_byte_q16) >> 16;
    let bits = ((last + link.extra - link.gap) * link.ps_per_byte_q16) >> 16;
    (frames - short) * ser(full) + (short - 1) * ser(last) + bits + link.latency
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(ps_per_byte: u64, latency: u64, first_bit: bool) -> Stage {
        Stage { ps_per_byte_q16: ps_per_byte << 16, latency, first_bit, extra: 20, gap: 12 }
    }

    /// Frame by frame, store by store.
    fn slowly(stages: &[Stage], full: u64, last: u64, frames: u64) -> u64 {
        let mut free = vec![0u64; stages.len()];
        let mut done = 0;
        for i in 0..frames {
            let len = if i + 1 == frames { last } else { full };
            let mut at = 0;
            for (s, free) in stages.iter().zip(&mut free) {
                let start = at.max(*free);
                *free = start + (((len + s.extra) * s.ps_per_byte_q16) >> 16);
                let bits = if s.first_bit { 0 } else { ((len + s.extra - s.gap) * s.ps_per_byte_q16) >> 16 };
                at = start + bits + s.latency;
            }
            done = at;
        }
        done
    }

    #[test]
    fn the_closed_form_is_the_recurrence() {
        let shapes = [
            vec![stage(800, 5_000, false)],
            vec![stage(800, 5_000, true), stage(800, 100, true), stage(800, 7, false)],
            vec![stage(800, 0, false), stage(80, 1_000, false), stage(200, 0, true), stage(800, 3, false)],
            vec![stage(80, 0, false), stage(800, 1_000, false), stage(80, 0, false)],
        ];
        for stages in &shapes {
            for frames in [1, 2, 3, 15, 100] {
                for last in [64, 700, 1518] {
                    assert_eq!(
                        tandem(stages, 1518, last, frames),
                        slowly(stages, 1518, last, frames),
                        "{stages:?} {frames} {last}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_incast_is_bound_by_the_receivers_link() {
        // 32 times 20,000 B over 10 Gb/s Ethernet of 1 us: 13 frames of 1,448 B of payload and one of 1,176 B each.
        let text = "[topology]\nkind = \"single-switch\"\nhosts = 33\n[[workload]]\nkind = \"incast\"\nsenders = 32\n\
                    receiver = 32\nbytes = \"20000 B\"\n";
        let built = crate::build::build(&Scenario::parse(text, "incast").unwrap().scenario).unwrap();
        let senders: Vec<HostId> = (0..32).collect();
        // On the wire: 52 B of IP and TCP headers, 18 B of Ethernet, 20 B of preamble and gap.
        let (full, last) = ((1448 + 90) * 800, (1176 + 90) * 800);
        let latency = 1_000_000;
        // Store and forward: the first frame is whole (without its gap) before the switch sends it on.
        let first = full - 12 * 800 + latency;
        let want = first + 32 * (13 * full + last) - 12 * 800 + latency;
        assert_eq!(built.ideal.many_to_one(&senders, 32, 20_000, Transport::Tcp), Duration(want));
        // One sender of one frame: the same as a flow by itself.
        assert_eq!(
            built.ideal.many_to_one(&[0], 32, 1_000, Transport::Tcp),
            built.ideal.time(0, 32, 1_000, Transport::Tcp)
        );
        assert_eq!(
            built.ideal.many_to_one(&[0], 32, 20_000, Transport::Tcp),
            built.ideal.time(0, 32, 20_000, Transport::Tcp)
        );
    }

    #[test]
    fn an_incast_counts_the_links_by_which_it_can_come() {
        // GPU 0 of SimAI's file: from other servers over its rail alone (400 Gb/s), from its own over NVLink (2,880 Gb/s).
        let text = "[topology]\nkind = \"hpcc\"\nfile = \"tests/data/simai-16.txt\"\n[[workload]]\nkind = \"flow\"\nsrc = 1\n\
                    dst = 0\nbytes = \"1 MB\"\n";
        let folder = sluicenet_testkit::repository("crates/scenario");
        let loaded = Scenario::parse_in(text, "incast", Some(&folder), &[]).unwrap();
        let ideal = crate::build::build(&loaded.scenario).unwrap().ideal;
        let rate = |senders: &[HostId]| ideal.rate_towards(senders, 0).as_bps() / 1_000_000_000;
        assert_eq!([rate(&[8]), rate(&[9, 15]), rate(&[1, 2]), rate(&[1, 9])], [400, 400, 2_880, 3_280]);
    }
}

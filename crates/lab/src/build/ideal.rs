//! How long a message takes in an empty network: what a slowdown is measured against.
//!
//! The source sends at line rate from the first byte, nobody else sends, no window closes: the time at which the last
//! bit is through every store and stage of the path. Exact for a single frame and for a stream that its window lets
//! flow.

use super::{Plan, framing};
use crate::scenario::{Routing, Scenario};
use sluicenet_node::packet::{Address, FlowKey, Framing, IP_TCP_BYTES, IP_UDP_BYTES, Packet};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_sim::world::{Direction, NodeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A store a frame passes: it takes its time at `rate`, and `latency` to the next.
#[derive(Clone, Copy, Debug)]
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

/// What the ways between two hosts hang on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ends {
    Within,
    /// On the boxes next to them, and on whether one of the hosts is external.
    Edges(NodeId, NodeId, bool),
    /// On themselves, where hosts of a graph have several links.
    Hosts(HostId, HostId),
}

/// Times in an empty network, remembered by pair of edge switches.
pub struct Ideal {
    plan: Arc<Plan>,
    links: Vec<Direction>,
    framing: Framing,
    max_payload: [u64; 2],
    header: [u16; 2],
    stack: [Duration; 2],
    vm: Option<(Rate, u64)>,
    /// Whether all that one host is sent comes over the same link.
    by_destination: bool,
    paths: Mutex<BTreeMap<Ends, Vec<Stage>>>,
}

impl Ideal {
    pub(super) fn new(scenario: &Scenario, plan: Arc<Plan>, links: &[Direction]) -> Ideal {
        let mtu = scenario.host_mtu().as_bytes();
        let timestamps = if scenario.tcp.timestamps { 12 } else { 0 };
        let encapsulation = if scenario.overlay.enabled { scenario.overlay.encapsulation.as_bytes() } else { 0 };
        Ideal {
            plan,
            links: links.to_vec(),
            framing: framing(scenario),
            max_payload: [mtu - IP_TCP_BYTES as u64 - timestamps, mtu - IP_UDP_BYTES as u64],
            header: [IP_TCP_BYTES + timestamps as u16, IP_UDP_BYTES],
            stack: [scenario.tcp.tx_delay + scenario.tcp.rx_delay, scenario.udp.tx_delay + scenario.udp.rx_delay],
            vm: scenario.server.virtual_network.then_some((scenario.vswitch.vm_rate, encapsulation)),
            by_destination: scenario.topology.routing == Routing::DModK,
            paths: Mutex::new(BTreeMap::new()),
        }
    }

    /// Time for `bytes` from one host to another.
    pub fn time(&self, src: HostId, dst: HostId, bytes: u64, tcp: bool) -> Duration {
        let t = if tcp { 0 } else { 1 };
        let full = self.max_payload[t];
        let frames = bytes.div_ceil(full).max(1);
        let last = bytes - (frames - 1) * full;
        let len = |payload: u64| self.framing.frame_len(self.header[t] + payload as u16) as u64;
        let stages = self.stages(src, dst);
        Duration(tandem(&stages, len(full), len(last), frames)) + self.stack[t]
    }

    /// Time for `bytes` from each of `senders` to one receiver, if its link is the bottleneck: the line-rate bound.
    ///
    /// The first frame that can be there starts on the receiver's link; from then on the link sends frame after frame
    /// of all senders without a rest, framing and gaps included; the last one still has the link's latency, the VM's
    /// port (if there is one) and the receiving stack ahead of it. Nothing can be faster, whatever the order of frames.
    /// Several links of the receiver count as the share of all bits that is one's own, where frames can come over all.
    pub fn many_to_one(&self, senders: &[HostId], receiver: HostId, bytes: u64, tcp: bool) -> Duration {
        let t = if tcp { 0 } else { 1 };
        let full = self.max_payload[t];
        let frames = bytes.div_ceil(full).max(1);
        let last = bytes - (frames - 1) * full;
        let len = |payload: u64| self.framing.frame_len(self.header[t] + payload as u16) as u64;
        let (full, last) = (len(full), len(last));
        let first = if frames > 1 { full } else { last };
        let behind = usize::from(self.vm.is_some() && receiver < self.plan.hosts() - self.plan.external());
        let mut start = u64::MAX;
        let mut end = 0;
        for &sender in senders {
            let stages = self.stages(sender, receiver);
            let (before, rest) = stages.split_at(stages.len() - 1 - behind);
            let (link, port) = (&rest[0], &rest[1..]);
            start = start.min(tandem(before, first, first, 1));
            let whole = link_time(link, full, last, frames * senders.len() as u64, senders.len() as u64);
            // What is sent without a rest is divided among the links, the latency is not.
            let sending = self.share_of_one_link(link, receiver, whole - link.latency);
            end = sending + link.latency + tandem(port, last, last, 1);
        }
        Duration(start.saturating_add(end)) + self.stack[t]
    }

    /// What is left of `time` on one link of a receiver when its other links carry what they can.
    fn share_of_one_link(&self, link: &Stage, receiver: HostId, time: u64) -> u64 {
        if self.by_destination {
            return time;
        }
        let together = self.plan.host_rate(receiver).ps_per_byte_q16();
        (time as u128 * together as u128 / link.ps_per_byte_q16 as u128) as u64
    }

    /// The stores between two hosts.
    fn stages(&self, src: HostId, dst: HostId) -> Vec<Stage> {
        let (from, to) = (self.plan.host(src), self.plan.host(dst));
        let external = src.max(dst) >= self.plan.hosts() - self.plan.external();
        // In a tree all links of a host are alike.
        let key = if src == dst {
            Ends::Within
        } else if self.plan.tree().is_some() || from.len() + to.len() == 2 {
            Ends::Edges(from[0].peer, to[0].peer, external)
        } else {
            Ends::Hosts(src, dst)
        };
        let mut paths = self.paths.lock().unwrap_or_else(|e| e.into_inner());
        paths.entry(key).or_insert_with(|| self.walk(src, dst)).clone()
    }

    fn walk(&self, src: HostId, dst: HostId) -> Vec<Stage> {
        let external = self.plan.hosts() - self.plan.external();
        let vm_port = |host: HostId| {
            let (rate, _) = self.vm.filter(|_| host < external)?;
            Some(Stage { ps_per_byte_q16: rate.ps_per_byte_q16(), latency: 0, first_bit: false, extra: 0, gap: 0 })
        };
        let mut stages: Vec<Stage> = vm_port(src).into_iter().collect();
        if src != dst {
            let tunnel = self.vm.map_or(0, |(_, encapsulation)| encapsulation);
            let flow = FlowKey { src: Address::new(src, 0), dst: Address::new(dst, 0), sport: 0, dport: 0 };
            let probe = Packet::udp(flow, 0, 0, 0, self.framing);
            let (mut node, mut port) = (src, self.plan.host_router(src).and_then(|r| r.route(&probe)).unwrap_or(0));
            loop {
                let l = &self.links[self.plan.link_index(node, port)];
                stages.push(Stage {
                    ps_per_byte_q16: l.rate.ps_per_byte_q16(),
                    latency: l.latency.0,
                    first_bit: l.first_bit,
                    extra: tunnel + self.framing.overhead() as u64,
                    gap: self.framing.gap as u64,
                });
                node = l.to.0;
                let Some(s) = node.checked_sub(self.plan.hosts()) else { break };
                let Some(next) = self.plan.switches()[s as usize].router.route(&probe) else { break };
                port = next;
            }
        }
        stages.extend(vm_port(dst));
        stages
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
        assert_eq!(built.ideal.many_to_one(&senders, 32, 20_000, true), Duration(want));
        // One sender of one frame: the same as a flow by itself.
        assert_eq!(built.ideal.many_to_one(&[0], 32, 1_000, true), built.ideal.time(0, 32, 1_000, true));
        assert_eq!(built.ideal.many_to_one(&[0], 32, 20_000, true), built.ideal.time(0, 32, 20_000, true));
    }
}

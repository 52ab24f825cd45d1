//! A fat-tree switch's choice of upward ports per flow, beyond its router's choice for every frame. It uses exact entries
//! of a controller, the flow classifier, and the destinations out of reach (Al-Fares 2012, 3.1.6 to 3.1.8, 4.1.2). All of
//! this is soft state: without it the router's choice holds.

use crate::device::PortId;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use sluicenet_proto::frame::{Frame, HostId};
use sluicenet_proto::rng::mix64;
use sluicenet_proto::routing::fat_tree::classifier::{FLOWS_MAX, FlowClassifier};
use sluicenet_proto::routing::fat_tree::ports::UpPorts;
use sluicenet_proto::routing::fat_tree::tags::TagSwitch;
use sluicenet_proto::time::{Duration, Instant};

/// Most entries of a switch: the exact-match table of the source (Al-Fares 2012, 4.3.3, a 32K entry SRAM).
pub const ENTRIES_MAX: usize = 1 << 15;

/// A flow, as returned by [`Frame::flow_hash`].
pub type FlowHash = u64;

/// The assignment of a flow's first port, and of later moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assigns {
    /// The router.
    Router,
    /// The least loaded port. The flow stays there unless the controller moves it (3.1.7).
    LeastLoaded(Duration),
    /// The least loaded port; at the end of each period a few flows are moved (3.1.6).
    Classifier(Duration),
}

/// Counters of an edge switch for a flow from its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The sender.
    pub src: HostId,
    /// The receiver.
    pub dst: HostId,
    /// Bytes so far.
    pub bytes: u64,
    /// Time of the flow's first frame.
    pub since: Instant,
    /// Bytes at the last reading of the counter.
    read: u64,
}

/// The steering of one switch.
#[derive(Clone, Debug)]
pub struct Steering {
    /// The first upward port, and the number of upward ports.
    first_up: PortId,
    ups: u16,
    /// Hosts of the fat-tree: the router alone decides for other destinations.
    hosts: HostId,
    entries: BTreeMap<FlowHash, PortId>,
    classifier: Option<Box<FlowClassifier>>,
    moves: bool,
    /// The switch's knowledge of failures; none where there are none.
    tags: Option<Box<TagSwitch>>,
    /// In an edge switch, the flows from its hosts.
    counted: Option<BTreeMap<FlowHash, Counted>>,
}

impl Steering {
    /// Steering for a switch whose ports from `first_up` on lead up, in a fat-tree with `hosts` hosts. `own` makes this
    /// switch's random draws differ from other switches'. `counts` is whether the other ports lead to hosts whose flows
    /// are counted.
    pub fn new((first_up, ups): (PortId, u16), hosts: HostId, own: u64, assigns: Assigns, counts: bool) -> Steering {
        let classifier =
            |period| Some(Box::new(FlowClassifier::new(Instant::ZERO, ups.max(1), period, FLOWS_MAX, own)));
        let (classifier, moves) = match assigns {
            Assigns::Router => (None, false),
            Assigns::LeastLoaded(period) => (classifier(period), false),
            Assigns::Classifier(period) => (classifier(period), true),
        };
        let counted = counts.then(BTreeMap::new);
        Steering { first_up, ups, hosts, entries: BTreeMap::new(), classifier, moves, tags: None, counted }
    }

    /// The output port for a frame from port `input`, where the router chose `routed`; `None` where no upward port
    /// reaches the destination.
    #[inline]
    pub fn route<F: Frame>(&mut self, now: Instant, input: PortId, frame: &F, routed: PortId) -> Option<PortId> {
        let flow = frame.flow_hash();
        if input < self.first_up
            && let Some(counted) = &mut self.counted
        {
            count(counted, now, flow, frame);
        }
        self.steer(now, flow, frame.destination(), frame.len(), routed)
    }

    /// The port for `bytes` bytes of a flow; `None` where no upward port reaches the flow's destination.
    pub fn steer(&mut self, now: Instant, flow: FlowHash, dst: HostId, bytes: u32, routed: PortId) -> Option<PortId> {
        if routed < self.first_up || dst >= self.hosts {
            return Some(routed);
        }
        let first_up = self.first_up;
        let all = UpPorts::first(self.ups.into());
        let usable = self.tags.as_ref().map_or(all, |tags| tags.usable(dst));
        if let Some(&port) = self.entries.get(&flow)
            && usable.contains(port - first_up)
        {
            return Some(port);
        }
        let Some(classifier) = &mut self.classifier else {
            if usable.contains(routed - first_up) {
                return Some(routed);
            }
            let nth = ((u128::from(mix64(flow)) * u128::from(usable.count())) >> 64) as usize;
            return usable.iter().nth(nth).map(|up| first_up + up);
        };
        if now >= classifier.poll_timeout() {
            let moves = self.moves;
            classifier.handle_timeout(now, |_| if moves { usable } else { UpPorts::NONE });
        }
        classifier.handle_packet(flow, bytes, usable).map(|up| first_up + up)
    }

    /// Replaces the switch's knowledge of failures.
    pub fn know(&mut self, tags: TagSwitch) {
        self.tags = Some(Box::new(tags));
    }

    /// Sends a flow by the upward `port` from now on; with `None`, the entry is removed. An entry beyond the table's size
    /// is ignored.
    pub fn set(&mut self, flow: FlowHash, port: Option<PortId>) {
        match port {
            Some(port) if port < self.first_up => {}
            Some(port) if self.entries.len() < ENTRIES_MAX || self.entries.contains_key(&flow) => {
                self.entries.insert(flow, port);
            }
            Some(_) => {}
            None => {
                self.entries.remove(&flow);
            }
        }
    }

    /// Forgets all entries, for example after the controller has been silent for too long. Flows then take their paths
    /// without a controller.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// The counters of an edge switch, flow by flow. A flow that has not sent since the last reading is reported once
    /// more and then forgotten.
    pub fn read(&mut self) -> Vec<(FlowHash, Counted)> {
        let Some(counted) = &mut self.counted else { return Vec::new() };
        let all = counted.iter().map(|(&flow, &c)| (flow, c)).collect();
        counted.retain(|_, c| core::mem::replace(&mut c.read, c.bytes) != c.bytes);
        all
    }
}

fn count<F: Frame>(counted: &mut BTreeMap<FlowHash, Counted>, now: Instant, flow: FlowHash, frame: &F) {
    let bytes = u64::from(frame.len());
    if let Some(c) = counted.get_mut(&flow) {
        c.bytes += bytes;
    } else if counted.len() < FLOWS_MAX {
        let (src, dst) = (frame.source(), frame.destination());
        counted.insert(flow, Counted { src, dst, bytes, since: now, read: u64::MAX });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Address, FlowKey, Kind, Packet};
    use sluicenet_proto::routing::fat_tree::FatTree;

    fn frame(src: HostId, dst: HostId) -> Packet {
        let (src, dst) = (Address::new(src, 0), Address::new(dst, 0));
        Packet::of_flow(FlowKey { src, dst, sport: 1, dport: 2 }, Kind::Udp)
    }

    fn at(ms: u64) -> Instant {
        Instant(Duration::from_ms(ms).0)
    }

    #[test]
    fn entries_win_over_the_router_and_only_on_the_way_up() {
        let mut s = Steering::new((2, 2), 16, 0, Assigns::Router, true);
        let f = frame(0, 9);
        assert_eq!(s.route(at(0), 0, &f, 2), Some(2));
        s.set(f.flow_hash(), Some(1));
        assert_eq!(s.entries(), 0, "no entry sends anything down again");
        s.set(f.flow_hash(), Some(3));
        assert_eq!(s.route(at(0), 0, &f, 2), Some(3));
        assert_eq!(s.route(at(0), 2, &f, 1), Some(1), "it leads down");
        s.set(f.flow_hash(), None);
        assert_eq!((s.route(at(0), 0, &f, 2), s.entries()), (Some(2), 0));
        let outside = frame(0, 16);
        s.set(outside.flow_hash(), Some(3));
        assert_eq!(s.route(at(0), 0, &outside, 2), Some(2));
        s.clear();
        assert_eq!(s.entries(), 0);
    }

    #[test]
    fn what_hosts_send_is_counted_and_forgotten_when_they_are_silent() {
        let mut s = Steering::new((2, 2), 16, 0, Assigns::Router, true);
        let (f, len) = (frame(0, 1), u64::from(frame(0, 1).len()));
        for (ms, input, frame, routed) in [(1, 0, f, 1), (2, 0, f, 1), (2, 3, frame(9, 0), 0)] {
            s.route(at(ms), input, &frame, routed).unwrap();
        }
        let read = s.read();
        assert_eq!(read.len(), 1, "what comes from above is counted where it comes from");
        let (flow, c) = read[0];
        assert_eq!((flow, c.src, c.dst, c.bytes, c.since), (f.flow_hash(), 0, 1, 2 * len, at(1)));
        assert_eq!((s.read().len(), s.read().len()), (1, 0));
    }

    /// Al-Fares 2012, 3.1.8.
    #[test]
    fn what_is_out_of_reach_is_gone_around_and_nothing_is_sent_back_down() {
        let tree = FatTree::new(4).unwrap();
        for assigns in [Assigns::Router, Assigns::Classifier(Duration::from_ms(10))] {
            let mut s = Steering::new((2, 2), 16, 0, assigns, false);
            let f = frame(0, 9);
            s.set(f.flow_hash(), Some(3));
            let mut tags = TagSwitch::new(tree, tree.edge(0));
            tags.handle_link(3, false);
            s.know(tags.clone());
            assert_eq!(s.route(at(0), 0, &f, 3), Some(2));
            tags.handle_link(2, false);
            s.know(tags.clone());
            assert_eq!(s.route(at(0), 0, &f, 3), None);
            tags.handle_link(3, true);
            s.know(tags);
            assert_eq!(s.route(at(0), 0, &f, 2), Some(3), "the entry counts again");
        }
    }

    #[test]
    fn flows_take_the_least_loaded_port_and_are_moved_only_where_the_classifier_may() {
        for (assigns, moved) in
            [(Assigns::LeastLoaded(Duration::from_ms(10)), false), (Assigns::Classifier(Duration::from_ms(10)), true)]
        {
            let mut s = Steering::new((2, 2), 16, 0, assigns, false);
            let mut send = |ms, flow, bytes| s.steer(at(ms), flow, 9, bytes, 2).unwrap();
            // The third flow shares a port with the first, which both fill, while the second flow ends.
            let ports = [send(0, 1, 900), send(0, 2, 1_000), send(0, 3, 900)];
            assert!(ports[0] != ports[1] && ports[0] == ports[2], "{ports:?}");
            send(11, 1, 900);
            send(11, 3, 900);
            let after = send(22, 3, 900);
            let first = send(22, 1, 900);
            assert_eq!(after != first, moved, "{assigns:?}");
        }
    }
}

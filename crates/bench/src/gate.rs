//! What the gate of XCo costs a frame at an uplink, beside an uplink without one. The clock of the uplinks is virtual: only the
//! processor's time is measured.

use serde::Serialize;
use sluicenet_node::uplink::{Front, GateConfig, Gated, Link, Origin, Outgoing, Queues, Uplink};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::controller::{Controller, ControllerConfig, PolicyConfig, Weights};
use sluicenet_proto::xco::coordinator::CoordinatorConfig;
use sluicenet_proto::xco::slices::SliceConfig;
use sluicenet_proto::xco::topology::{self, Topology};
use sluicenet_proto::xco::{Limits, Node};
use sluicenet_wire::ethernet::{EtherType, HEADER_LEN, MacAddress, Repr as Ethernet};
use sluicenet_wire::xco::{Frame as Message, LEN_MAX, Repr, is_message, without_tag};
use std::collections::BTreeMap;

const RATE: Rate = Rate::gbps(10);
/// Bytes of a frame without its check sequence, and on the wire.
const FRAME: usize = 1_514;
const WIRE: u64 = 1_538;
const CONTROLLER: MacAddress = MacAddress::local(1_000);
const OWN: MacAddress = MacAddress::local(1);
/// Frames between two looks at timers and messages, as in a round of a busy switch.
const ROUND: u64 = 32;
/// Silence of the controller after which all frames pass.
const LEASE: Duration = Duration::from_ms(100);

/// Settings of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Frames.
    pub frames: u64,
    /// Pairs of VMs, each to another host.
    pub pairs: u32,
}

/// Nanoseconds of processor time for a frame: taken from the switch and handed to the link.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// Frames.
    pub frames: u64,
    /// Pairs of VMs.
    pub pairs: u32,
    /// Without a gate.
    pub plain_ns: f64,
    /// With a gate whose controller gives timeslices; the work of the controller is not counted.
    pub gate_ns: f64,
    /// Directives that this gate carried out.
    pub directives: u64,
    /// With a gate that hears no controller.
    pub free_ns: f64,
    /// Times that this gate let a frame pass unasked.
    pub free_frames: u64,
}

fn vm(host: Node) -> MacAddress {
    MacAddress::local(100 + host)
}

fn frame(to: Node) -> Vec<u8> {
    let mut bytes = vec![0; FRAME];
    Ethernet { destination: vm(to), source: vm(0), ethertype: EtherType::IPV4 }.emit(&mut bytes);
    bytes[HEADER_LEN] = 0x45;
    bytes
}

fn link() -> Link {
    let headroom = 1 << 20;
    Link::new(OWN, RATE, FRAME as u32 + 4, Duration::from_us(20), PrioritySet::ALL, headroom).expect("room for a link")
}

fn gate(pairs: u32) -> Gated {
    let coordinator = CoordinatorConfig {
        node: 0,
        rate_kbps: (RATE.as_bps() / 1_000) as u32,
        controllers: vec![CONTROLLER],
        lease: LEASE,
        hysteresis: Some(Duration::from_us(50)),
        small_kbps: 0,
        entries: 64,
        flows: pairs as usize,
        late: Duration::from_us(200),
        nonce: 1,
    };
    let stations: BTreeMap<_, _> = (0..=pairs).map(|host| (vm(host), host)).collect();
    Gated::new(Instant::ZERO, GateConfig { coordinator, stations, queue: 128 << 10, priority: 7 })
}

fn controller(pairs: u32) -> Controller {
    let links: Vec<_> =
        (0..=pairs).map(|n| topology::Link { ends: [n, pairs + 1], kbps: (RATE.as_bps() / 1_000) as u32 }).collect();
    let mut topology = Topology::new(pairs + 1, pairs as usize + 2, &links).expect("hosts at a switch");
    topology.add_tree(pairs + 1).expect("a tree");
    let config = ControllerConfig {
        policy: PolicyConfig::Slices(SliceConfig::new(Duration::from_ms(2))),
        limits: Limits { flows: 1024, flows_per_node: 256 },
        lease: LEASE,
        on_demand: false,
        weights: Weights::default(),
        nodes: Vec::new(),
        peer: None,
        hierarchy: None,
        seed: 1,
    };
    Controller::new(Instant::ZERO, topology, config, 1, false)
}

/// An uplink that gets frames as fast as its link sends them, from `begin` on. Returns the nanoseconds of a frame, without the
/// rounds before the first frame.
///
/// `gate` is the work of the uplink with messages from the controller, and `controller` makes them from those of the uplink.
/// The time of the controller is not counted.
fn drive<O: Outgoing<Vec<u8>>>(
    what: Gate,
    begin: Instant,
    uplink: &mut Uplink<u32, Vec<u8>, O>,
    mut gate: impl FnMut(Instant, &mut Uplink<u32, Vec<u8>, O>, &[Message]),
    mut controller: impl FnMut(Instant, Vec<Vec<u8>>) -> Vec<Message>,
) -> f64 {
    let mut spare: Vec<Vec<u8>> = Vec::new();
    let mut now = begin;
    let (mut sent, mut offered, mut nanos) = (0u64, 0u64, 0u128);
    let mut begun = None;
    let mut directives = Vec::new();
    let frames: Vec<Vec<u8>> = (1..=what.pairs).map(frame).collect();
    while sent < what.frames {
        let mut messages = Vec::new();
        let started = std::time::Instant::now();
        gate(now, uplink, &directives);
        uplink.on_round(now);
        uplink.handle_timeout(now);
        for _ in 0..ROUND {
            // No more than a few hundred frames wait.
            if offered - sent < 16 * u64::from(what.pairs) + 64 {
                let mut bytes = spare.pop().unwrap_or_default();
                bytes.clear();
                bytes.extend_from_slice(&frames[(offered % frames.len() as u64) as usize]);
                uplink.enqueue(now, 0, FRAME as u32, bytes);
                offered += 1;
            }
            now += RATE.time_for(WIRE);
            while let Some(front) = uplink.front(now) {
                let is_own = matches!(front, Front::Frame(bytes) if is_message(bytes));
                let Some(bytes) = uplink.sent(now) else { continue };
                if is_own {
                    messages.push(bytes);
                } else {
                    sent += 1;
                    spare.push(bytes);
                }
            }
        }
        match begun {
            Some(_) => nanos += started.elapsed().as_nanos(),
            None => begun = (sent > 0).then_some(sent),
        }
        directives = controller(now, messages);
    }
    nanos as f64 / (sent - begun.unwrap_or(sent)).max(1) as f64
}

/// Hands messages of the controller to the gate, and queues those of the gate for the link.
fn exchange(now: Instant, uplink: &mut Uplink<u32, Vec<u8>, Gated>, directives: &[Message]) {
    for frame in directives {
        uplink.queues_mut().handle_message(now, frame.as_bytes(), OWN);
    }
    let mut bytes = Vec::new();
    while uplink.queues_mut().poll_message(now, OWN, &mut bytes) {
        let message = core::mem::take(&mut bytes);
        uplink.enqueue_of(now, Origin::Own, 7, message.len() as u32, message);
    }
}

/// Measures.
pub fn run(what: &Gate) -> Figures {
    let begin = Instant::ZERO + Duration::from_ms(1);
    let mut plain = Uplink::with(link(), Queues::default());
    let plain_ns = drive(*what, begin, &mut plain, |_, _, _| {}, |_, _| Vec::new());

    let mut gated = Uplink::with(link(), gate(what.pairs));
    let mut controller = controller(what.pairs);
    let gate_ns = drive(*what, begin, &mut gated, exchange, |now, messages| {
        for message in messages {
            let mut bytes = [0; LEN_MAX];
            if let Ok(repr) = without_tag(&message, &mut bytes).and_then(Repr::parse) {
                controller.handle(now, repr.source, &repr.head, &repr.message);
            }
        }
        controller.handle_timeout(now);
        let next = || controller.poll_transmit(now);
        std::iter::from_fn(next).map(|out| Message::emit(out.to, CONTROLLER, &out.head, &out.message)).collect()
    });

    // Nobody answers within the lease: then all frames pass.
    let mut free = Uplink::with(link(), gate(what.pairs));
    let free_ns = drive(*what, begin + LEASE, &mut free, exchange, |_, _| Vec::new());

    let directives = gated.queues().counters().1.directives;
    let free_frames = [gated.queues(), free.queues()].map(|gate| gate.counters().1.uncontrolled);
    assert_eq!(free_frames[0], 0, "a gate with a controller never lets frames pass unasked");
    Figures {
        frames: what.frames,
        pairs: what.pairs,
        plain_ns,
        gate_ns,
        directives,
        free_ns,
        free_frames: free_frames[1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_pass_with_and_without_a_gate() {
        let figures = run(&Gate { frames: 5_000, pairs: 3 });
        assert!(figures.directives > 0 && figures.free_frames >= 5_000, "{figures:?}");
    }
}

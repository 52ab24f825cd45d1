//! A stage that does all that a stage may do, in both positions of a chain, next to others and alone.

use super::{Context, Lane, Report, Stage, StageConfig, compose};
use crate::adapter::{AdapterConfig, Queueing};
use crate::device::{Device, PortId, PortSet, Wires};
use crate::guest::FlowLabel;
use crate::packet::{Address, FlowKey, Framing, Packet};
use crate::pool::{Handle, Pool};
use crate::server::{AnyServer, App, Event, Io, Open, ServerConfig, VirtualConfig, WhenFull};
use crate::with_server;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::Watermarks;
use sluicenet_proto::frame::{HostId, PrioritySet};
use sluicenet_proto::tcp;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::roce;

/// Time between two frames of a flow.
const GAP: Duration = Duration::from_us(10);
/// Frames of a VM that may wait.
const WAITING: u32 = 4;
/// The port of the applications.
const DATA: u16 = 2;

/// Frames of one lane to one destination.
#[derive(Debug)]
struct PacedFlow {
    lane: Lane,
    to: Address,
    waiting: VecDeque<Handle>,
    /// Whether the next one may go.
    is_open: bool,
}

/// Lets a frame of each flow through every 10 us, announces each flow by a frame of its own, and answers the announcements of its peer.
#[derive(Debug)]
struct Pacer {
    /// The port of its own frames.
    port: u16,
    flows: Vec<PacedFlow>,
    /// Frames of each VM that left their sockets and did not leave this stage.
    launched: [u32; 8],
    /// Its own frames that are to be sent, by lane.
    own: Vec<(Lane, Packet)>,
    made: u64,
    consumed: u64,
    answers: usize,
}

impl Pacer {
    fn boxed(port: u16) -> Boxed {
        let (flows, own) = (Vec::new(), Vec::new());
        Box::new(Pacer { port, flows, launched: [0; 8], own, made: 0, consumed: 0, answers: 0 })
    }

    /// An announcement has offset 1, an answer 2.
    fn frame(&self, src: Address, dst: Address, offset: u64) -> Packet {
        Packet::udp(FlowKey { src, dst, sport: self.port, dport: self.port }, offset, 10, 0, Framing::ETHERNET)
    }
}

impl Stage for Pacer {
    fn has_room(&self, lane: Lane, _below: bool) -> bool {
        self.launched[lane] < WAITING
    }
    fn on_launch(&mut self, lane: Lane, _to: Address) {
        self.launched[lane] += 1;
    }
    fn send(&mut self, _now: Instant, lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let (from, to) = (cx.frame(at).src(), cx.frame(at).dst());
        match self.flows.iter_mut().find(|f| (f.lane, f.to) == (lane, to)) {
            Some(flow) => flow.waiting.push_back(at),
            None => {
                self.own.push((lane, self.frame(from, to, 1)));
                self.flows.push(PacedFlow { lane, to, waiting: [at].into(), is_open: true });
            }
        }
        None
    }
    fn ready(&self) -> u64 {
        let open = self.flows.iter().filter(|f| f.is_open && !f.waiting.is_empty()).map(|f| f.lane);
        open.chain(self.own.iter().map(|o| o.0)).fold(0, |set, lane| set | 1 << lane)
    }
    fn poll_transmit(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        if let Some(i) = self.own.iter().position(|o| o.0 == lane) {
            self.made += 1;
            return Some(cx.insert(&self.own.remove(i).1));
        }
        let flow = self.flows.iter().position(|f| f.lane == lane && f.is_open && !f.waiting.is_empty())?;
        self.flows[flow].is_open = false;
        cx.set_timer(now + GAP, flow as u64);
        self.launched[lane] = self.launched[lane].saturating_sub(1);
        self.flows[flow].waiting.pop_front()
    }
    fn receive(&mut self, _now: Instant, lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let packet = *cx.frame(at);
        if packet.dport() != self.port {
            return Some(at);
        }
        cx.release(at);
        self.consumed += 1;
        match packet.udp_offset() {
            1 => self.own.push((lane, self.frame(packet.dst(), packet.src(), 2))),
            _ => self.answers += 1,
        }
        None
    }
    fn handle_timer(&mut self, now: Instant, at: Instant, slot: u8, token: u64, _cx: &mut Context<'_>) {
        assert_eq!((now, slot), (at, 0));
        self.flows[token as usize].is_open = true;
    }
    fn report(&self, report: &mut Report) {
        report.made += self.made;
        report.consumed += self.consumed;
        report.queued += self.flows.iter().map(|f| f.waiting.len() as u64).sum::<u64>();
        if self.answers > self.flows.len() {
            report.unsound.push("more answers than announcements");
        }
    }
}

/// Sends datagrams, and remembers when one arrived.
#[derive(Debug, Default)]
struct Sender(Vec<(Instant, u64)>);

impl App for Sender {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, event: Event) {
        match event {
            Event::Wake { token } => {
                let [src, dst] = [(token >> 32) as u32, token as u32].map(|a| Address::new(a >> 8, a as u8));
                let flow = FlowKey { src, dst, sport: 1, dport: DATA };
                let socket = io.open(now, flow, 0, Open::Datagrams(None));
                io.send(now, socket, 1_472, 7, FlowLabel::default());
            }
            Event::Message { bytes, .. } => self.0.push((now, bytes)),
            _ => {}
        }
    }
}

fn config() -> ServerConfig {
    let us = Duration::from_us(1);
    ServerConfig {
        framing: Framing::ETHERNET,
        mtu: 1500,
        tcp: tcp::Config::crisan2014_tuned(),
        tcp_tx_delay: us,
        tcp_rx_delay: us,
        udp_tx_delay: us,
        udp_rx_delay: us,
        udp_buffer: 100_000,
        light_buffer: 100_000,
        light_tx_delay: us,
        light_rx_delay: us,
        roce: roce::Config { mtu: 1024, ack_every: 4, timeout: us, dcqcn: None },
        when_full: WhenFull::Stop,
        gate: Vec::new(),
        virtual_network: Some(VirtualConfig {
            slots: 4,
            lossless: true,
            vm_ps_per_byte_q16: 800 << 16,
            slow: Vec::new(),
            encapsulation: 50,
            network: Vec::new(),
        }),
        lossy_vnics: None,
        access: None,
        adapter: Arc::new(AdapterConfig {
            buffer: 100_000,
            queueing: Queueing::Voq,
            lossless: PrioritySet::NONE,
            apart: PrioritySet::NONE,
            quanta: 65_535,
            repetition: alloc::vec![None],
            marks: Watermarks { capacity: 100_000, xoff: 60_000, xon: 40_000, headroom: 40_000 },
            resequencing: None,
            rate: alloc::vec![sluicenet_proto::units::Rate::gbps(10)],
            ets: None,
            notifications: false,
            source: None,
        }),
        seed: 1,
    }
}

struct Busy;

impl Wires for Busy {
    fn idle(&self, _: PortId) -> bool {
        false
    }
}

type Boxed = Box<dyn Stage>;

/// Makes a stage.
#[derive(Clone, Copy, Debug)]
struct Make(fn() -> Boxed);

impl StageConfig for Make {
    fn stage(&self, _host: HostId, _vms: usize, _seed: u64) -> Boxed {
        self.0()
    }
}

/// Two servers and a wire without any delay.
struct Pair {
    servers: [AnyServer<Sender>; 2],
    pool: Pool<Packet>,
    now: Instant,
}

impl Pair {
    /// Servers with these gate stages and, where they have a virtual network, these network stages.
    fn new(gate: &[Make], network: Option<&[Make]>) -> Pair {
        Pair::with(config(), gate, network)
    }

    /// The same with these settings.
    fn with(mut config: ServerConfig, gate: &[Make], network: Option<&[Make]>) -> Pair {
        let listed = |stages: &[Make]| stages.iter().map(|&make| -> Arc<dyn StageConfig> { Arc::new(make) }).collect();
        config.gate = listed(gate);
        match (network, &mut config.virtual_network) {
            (Some(network), Some(settings)) => settings.network = listed(network),
            _ => config.virtual_network = None,
        }
        let config = Arc::new(config);
        let server = |id| AnyServer::new(id, 2, config.clone(), None, Sender::default());
        Pair { servers: [server(0), server(1)], pool: Pool::default(), now: Instant::ZERO }
    }

    /// Lets time pass until nothing is left to happen; returns the frames on the wire with their times.
    fn run(&mut self) -> Vec<(Instant, Packet)> {
        let (mut sent, mut woke) = (Vec::new(), PortSet::default());
        loop {
            let timeout = |server: &AnyServer<Sender>| with_server!(server, s => Device::<Packet>::poll_timeout(&**s));
            let next = self.servers.iter().map(timeout).min().unwrap_or(Instant::MAX);
            if next == Instant::MAX {
                return sent;
            }
            self.now = next;
            for i in 0..2 {
                if timeout(&self.servers[i]) <= next {
                    with_server!(&mut self.servers[i], s => s.handle_timeout(next, &mut self.pool, &mut woke));
                }
                let mut metadata = Vec::new();
                self.servers[i].host_mut().take_metadata(&mut metadata);
                for (_, packet) in metadata {
                    let to = &mut self.servers[1 - i];
                    with_server!(to, s => s.receive_metadata(next, &packet, &mut self.pool, &mut woke));
                }
            }
            // Frames cross until neither has another one.
            while let Some((i, at)) = (0..2).find_map(|i| {
                let from = &mut self.servers[i];
                Some((i, with_server!(from, s => s.poll_transmit(next, 0, &mut self.pool, &mut woke))?))
            }) {
                sent.push((next, *self.pool.frame(at)));
                let to = &mut self.servers[1 - i];
                with_server!(to, s => s.receive(next, 0, at, &mut self.pool, &Busy, &mut woke));
            }
            while woke.pop().is_some() {}
            for server in &self.servers {
                assert!(server.ledger().balances(), "{:?}", server.ledger());
            }
        }
    }

    fn start(&mut self, sender: usize, from: Address, to: Address) {
        self.servers[sender].start(u64::from(from.to_bits()) << 32 | u64::from(to.to_bits()));
    }
}

#[test]
fn a_stage_keeps_frames_back_by_flow_and_sends_and_answers_frames_of_its_own() {
    let (pacer, other) = (Make(|| Pacer::boxed(9)), Make(|| Pacer::boxed(10)));
    let composed = Make(|| compose(alloc::vec![Pacer::boxed(9), Pacer::boxed(10)]));
    let positions: [(&[Make], Option<&[Make]>); 9] = [
        (&[], Some(&[])),
        (&[], None),
        (&[pacer], Some(&[])),
        (&[], Some(&[pacer])),
        (&[pacer], Some(&[other])),
        (&[pacer, other], Some(&[])),
        (&[], Some(&[composed])),
        (&[pacer], None),
        (&[pacer, other], None),
    ];
    for (case, (gate, network)) in positions.into_iter().enumerate() {
        let mut pair = Pair::new(gate, network);
        let (a, b, c) = (Address::new(0, 0), Address::new(1, 0), Address::new(1, 1));
        // Three frames of one flow, one of another, in one instant.
        for to in [b, b, b, c] {
            pair.start(0, a, to);
        }
        let sent = pair.run();
        let times = |dst: Address| -> Vec<Instant> {
            let of = |p: &&(Instant, Packet)| p.1.dst() == dst && p.1.dport() == DATA;
            sent.iter().filter(of).map(|p| p.0).collect()
        };
        let (first, second) = (times(b), times(c));
        assert_eq!((first.len(), second.len()), (3, 1), "case {case}");
        let paced = case > 1;
        for pair in first.windows(2) {
            assert_eq!(pair[1].since(pair[0]) >= GAP, paced, "case {case}: {first:?}");
        }
        // The other flow does not wait for the first one.
        assert!(!paced || second[0] < first[1], "case {case}: {first:?} {second:?}");
        let own = sent.iter().filter(|p| p.1.dport() > DATA).count() as u64;
        let reports = pair.servers.each_ref().map(AnyServer::report);
        let (made, consumed) = (reports[0].made + reports[1].made, reports[0].consumed + reports[1].consumed);
        assert_eq!((made, consumed), (own, own), "case {case}");
        assert_eq!(own > 0, paced);
        assert!(sent.iter().all(|p| p.1.is_encapsulated() == network.is_some()));
        assert!(reports.iter().all(|r| r.unsound.is_empty() && r.queued == 0), "case {case}: {reports:?}");
        // All messages arrived, and no frame is left.
        assert_eq!(pair.servers[1].app().0.len(), 4, "case {case}");
        assert_eq!(pair.pool.in_use(), 0, "case {case}");
    }
}

/// Delivers a frame of each VM every 10 us.
#[derive(Debug, Default)]
struct Holder {
    waiting: [VecDeque<Handle>; 2],
    is_closed: [bool; 2],
}

impl Stage for Holder {
    fn has_receive_queues(&self) -> bool {
        true
    }
    fn receive(&mut self, _now: Instant, lane: Lane, at: Handle, _cx: &mut Context<'_>) -> Option<Handle> {
        self.waiting[lane].push_back(at);
        None
    }
    fn has_received(&self, lane: Lane) -> bool {
        !self.is_closed[lane] && !self.waiting[lane].is_empty()
    }
    fn poll_receive(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        if !self.has_received(lane) {
            return None;
        }
        self.is_closed[lane] = true;
        cx.set_timer(now + GAP, lane as u64);
        self.waiting[lane].pop_front()
    }
    fn handle_timer(&mut self, _now: Instant, _at: Instant, _slot: u8, token: u64, _cx: &mut Context<'_>) {
        self.is_closed[token as usize] = false;
    }
    fn report(&self, report: &mut Report) {
        report.queued += self.waiting.iter().map(|w| w.len() as u64).sum::<u64>();
    }
}

#[test]
fn a_gate_stage_holds_frames_to_the_guests() {
    let nothing: &[Make] = &[];
    // Without latency a message arrives in the instant in which the stage lets its frame go.
    let at_once = ServerConfig { udp_tx_delay: Duration::ZERO, udp_rx_delay: Duration::ZERO, ..config() };
    for (config, network) in [(config(), Some(nothing)), (config(), None), (at_once, None)] {
        let mut pair = Pair::with(config, &[Make(|| Box::<Holder>::default())], network);
        let (a, b, c) = (Address::new(0, 0), Address::new(1, 0), Address::new(1, 1));
        for to in [b, b, b, c] {
            pair.start(0, a, to);
        }
        pair.run();
        let arrived: Vec<Instant> = pair.servers[1].app().0.iter().map(|m| m.0).collect();
        assert_eq!(arrived.len(), 4);
        // Those of the first VM come 10 us apart, that of the second does not wait for them.
        assert!(arrived[3].since(arrived[0]) >= GAP + GAP, "{arrived:?}");
        assert!(arrived[1].since(arrived[0]) < GAP, "{arrived:?}");
        assert_eq!(pair.pool.in_use(), 0);
        assert!(pair.servers.iter().all(|s| s.report().queued == 0));
    }
}

/// Closed until 10 us after the first frame from outside.
#[derive(Debug, Default)]
struct Door {
    is_open: bool,
}

impl Stage for Door {
    fn has_room(&self, _lane: Lane, below: bool) -> bool {
        self.is_open && below
    }
    fn receive(&mut self, now: Instant, _lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        if !self.is_open {
            cx.set_timer(now + GAP, 0);
        }
        Some(at)
    }
    fn handle_timer(&mut self, _now: Instant, _at: Instant, _slot: u8, _token: u64, _cx: &mut Context<'_>) {
        self.is_open = true;
    }
}

#[test]
fn sockets_go_on_when_a_stage_without_frames_has_room_again() {
    let nothing: &[Make] = &[];
    for network in [Some(nothing), None] {
        let mut pair = Pair::new(&[Make(|| Box::<Door>::default())], network);
        let (a, b) = (Address::new(0, 0), Address::new(1, 0));
        pair.start(0, a, b);
        pair.run();
        assert_eq!(pair.servers[1].app().0.len(), 0, "the door of the sender is closed");
        // A frame from outside opens it.
        let frame =
            pair.pool.insert(&Packet::udp(FlowKey { src: b, dst: a, sport: 1, dport: 7 }, 0, 10, 0, Framing::ETHERNET));
        let (now, mut woke) = (pair.now, PortSet::default());
        with_server!(&mut pair.servers[0], s => s.receive(now, 0, frame, &mut pair.pool, &Busy, &mut woke));
        pair.run();
        assert_eq!(pair.servers[1].app().0.len(), 1);
    }
}

/// Lets one frame to each destination at a time out of the sockets, and a frame every 10 us to the adapter if it has
/// `gap`.
#[derive(Debug, Default)]
struct Window {
    gap: bool,
    /// Destinations of launched frames.
    launched: Vec<Address>,
    /// Sockets that wait, with their VMs and destinations.
    blocked: Vec<(Lane, Address, u32)>,
    /// Frames that wait for their time.
    waiting: VecDeque<Handle>,
    is_closed: bool,
}

impl Stage for Window {
    fn blocks(&mut self, lane: Lane, to: Address, socket: u32) -> bool {
        let blocks = self.launched.contains(&to);
        if blocks {
            self.blocked.push((lane, to, socket));
        }
        blocks
    }
    fn on_launch(&mut self, _lane: Lane, to: Address) {
        assert!(!self.launched.contains(&to), "one at a time");
        self.launched.push(to);
    }
    fn send(&mut self, _now: Instant, _lane: Lane, at: Handle, _cx: &mut Context<'_>) -> Option<Handle> {
        self.waiting.push_back(at);
        None
    }
    fn ready(&self) -> u64 {
        u64::from(!self.is_closed && !self.waiting.is_empty())
    }
    fn poll_transmit(&mut self, now: Instant, _lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        if self.is_closed {
            return None;
        }
        let at = self.waiting.pop_front()?;
        if self.gap {
            self.is_closed = true;
            cx.set_timer(now + GAP, 0);
        }
        let to = cx.frame(at).dst();
        self.launched.retain(|&other| other != to);
        let (woken, left) = core::mem::take(&mut self.blocked).into_iter().partition(|b| b.1 == to);
        self.blocked = left;
        let woken: Vec<(Lane, Address, u32)> = woken;
        woken.into_iter().for_each(|(vm, _, socket)| cx.wake_sockets(vm, alloc::vec![socket]));
        Some(at)
    }
    fn handle_timer(&mut self, _now: Instant, _at: Instant, _slot: u8, _token: u64, _cx: &mut Context<'_>) {
        self.is_closed = false;
    }
    fn report(&self, report: &mut Report) {
        report.queued += self.waiting.len() as u64;
    }
}

#[test]
fn sockets_go_on_when_a_frame_leaves_the_server() {
    // The adapter holds one frame.
    let mut config = config();
    let adapter = AdapterConfig { buffer: 1_600, ..(*config.adapter).clone() };
    config.adapter = Arc::new(adapter);
    let window = Make(|| Box::new(Window::default()));
    let positions: [(&[Make], Option<&[Make]>); 2] = [(&[], Some(&[window])), (&[window], None)];
    for (gate, network) in positions {
        let mut pair = Pair::with(config.clone(), gate, network);
        let (a, b) = (Address::new(0, 0), Address::new(1, 0));
        (0..5).for_each(|_| pair.start(0, a, b));
        pair.run();
        assert_eq!(pair.servers[1].app().0.len(), 5);
    }
}

#[test]
fn a_network_stage_holds_back_the_sockets_of_one_destination() {
    let window = Make(|| Box::new(Window { gap: true, ..Window::default() }));
    let positions: [(&[Make], Option<&[Make]>); 2] = [(&[], Some(&[window])), (&[window], None)];
    for (gate, network) in positions {
        let mut pair = Pair::new(gate, network);
        let (a, b, c) = (Address::new(0, 0), Address::new(1, 0), Address::new(1, 1));
        for to in [b, b, b, c] {
            pair.start(0, a, to);
        }
        let local = Address::new(0, 1);
        pair.start(0, a, local);
        let sent = pair.run();
        let order: Vec<Address> = sent.iter().map(|p| p.1.dst()).collect();
        // The frame to the other destination overtakes those that wait in their socket.
        assert_eq!(order, [b, c, b, b]);
        assert!(sent.windows(2).all(|pair| pair[1].0.since(pair[0].0) >= GAP));
        // No network stage sees a frame within the server.
        assert_eq!(pair.servers[0].app().0.len(), 1);
        assert_eq!(pair.servers[1].app().0.len(), 4);
        assert_eq!(pair.pool.in_use(), 0);
    }
}

//! Two servers' uplinks back to back: tunnel, credits, channels and pauses as a switch has them, without a socket or a
//! clock. There are two tenants, whose machines have the same addresses, and two machines of each tenant on each
//! server.

use super::wire::Faults;
use super::{Broken, Stream, Tally, Wire};
use rustix::event::PollFd;
use sluicenet_dataplane::controller::{ControllerLink, Mailbox};
use sluicenet_dataplane::fabric::Device;
use sluicenet_dataplane::port::{Candidate, Delivery, Descriptor, Offload, Port};
use sluicenet_dataplane::uplink::Uplink;
use sluicenet_node::credits::CreditConfig;
use sluicenet_node::uplink::Link;
use sluicenet_node::vtep::{Vtep, VtepConfig};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::controller::{Controller, ControllerConfig};
use sluicenet_proto::overlay::seal::Key;
use sluicenet_proto::overlay::tunnel::TunnelConfig;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zbridge::ChannelConfig;
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::{self, EtherType, HEADER_LEN, MacAddress};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::{zbridge, zcredit};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The class that needs credits and is numbered.
const CLASS: u8 = 3;
const LOSSLESS: PrioritySet = PrioritySet(1 << CLASS);
/// Tenants: the domain on a server, and the network. No flipped bit turns one network's number into the other's.
const TENANTS: [(u16, u32); 2] = [(10, 700), (11, 0x5A_5A5A)];
const MACHINES: usize = 4;
/// Frames that a machine may wait with, and that one may have in its port.
const TX_QUEUE: u32 = 64;
const SHOWN: u32 = 8;
const FOREVER: Duration = Duration::from_ms(3_600_000);
/// Faults end after so many steps, and the run must end after so many more.
const STEPS: u32 = 1_500;
const STEPS_MAX: u32 = 200_000;

/// Frames from and to a server.
#[derive(Clone, Debug, Default)]
struct Cable(Arc<Mutex<[VecDeque<Vec<u8>>; 2]>>);

impl Cable {
    /// Frames to the server, and frames from the server.
    fn ends(&self) -> MutexGuard<'_, [VecDeque<Vec<u8>>; 2]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for Cable {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let frames = std::mem::take(&mut self.ends()[0]);
        frames.iter().for_each(|frame| take(frame));
        Ok(frames.len())
    }
    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.ends()[1].push_back(frame.to_vec());
        Ok(true)
    }
    fn wakers<'a>(&'a self, _for_room: bool, _fds: &mut Vec<PollFd<'a>>) {}
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

/// A machine: its tenant, and its number there.
type Machine = (usize, usize);

struct Server {
    port: Uplink<Cable>,
    cable: Cable,
    mailbox: Mailbox,
    /// Frames that the switch has for its machines.
    received: BTreeMap<Machine, VecDeque<Descriptor>>,
}

impl Server {
    fn own(&self, name: &str) -> u64 {
        let mut value = 0;
        self.port.counters(&mut |n, v| value += if n == name { v } else { 0 });
        value
    }
}

/// The protocol stack that a seed chooses.
struct Stack {
    seed: u64,
    rx_queue: u32,
    credits: bool,
    zbridge: Option<ChannelConfig>,
}

fn address(server: usize) -> Ipv4Addr {
    Ipv4Addr::new(172, 16, 0, server as u8 + 1)
}
fn mac(machine: usize) -> MacAddress {
    MacAddress::local(machine as u32 + 1)
}
fn ip(machine: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, machine as u8 + 1)
}
/// On which server a machine lives.
fn home(machine: usize) -> usize {
    machine / 2
}

impl Stack {
    fn server(&self, n: usize, life: u64, cable: Cable, rng: &mut Rng) -> Result<Server, Broken> {
        let hub = |n| MacAddress::local(100 + n as u32);
        let link = Link::new(hub(n), Rate::gbps(1), 1_600, Duration::from_us(200), LOSSLESS, 150_000)
            .map_err(|e| format!("a link: {e:?}"))?;
        let reserved = if self.zbridge.is_some() { zbridge::GROWTH as u16 } else { 0 };
        let tunnel = TunnelConfig { server: address(n), mac: hub(n), mtu: 1_500, reserved };
        let key = Key::new(&[n as u8 + 1; 32]);
        let words = Rng::from_words(&[self.seed, n as u64, life, 1]);
        let mut vtep = Vtep::new(VtepConfig::new(tunnel), key, words, (life + 1) << 32);
        for (domain, vni) in TENANTS {
            vtep.bind(domain, vni).map_err(|e| format!("a network: {e}"))?;
        }
        vtep.admit(address(1 - n), hub(1 - n));
        let mailbox = Mailbox::default();
        let link = Link { detection_time: FOREVER, ..link };
        let mut port = Uplink::overlay(cable.clone(), link, vtep, ControllerLink::within(mailbox.clone()));
        if self.credits {
            // The number wraps. A restarted server's clock may have been set back, but not to the very number that it
            // had.
            let (wraps, any) = (u32::MAX - rng.below(100) as u32, rng.next_u64() as u32);
            let first_channel = if rng.below(2) == 0 && life == 0 { wraps } else { any };
            let usual = CreditConfig::new(self.rx_queue, TX_QUEUE, 4.min(self.rx_queue), LOSSLESS);
            let mut config = CreditConfig { first_channel, ..usual };
            if let Some(z) = self.zbridge {
                // A retransmitted frame needs its credit until it arrives.
                let longest = z.timeout.saturating_mul(1 << 9);
                config.reception.reclaim_after = config.reception.reclaim_after.max(longest);
                config.reception.deadline = config.reception.deadline.max(longest);
            }
            port.set_credits(config, LOSSLESS, SHOWN, BTreeMap::new());
        }
        if let Some(zbridge) = self.zbridge {
            port.set_zbridge(zbridge, LOSSLESS, Rng::from_words(&[self.seed, n as u64, life, 2]));
        }
        Ok(Server { port, cable, mailbox, received: BTreeMap::new() })
    }
}

/// A datagram of which every byte is known.
fn frame(from: usize, to: usize, number: u64) -> Vec<u8> {
    let len = 64 + (number as usize).wrapping_mul(37) % 700;
    let mut frame: Vec<u8> = (0..len).map(|at| number.wrapping_add(at as u64) as u8).collect();
    ethernet::Repr { destination: mac(to), source: mac(from), ethertype: EtherType::IPV4 }.emit(&mut frame);
    let header = ipv4::Repr {
        source: ip(from),
        destination: ip(to),
        protocol: Protocol(99),
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        payload_len: (len - NUMBER_AT) as u16,
    };
    header.emit(&mut frame[HEADER_LEN..]);
    frame[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_le_bytes());
    frame
}
const NUMBER_AT: usize = HEADER_LEN + 20;

struct World {
    now: Instant,
    rng: Rng,
    stack: Stack,
    servers: Vec<Server>,
    controller: Controller,
    /// Frames for each server.
    wires: [Wire<Vec<u8>>; 2],
    faults: Faults,
    /// Frames of which bits are flipped, in a thousand.
    flipped: u64,
    streams: BTreeMap<(usize, usize, usize), Stream>,
    /// Frames may be missing at any time: nothing sends them again.
    gaps: bool,
    /// Frames may be missing because a server started again.
    restarted: bool,
    /// Messages that only servers may send, forged by machines and accepted into a queue.
    forged: u64,
    stuck: Option<Machine>,
}

pub(super) fn run(seed: u64, tally: &mut Tally) -> Result<(), Broken> {
    let mut rng = Rng::from_words(&[seed, 0x0BB]);
    let (credits, reliable) = [(true, true), (true, true), (false, true), (true, false)][rng.below(4) as usize];
    let period = 1 + rng.below(32) as u32;
    let channel = ChannelConfig {
        buffer: period * (2 + rng.below(8) as u32),
        period,
        timeout: Duration::from_ms(2),
        single_path: true,
    };
    let faults = Faults::any(&mut rng);
    let zbridge = reliable.then_some(ChannelConfig { single_path: faults.overtaken == 0, ..channel });
    let stack = Stack { seed, rx_queue: 4 + rng.below(60) as u32, credits, zbridge };
    let mut world = World::new(stack, rng, faults)?;
    let rng = &mut world.rng;
    world.flipped = if reliable { [0, 10, 100][rng.below(3) as usize] } else { 0 };
    // Without credits every machine must take frames: otherwise the link stands still for all.
    world.stuck = (credits && rng.below(3) == 0).then(|| (rng.below(2) as usize, rng.below(4) as usize));
    let done = world.meet(tally).and_then(|()| world.trouble(tally)).and_then(|()| world.settle(tally));
    for stream in world.streams.values() {
        tally.sent += stream.sent;
        tally.received += stream.received;
    }
    done?;
    world.account()
}

impl World {
    /// Two servers and their controller, and nothing wrong but the wires.
    fn new(stack: Stack, mut rng: Rng, faults: Faults) -> Result<World, Broken> {
        let mut controller = Controller::new(ControllerConfig::default(), 1);
        (0..2).for_each(|n| controller.admit(address(n), Key::new(&[n as u8 + 1; 32])));
        let servers = (0..2).map(|n| stack.server(n, 0, Cable::default(), &mut rng)).collect::<Result<_, _>>()?;
        let mut world = World {
            now: Instant::ZERO,
            gaps: stack.zbridge.is_none() && faults.lost > 0,
            rng,
            stack,
            servers,
            controller,
            wires: [Wire::new(), Wire::new()],
            faults,
            flipped: 0,
            streams: BTreeMap::new(),
            restarted: false,
            forged: 0,
            stuck: None,
        };
        (0..2).for_each(|n| world.announce(n));
        Ok(world)
    }

    fn announce(&mut self, n: usize) {
        for machine in (0..MACHINES).filter(|&m| home(m) == n) {
            for (domain, _) in TENANTS {
                self.servers[n].port.announce(self.now, domain, mac(machine).0, ip(machine), true);
            }
        }
    }

    /// All machines know of each other before faults begin: frames to unknown receivers are dropped by name.
    fn meet(&mut self, tally: &mut Tally) -> Result<(), Broken> {
        let (faults, flipped) = (std::mem::take(&mut self.faults), std::mem::take(&mut self.flipped));
        for _ in 0..100 {
            self.round(tally)?;
            self.now += Duration::from_us(50);
        }
        (self.faults, self.flipped) = (faults, flipped);
        Ok(())
    }

    /// Checks that all expected frames have arrived, and that missing ones are accounted for.
    fn account(&self) -> Result<(), Broken> {
        let all_dropped = || self.servers.iter().flat_map(|server| dropped(&server.port)).collect::<Vec<_>>();
        for (&(tenant, from, to), stream) in &self.streams {
            if stream.next < stream.sent && !self.gaps && stream.sent > stream.excused {
                let (next, of) = (stream.next, stream.sent);
                return Err(format!(
                    "tenant {tenant}: {next} to {of} from {from} to {to} did not come: {:?}",
                    all_dropped()
                ));
            }
        }
        let all = |name| self.servers.iter().map(|server| server.own(name)).sum::<u64>();
        let given_up = all("zbridge_given_up");
        if given_up > 0 && !self.restarted {
            return Err(format!("{given_up} frames to servers that did not start again were given up"));
        }
        // A server that starts again counts anew.
        let refused = all("forged_control");
        if refused > self.forged || refused < self.forged && !self.restarted {
            return Err(format!("{refused} of {} forged messages were refused", self.forged));
        }
        Ok(())
    }

    fn trouble(&mut self, tally: &mut Tally) -> Result<(), Broken> {
        let restarts = self.rng.below(2) == 0;
        let forges = self.rng.below(2) == 0;
        for _ in 0..STEPS {
            for _ in 0..4 {
                self.send();
            }
            if forges && self.rng.below(8) == 0 {
                self.forge(tally);
            }
            if restarts && self.rng.below(800) == 0 {
                self.restart(tally)?;
            }
            self.round(tally)?;
            let pause = if self.rng.below(300) == 0 { 20_000 } else { self.rng.below(100) };
            self.now += Duration::from_us(1 + pause);
        }
        Ok(())
    }

    /// Ends all faults. Every frame that can still arrive has to arrive, and then the frames for the stuck machine.
    fn settle(&mut self, tally: &mut Tally) -> Result<(), Broken> {
        (self.faults, self.flipped) = (Faults::default(), 0);
        for step in 0.. {
            self.round(tally)?;
            let waits = |world: &World| {
                let incomplete = |(&(tenant, _, to), stream): (&(usize, usize, usize), &Stream)| {
                    Some((tenant, to)) != world.stuck && stream.next < stream.sent
                };
                world.streams.iter().any(incomplete)
            };
            let may_miss = self.gaps || self.restarted;
            if self.stuck.is_some() && (may_miss && step > 2_000 || !may_miss && !waits(self)) {
                self.stuck = None;
            }
            let is_idle =
                self.servers.iter().all(|s| s.port.held() == 0 && s.received.values().all(VecDeque::is_empty));
            if self.stuck.is_none() && is_idle && self.wires.iter().all(|w| w.next().is_none()) {
                return Ok(());
            }
            if step > STEPS_MAX {
                let held: Vec<u32> = self.servers.iter().map(|s| s.port.held()).collect();
                let missing: Vec<_> = self.streams.iter().filter(|(_, s)| s.next < s.sent).collect();
                let own: Vec<_> = self.servers.iter().map(Server::counted).collect();
                return Err(format!("no end: {held:?} held, missing {missing:?}, {:?} stuck; {own:?}", self.stuck));
            }
            let timers = self.servers.iter().filter_map(|s| s.port.poll_timeout());
            let next = timers.chain(self.wires.iter().filter_map(Wire::next)).min();
            let soon = self.now + Duration::from_us(20);
            let late = self.now + Duration::from_ms(100);
            self.now = next.unwrap_or(late).clamp(soon, late);
        }
        Ok(())
    }

    /// A machine has a frame for one on the other server, if there is room.
    fn send(&mut self) {
        let (tenant, from) = (self.rng.below(2) as usize, self.rng.below(MACHINES as u64) as usize);
        let to = 2 * (1 - home(from)) + self.rng.below(2) as usize;
        let stream = self.streams.entry((tenant, from, to)).or_default();
        let bytes = frame(from, to, stream.sent);
        if self.servers[home(from)].offer(tenant, &bytes) {
            stream.sent += 1;
        }
    }

    /// A machine speaks as a hypervisor does, of itself or in another's name.
    fn forge(&mut self, tally: &mut Tally) {
        let rng = &mut self.rng;
        let (tenant, from, to) = (rng.below(2) as usize, rng.below(4) as usize, rng.below(4) as usize);
        let mut word = || [rng.next_u64() as u32, u32::MAX, rng.below(100) as u32][rng.below(3) as usize];
        let [channel, a, b, c, d] = std::array::from_fn(|_| word());
        let (destination, source) = (mac(to), mac(from));
        let bytes = if a % 2 == 0 {
            let message = match b % 4 {
                0 => zcredit::Message::Request { wanted: a, spent: b, granted: c, returned: d },
                1 => zcredit::Message::Grant { granted: a },
                2 => zcredit::Message::Reset { last: a },
                _ => zcredit::Message::Close { spent: a, returned: b },
            };
            zcredit::Repr { destination, source, channel, message }.emit().to_vec()
        } else {
            use zbridge::Kind::{Ack, Ask, Close, Keep, Reset, Syn};
            let kind = [Syn, Reset, Ask, Ack, Close, Keep][b as usize % 6];
            let header = zbridge::Header { kind, connection: channel, sequence: c, acknowledgement: d };
            let repr = zbridge::Repr { destination, source, header };
            let mut bytes = vec![0; repr.len(0)];
            repr.emit(&mut bytes);
            bytes.resize(60, 0);
            bytes
        };
        if self.servers[home(from)].offer(tenant, &bytes) {
            self.forged += 1;
            tally.count("forged");
        }
    }

    fn restart(&mut self, tally: &mut Tally) -> Result<(), Broken> {
        let n = self.rng.below(2) as usize;
        self.restart_one(n, tally)
    }

    fn restart_one(&mut self, n: usize, tally: &mut Tally) -> Result<(), Broken> {
        tally.count("restarts");
        self.restarted = true;
        // Frames in the server are lost with it. So are frames that others have sent to the server, or send until they
        // hear of the restart: at most as many as they have credits and buffers for.
        let under_way = self.stack.rx_queue + self.stack.zbridge.map_or(0, |z| z.buffer);
        for (tenant, from) in (0..TENANTS.len()).flat_map(|t| (0..MACHINES).map(move |m| (t, m))) {
            for to in (0..MACHINES).filter(|&to| home(to) != home(from)) {
                let stream = self.streams.entry((tenant, from, to)).or_default();
                stream.excused = stream.sent + u64::from(under_way);
            }
        }
        let life = tally.faults["restarts"];
        let cable = self.servers[n].cable.clone();
        cable.ends().iter_mut().for_each(VecDeque::clear);
        self.servers[n] = self.stack.server(n, life, cable, &mut self.rng)?;
        self.announce(n);
        Ok(())
    }

    /// Everything that is there moves once.
    fn round(&mut self, tally: &mut Tally) -> Result<(), Broken> {
        let World { now, rng, servers, wires, streams, controller, .. } = self;
        let (now, gaps) = (*now, self.gaps);
        controller.handle_timeout(now);
        for (n, server) in servers.iter_mut().enumerate() {
            while let Some(frame) = wires[n].pop_arrived(now) {
                server.cable.ends()[0].push_back(frame);
            }
            while let Some(datagram) = server.mailbox.take() {
                if let Some(answer) = controller.handle(now, address(n), &datagram) {
                    server.mailbox.put(answer);
                }
            }
        }
        while let Some((to, datagram)) = controller.poll_transmit(now) {
            servers[usize::from(to.octets()[3]) - 1].mailbox.put(datagram);
        }
        for (n, server) in servers.iter_mut().enumerate() {
            server.port.on_round(now).map_err(|_| "a port is broken")?;
            server.switch()?;
            // Machines take their frames, now and then.
            for (&machine, frames) in &mut server.received {
                if Some(machine) == self.stuck || rng.below(4) == 0 {
                    continue;
                }
                let Some(Descriptor { buffer, len }) = frames.pop_front() else { continue };
                let mut bytes = vec![0; len as usize];
                let class = server.port.priority(buffer);
                server.port.read(buffer, &mut bytes);
                server.port.give_back(buffer);
                if class != Some(CLASS) {
                    // The bits that were flipped made it a frame of a class in which nothing is promised.
                    continue;
                }
                let from = bytes.get(11).map_or(MACHINES, |&last| usize::from(last).wrapping_sub(1));
                let number = bytes.get(NUMBER_AT..NUMBER_AT + 8).and_then(|b| b.try_into().ok());
                let number = number.map_or(u64::MAX, u64::from_le_bytes);
                let is_known = from < MACHINES && streams.contains_key(&(machine.0, from, machine.1));
                if !is_known || bytes != frame(from, machine.1, number) {
                    return Err(format!("a frame for {machine:?} is not as it was sent"));
                }
                let stream = streams.entry((machine.0, from, machine.1)).or_default();
                let came = stream.on_arrival(number, gaps);
                let dropped = || dropped(&server.port);
                came.map_err(|e| format!("from {from} to {machine:?}: {e}; {stream:?}; dropped {:?}", dropped()))?;
            }
            server.port.publish().map_err(|_| "a port is broken")?;
            let sent = std::mem::take(&mut server.cable.ends()[1]);
            for mut frame in sent {
                let is_control = sluicenet_node::uplink::Uplink::<u32, Vec<u8>>::is_control(&frame);
                if self.flipped > 0 && rng.below(1_000) < self.flipped {
                    tally.count("bits flipped");
                    // Pauses have no checksum but the frame's own, which the device checks.
                    if is_control {
                        continue;
                    }
                    for _ in 0..1 + rng.below(3) {
                        let bit = rng.below(frame.len() as u64 * 8) as usize;
                        frame[bit / 8] ^= 1 << (bit % 8);
                    }
                }
                // Without channels, frames are lost and no more; messages are, as everything is.
                let is_message = frame.windows(4).any(|bytes| bytes == b"slzc");
                let faults = match self.stack.zbridge {
                    None if !is_message => Faults { lost: self.faults.lost, ..Faults::default() },
                    _ => self.faults,
                };
                wires[1 - n].send(now, frame, faults, rng, tally);
            }
            server.check(&self.stack)?;
        }
        Ok(())
    }
}

/// Frames by why an uplink dropped them.
fn dropped(port: &Uplink<Cable>) -> Vec<(&'static str, u64)> {
    let inside = port.inside();
    let of = |r: DropReason| (r.name(), inside.refused.frames(r) + inside.lost.frames(r));
    DropReason::ALL.into_iter().map(of).filter(|d| d.1 > 0).collect()
}

impl Server {
    /// All counters of the server's uplink.
    fn counted(&self) -> Vec<(&'static str, u64)> {
        let mut counted = Vec::new();
        self.port.counters(&mut |name, value| counted.extend((value > 0).then_some((name, value))));
        counted
    }

    /// Whether there was room for a frame of a machine.
    fn offer(&mut self, tenant: usize, bytes: &[u8]) -> bool {
        let (domain, priority) = (TENANTS[tenant].0, CLASS);
        let candidate = Candidate { from: tenant, domain, priority, len: bytes.len() as u32 };
        let read = |into: &mut [u8]| {
            let len = into.len().min(bytes.len());
            into[..len].copy_from_slice(&bytes[..len]);
        };
        let admits = self.port.takes().contains(priority) && matches!(self.port.admits(candidate, &read), Ok(true));
        if admits {
            let offload = Offload::default();
            self.port.deliver(&Delivery { bytes, offload, domain, priority, from: tenant });
        }
        admits
    }

    /// Takes frames from the link as the switch does.
    fn switch(&mut self) -> Result<(), Broken> {
        while let Some(next) = self.port.next_frame().map_err(|_| "a port is broken")? {
            let domain = self.port.domain(next.buffer);
            let mut bytes = [0; HEADER_LEN];
            self.port.read(next.buffer, &mut bytes);
            let tenant = TENANTS.iter().position(|t| Some(t.0) == domain).ok_or("a frame of no tenant")?;
            let machine = (tenant, usize::from(bytes[5]).wrapping_sub(1));
            let frames = self.received.entry(machine).or_default();
            if frames.len() < 16 {
                self.port.accept();
                frames.push_back(next);
            } else if !self.port.defer() {
                break;
            }
        }
        Ok(())
    }

    fn check(&self, stack: &Stack) -> Result<(), Broken> {
        if !self.port.is_sound() {
            return Err("credits that are nobody's".into());
        }
        let longest = self.own("credit_queued_max");
        if longest > u64::from(stack.rx_queue) {
            return Err(format!("a receive queue of {longest} frames of {}", stack.rx_queue));
        }
        // Four machines here send to two each; their unsent frames come back where a connection ended.
        let unsent = self.own("credit_unsent");
        let restored = stack.zbridge.map_or(0, |z| stack.rx_queue + z.buffer);
        if unsent > 4 * u64::from(TX_QUEUE + 2 * restored) {
            return Err(format!("{unsent} frames wait for credits"));
        }
        let copies = self.own("zbridge_copies");
        if copies > stack.zbridge.map_or(0, |z| 8 * u64::from(z.buffer)) {
            return Err(format!("{copies} frames are not acknowledged"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two servers that have met, without faults, whose machines may be sent eight frames at a time.
    fn quiet(seed: u64, tally: &mut Tally) -> World {
        let channel = ChannelConfig { buffer: 32, period: 8, timeout: Duration::from_ms(2), single_path: true };
        let stack = Stack { seed, rx_queue: 8, credits: true, zbridge: Some(channel) };
        let mut world = World::new(stack, Rng::from_words(&[seed]), Faults::default()).unwrap();
        world.meet(tally).unwrap();
        world
    }

    impl World {
        /// Runs so many turns of 50 us, in which machine 0 sends to machine 2 as much as it can. Returns the numbers
        /// that came first and last.
        fn flow(&mut self, tally: &mut Tally, turns: u32) -> Stream {
            for _ in 0..turns {
                let stream = self.streams.entry((0, 0, 2)).or_default();
                let bytes = frame(0, 2, stream.sent);
                stream.sent += u64::from(self.servers[0].offer(0, &bytes));
                self.round(tally).unwrap();
                self.now += Duration::from_us(50);
            }
            self.streams[&(0, 0, 2)]
        }
    }

    /// All credits for a machine are promised to the server that starts again. The time that a frame may be under way,
    /// after which credits come back by themselves, is more than a second here, and 13.8 s as servers are set up.
    #[test]
    fn a_server_that_starts_again_is_granted_credits_within_two_timeouts() {
        for seed in 0..50 {
            let mut tally = Tally::default();
            let mut world = quiet(seed, &mut tally);
            world.flow(&mut tally, 100 + seed as u32);
            world.faults = Faults { lost: 1_000, ..Faults::default() };
            world.flow(&mut tally, 20);
            world.faults = Faults::default();
            let before = world.streams[&(0, 0, 2)];
            assert!(before.sent - before.next >= 8, "all credits were spent in vain: {before:?}");
            let start = world.now;
            world.restart_one(0, &mut tally).unwrap();
            let sent = world.flow(&mut tally, 0).sent;
            while world.flow(&mut tally, 1).next <= sent + 8 {
                let waited = world.now.since(start);
                assert!(waited < Duration::from_ms(4), "seed {seed}: {waited:?}");
            }
        }
    }
}

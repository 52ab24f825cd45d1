//! Two servers joined by a link with priority flow control: what their tests share.
mod cable;
mod credits;
mod learned;
mod notified;
mod overlay;
mod policy;
mod tcp_tunnels;
mod trunk;
mod zbridge;

use crate::from_ip;
use rustix::event::PollFd;
use sluicenet_dataplane::controller::{ControllerLink, Daemon, first_request, unguessable};
use sluicenet_dataplane::engine::{Access, Engine};
use sluicenet_dataplane::fabric::{Device, Local};
use sluicenet_dataplane::shm::Client;
use sluicenet_dataplane::uplink::{TcpTunnelConfig, Uplink, UplinkKind};
use sluicenet_node::credits::CreditConfig;
use sluicenet_node::uplink::{Link, Queues};
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_node::vtep::{Vtep, VtepConfig};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::controller::ControllerConfig;
use sluicenet_proto::overlay::seal::Key;
use sluicenet_proto::overlay::tunnel::TunnelConfig;
use sluicenet_proto::time::Duration;
use sluicenet_proto::transport::zbridge::ChannelConfig;
use sluicenet_proto::units::Rate;
use sluicenet_wire::arp::{self, Operation};
use sluicenet_wire::controller::UDP_PORT;
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::icmp::TooBig;
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::zbridge::GROWTH;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const UPLINK: usize = 2;
const DOMAIN: u16 = 10;
const VNI: u32 = 700;
/// The class of each station: the slow ones share a class, the fast ones another.
const CLASSES: [u8; 5] = [0, 3, 1, 3, 1];
const FOREVER: Duration = Duration::from_ms(3_600_000);

fn mac(n: usize) -> MacAddress {
    MacAddress::local(n as u32)
}
fn ip(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, n as u8)
}

/// A datagram of `len` bytes that carries a number.
fn frame(from: usize, to: usize, number: u64, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len.max(60)];
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
        payload_len: (frame.len() - 34) as u16,
    };
    header.emit(&mut frame[14..]);
    frame[34..42].copy_from_slice(&number.to_le_bytes());
    frame
}

fn request(from: usize, target: usize) -> Vec<u8> {
    let mut frame = vec![0; 60];
    let all = MacAddress::BROADCAST;
    ethernet::Repr { destination: all, source: mac(from), ethertype: EtherType::ARP }.emit(&mut frame);
    let message = arp::Repr {
        operation: Operation::Request,
        sender_mac: mac(from),
        sender_ip: ip(from),
        target_mac: MacAddress::default(),
        target_ip: ip(target),
    };
    message.emit(&mut frame[14..]);
    frame
}

fn link(n: usize) -> Link {
    let lossless = PrioritySet(0b1010);
    let response = Duration::from_us(200);
    let link = Link::new(mac(100 + n), Rate::gbps(1), 1518, response, lossless, 150_000).unwrap();
    Link { detection_time: FOREVER, ..link }
}

/// The addresses of a test of its own on loopback: the controller is .3.
fn network() -> impl Fn(u8) -> Ipv4Addr {
    static TESTS: AtomicU8 = AtomicU8::new(0);
    let test = TESTS.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id() as u16;
    let [a, b] = process.to_be_bytes();
    // The last byte has room for sixty tests.
    let (round, place) = (test / 60, test % 60);
    move |n| Ipv4Addr::new(127, 64 + (a & 63) + 64 * (round % 3), b, n + 4 * place)
}

struct Server {
    engine: Engine,
    /// Tenants at ports 0 and 1: stations 2 n - 1 and 2 n of server `n`.
    clients: Vec<Client>,
    /// Written to wake the switch.
    kicks: Vec<OwnedFd>,
}

impl Server {
    fn new(n: usize, access: impl Fn(usize) -> Access) -> Server {
        Server::with(n, access, PrioritySet::ALL)
    }

    fn with(n: usize, access: impl Fn(usize) -> Access, lossless: PrioritySet) -> Server {
        let config =
            ValeConfig { uplink: Some(UPLINK), watchdog: WatchdogConfig::OFF, lossless, ..ValeConfig::default() };
        let mut engine = Engine::new(3, config);
        let (clients, kicks) = (0..2)
            .map(|k| {
                let shared = engine.plug_shm(k, &format!("tenant-{k}"), 64).unwrap();
                let station = 2 * n - 1 + k;
                assert!(engine.set_access(k, access(station)));
                assert!(engine.give(mac(station).0, DOMAIN, k));
                (Client::open(shared.memory).unwrap(), shared.kick)
            })
            .unzip();
        Server { engine, clients, kicks }
    }

    fn own(&self, name: &str) -> u64 {
        let report = self.engine.report(UPLINK).unwrap();
        report.own.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
    }

    fn send(&mut self, k: usize, frame: &[u8]) -> bool {
        let sent = self.clients[k].send(frame).unwrap();
        if self.clients[k].publish() {
            rustix::io::write(&self.kicks[k], &1u64.to_ne_bytes()).unwrap();
        }
        sent
    }

    fn receive(&mut self, k: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 2048];
        let len = self.clients[k].receive(&mut bytes).unwrap()?;
        let _ = self.clients[k].publish();
        bytes.truncate(len);
        Some(bytes)
    }

    /// The number in the next frame from another station of this project; requests for other stations are skipped.
    fn number(&mut self, k: usize) -> Option<u64> {
        let frame = std::iter::from_fn(|| self.receive(k)).find(|frame| !is_request(frame))?;
        Some(u64::from_le_bytes(frame[34..42].try_into().unwrap()))
    }

    /// Takes all that is there for a station, which has had as many as `seen`.
    fn take(&mut self, k: usize, seen: &mut u64) {
        while let Some(number) = self.number(k) {
            assert_eq!(number, *seen, "in order, each once");
            *seen += 1;
        }
    }
}

/// Whether a frame is an ARP request for any station, which reaches all stations of the network.
fn is_request(frame: &[u8]) -> bool {
    frame[..6] == [0xFF; 6] && frame[12..14] == EtherType::ARP.0.to_be_bytes()
}

fn access(station: usize) -> Access {
    Access { domain: Some(DOMAIN), priority: Some(CLASSES[station]), guard: Some(from_ip(ip(station).octets())) }
}

/// A server whose link has no overlay.
fn trunk(n: usize, device: impl Device + Send + 'static) -> Server {
    let mut server = Server::new(n, access);
    server.engine.plug(UPLINK, "uplink", Box::new(Uplink::trunk(device, link(n))), Access::default()).unwrap();
    server
}

/// A server of an overlay whose controller is at .3.
fn overlay(n: usize, device: impl Device + Send + 'static, address: &impl Fn(u8) -> Ipv4Addr) -> Server {
    overlay_with(n, device, address, access, Stack::default())
}

/// What is between its stations and the tunnel.
#[derive(Clone, Copy, Debug, Default)]
struct Stack {
    credits: Option<CreditConfig>,
    zbridge: Option<ChannelConfig>,
    tcp_tunnels: bool,
    /// Classes that hold frames back in the switch, and go through the stream of a tunnel; all where absent.
    lossless: Option<PrioritySet>,
    weights: &'static [((u16, MacAddress), u32)],
}

/// One with a stack, and the access of its stations that they say.
fn overlay_with(
    n: usize,
    device: impl Device + Send + 'static,
    address: &impl Fn(u8) -> Ipv4Addr,
    access: impl Fn(usize) -> Access,
    stack: Stack,
) -> Server {
    overlay_of(n, device, address, access, stack, Queues::default())
}

/// One with these queues for its link.
fn overlay_of<K: UplinkKind + 'static>(
    n: usize,
    device: impl Device + Send + 'static,
    address: &impl Fn(u8) -> Ipv4Addr,
    access: impl Fn(usize) -> Access,
    stack: Stack,
    kind: K,
) -> Server {
    let lossless = stack.lossless.unwrap_or(PrioritySet::ALL);
    let mut server = Server::with(n, access, lossless);
    let here = address(n as u8);
    let tunnel = TunnelConfig {
        server: here,
        mac: mac(100 + n),
        mtu: 1500,
        reserved: if stack.zbridge.is_some() { GROWTH as u16 } else { 0 },
    };
    let mut vtep =
        Vtep::new(VtepConfig::new(tunnel), Key::new(&[n as u8; 32]), unguessable().unwrap(), first_request());
    vtep.bind(DOMAIN, VNI).unwrap();
    vtep.admit(address(3 - n as u8), mac(103 - n));
    let to = ControllerLink::open(SocketAddrV4::new(here, UDP_PORT), SocketAddrV4::new(address(3), UDP_PORT)).unwrap();
    let mut port = Uplink::overlay_of(device, link(n), vtep, to, kind);
    if let Some(credits) = stack.credits {
        port.set_credits(credits, PrioritySet(0b1000), 16, stack.weights.iter().copied().collect());
    }
    if let Some(zbridge) = stack.zbridge {
        port.set_zbridge(zbridge, PrioritySet(0b1000), unguessable().unwrap());
    }
    if stack.tcp_tunnels {
        let config = TcpTunnelConfig { classes: lossless, ..tcp_tunnels::config() };
        port.set_tcp_tunnels(config, unguessable().unwrap());
    }
    server.engine.plug(UPLINK, "uplink", Box::new(port), Access::default()).unwrap();
    for station in [2 * n - 1, 2 * n] {
        server.engine.announce(DOMAIN, mac(station).0, ip(station), true);
    }
    server
}

struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Daemon>>,
}

/// The controller of a test, on a thread of its own.
fn controller(address: &impl Fn(u8) -> Ipv4Addr) -> Running {
    Running::run(daemon(address))
}

/// The same, before it runs.
fn daemon(address: &impl Fn(u8) -> Ipv4Addr) -> Daemon {
    let at = SocketAddrV4::new(address(3), UDP_PORT);
    let mut daemon = Daemon::bind(at, UDP_PORT, ControllerConfig::default()).unwrap();
    (1..=2).for_each(|n| daemon.admit(address(n), Key::new(&[n; 32])));
    daemon
}

impl Running {
    fn run(mut daemon: Daemon) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            daemon.run(&stopped).unwrap();
            daemon
        });
        Running { stop, thread: Some(thread) }
    }
    /// It says nothing until it runs again, and forgets nothing.
    fn pause(&mut self) -> Option<Daemon> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().unwrap())
    }
    fn stop(&mut self) -> usize {
        self.pause().map_or(0, |daemon| daemon.stations())
    }
}
impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A device that outlives its switch.
struct Kept(Arc<Mutex<Local>>);

impl Device for Kept {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        self.0.lock().unwrap().receive(take)
    }
    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.0.lock().unwrap().send(frame)
    }
    fn wakers<'a>(&'a self, _for_room: bool, _fds: &mut Vec<PollFd<'a>>) {}
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

/// The two ends of a link, for servers that start again.
fn kept() -> [Arc<Mutex<Local>>; 2] {
    let (a, b) = Local::pair().unwrap();
    [a, b].map(|device| Arc::new(Mutex::new(device)))
}

/// Server `n` starts again: it forgets all that was in it.
fn start_again(servers: [Server; 2], n: usize, new: impl FnOnce(usize) -> Server) -> [Server; 2] {
    let [a, b] = servers;
    if n == 1 {
        drop(a);
        [new(1), b]
    } else {
        drop(b);
        [a, new(2)]
    }
}

/// Turns both until `done`, which must come.
fn until(servers: &mut [Server; 2], mut done: impl FnMut(&mut [Server; 2]) -> bool) {
    let start = Instant::now();
    while !done(servers) {
        for server in servers.iter_mut() {
            server.engine.round();
        }
        if start.elapsed().as_secs() >= 60 {
            for server in servers.iter() {
                let own = server.engine.report(UPLINK).unwrap().own;
                println!("{:?}", own.into_iter().filter(|c| c.1 > 0).collect::<Vec<_>>());
            }
            panic!("it did not come");
        }
    }
}

/// A station of server 2 has so many frames, each once and in order.
fn until_all(servers: &mut [Server; 2], k: usize, count: u64) {
    let mut seen = 0;
    until(servers, |[_, b]| {
        b.take(k, &mut seen);
        seen == count
    });
}

/// Sends so many frames of all lengths to each station of server 2, which has all of them.
fn send_to_both(servers: &mut [Server; 2], count: u64) {
    let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
    until(servers, |[a, b]| {
        for (k, to) in [(0, 3), (1, 4)] {
            let frame = frame(k + 1, to, sent[k], 60 + sent[k] as usize % 1_300);
            sent[k] += u64::from(sent[k] < count && a.send(k, &frame));
            b.take(k, &mut seen[k]);
        }
        seen == [count; 2]
    });
}

/// What was sent and not seen yet arrives.
fn take_the_rest(servers: &mut [Server; 2], sent: [u64; 2], mut seen: [u64; 2]) {
    until(servers, |[_, b]| {
        seen.iter_mut().enumerate().for_each(|(k, seen)| b.take(k, seen));
        seen == sent
    });
}

/// Each of two servers starts again while frames are on their way: what it had is gone, and what comes after that arrives. Whether the other
/// end `knows` is asked until it does: it may read what it had before first.
fn start_each_again(new: impl Fn(usize) -> Server, knows: impl Fn(&Server) -> bool) {
    let mut servers = [new(1), new(2)];
    ask_first(&mut servers);
    let mut number = 0;
    for again in [2, 1] {
        for _ in 0..1_000 {
            let [a, b] = &mut servers;
            number += u64::from(a.send(0, &frame(1, 3, number, 100)));
            a.engine.round();
            b.engine.round();
        }
        servers = start_again(servers, again, &new);
        let (mut seen, mut last) = (0, None);
        until(&mut servers, |[a, b]| {
            number += u64::from(a.send(0, &frame(1, 3, number, 100)));
            while let Some(number) = b.number(0) {
                assert!(last < Some(number), "in order, each once");
                (seen, last) = (seen + 1, Some(number));
            }
            seen > 1_000 && knows([b, a][again - 1])
        });
        servers.iter().for_each(|server| _ = server.engine.ledger());
    }
}

/// The first station is told that a frame did not fit, and what does.
fn is_told(servers: &mut [Server; 2], mtu: u16) {
    until(servers, |[a, _]| {
        // An answer to a repeated request may still be there.
        let Some(told) = a.receive(0).filter(|f| f[12..14] == EtherType::IPV4.0.to_be_bytes()) else { return false };
        let (_, payload) = ipv4::Repr::parse(&told[14..]).unwrap();
        assert_eq!(TooBig::parse(payload).unwrap().0.mtu, mtu);
        true
    });
}

/// Overload from server 1 to a slow station and to a fast one of another class at server 2: nothing is lost, and the fast one
/// never waits for the slow one.
fn overload(servers: &mut [Server; 2]) {
    let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
    let mut held_back = 0;
    let unresolved = [0, 1].map(|n| servers[n].own("unresolved"));
    // Frames of the fast station that arrived in rounds in which the slow one's sender was held back.
    let mut beside = 0;
    // A slow station that takes one frame while the fast one could take 20. It goes on until both events were seen often enough:
    // the machine decides how soon.
    let start = Instant::now();
    for turn in 0usize.. {
        let stopped = |servers: &[Server; 2]| servers[1].own("pauses_sent") > 5 && servers[0].own("classes_held") > 5;
        let is_seen = turn >= 60_000 && stopped(servers) && held_back > 1_000 && beside > 1_000;
        if turn % 1_000 == 0 && (is_seen || start.elapsed().as_secs() >= 60) {
            break;
        }
        let [a, b] = servers;
        let before = (held_back, seen[1]);
        for (k, to) in [(0, 3), (1, 4)] {
            if a.send(k, &frame(k + 1, to, sent[k], 100 + turn % 1_300)) {
                sent[k] += 1;
            } else if k == 0 {
                held_back += 1;
            }
        }
        a.engine.round();
        b.engine.round();
        b.take(1, &mut seen[1]);
        if held_back > before.0 {
            beside += seen[1] - before.1;
        }
        if turn % 20 == 0
            && let Some(number) = b.number(0)
        {
            assert_eq!(number, seen[0], "in order, each once");
            seen[0] += 1;
        }
    }
    assert!(held_back > 1_000, "held back {held_back} times");
    assert!(servers[1].own("pauses_sent") > 5 && servers[0].own("classes_held") > 5, "pauses are seen");
    assert!(beside > 1_000, "the other class is stopped, too: {beside} of {seen:?} arrived meanwhile");
    take_the_rest(servers, sent, seen);
    let [paused, held] = [servers[1].own("pauses_sent"), servers[0].own("held_us_3")];
    println!("sent = received = {sent:?} (slow, fast); {paused} pauses; the slow class was held for {held} us");
    for (server, unresolved) in servers.iter().zip(unresolved) {
        server.engine.ledger();
        assert_eq!(server.engine.queued(), 0);
        assert_eq!(server.own("unresolved"), unresolved);
        for loss in ["headroom_exceeded", "adapter_rx", "watchdog", "parked_full"] {
            assert_eq!(server.own(loss), 0, "{loss}");
        }
        let report = server.engine.report(UPLINK).unwrap();
        // Frames that the port itself gave up are in the switch's ledger by the same name.
        let (dropped, refused) = (report.counters.dropped, report.counters.refused);
        let of_name = dropped.frames(DropReason::Unresolved) + refused.frames(DropReason::Unresolved);
        assert_eq!((of_name, dropped.total_frames() + refused.total_frames()), (unresolved, unresolved));
    }
}

/// Who is to be spoken to is asked for first, as every stack does.
fn ask_first(servers: &mut [Server; 2]) {
    // Requests for stations that the controller does not know yet would go to the other server.
    until(servers, |servers| servers.iter().all(|server| server.own("stations_registered") >= 2));
    for (k, target) in [(0, 3), (1, 4)] {
        let mut asked = Instant::now();
        servers[0].send(k, &request(k + 1, target));
        until(servers, |[a, _]| {
            // The other end may not have registered yet.
            if asked.elapsed().as_millis() > 1_100 {
                asked = Instant::now();
                a.send(k, &request(k + 1, target));
            }
            let Some(reply) = a.receive(k).filter(|f| f[..6] == mac(k + 1).0) else { return false };
            let (message, _) = arp::Repr::parse(&reply[14..]).unwrap();
            assert_eq!((message.operation, message.sender_mac), (Operation::Reply, mac(target)));
            true
        });
    }
}

/// Sends a frame to the other server every 20 ms, longer than a switch stays awake, until ten have arrived.
/// Where it `repeats`, frames are sent until ten of them have come; otherwise each when the one before it has.
fn between_sleepers(servers: [Server; 2], repeats: bool) {
    let [mut a, mut b] = servers;
    let stop = AtomicBool::new(false);
    let mut sent = 0;
    std::thread::scope(|scope| {
        let engines = [&mut a.engine, &mut b.engine].map(|engine| {
            let stop = &stop;
            scope.spawn(move || engine.run(stop).unwrap())
        });
        let (clients, kick) = (&mut a.clients, &a.kicks[0]);
        let start = Instant::now();
        let mut seen = 0;
        while seen < 10 {
            assert!(start.elapsed().as_secs() < 60, "only {seen} of {sent} arrived");
            if repeats || sent == seen {
                sent += u64::from(clients[0].send(&frame(1, 3, sent, 100)).unwrap());
            }
            if clients[0].publish() {
                rustix::io::write(kick, &1u64.to_ne_bytes()).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            let mut bytes = [0; 2048];
            while b.clients[0].receive(&mut bytes).unwrap().is_some() {
                let _ = b.clients[0].publish();
                seen += u64::from(!is_request(&bytes));
            }
        }
        stop.store(true, Ordering::Relaxed);
        engines.into_iter().for_each(|engine| engine.join().unwrap());
    });
    let sleeps = [a.engine.sleeps(), b.engine.sleeps()];
    assert!(sleeps.iter().all(|&n| n > 0), "{sleeps:?}");
}

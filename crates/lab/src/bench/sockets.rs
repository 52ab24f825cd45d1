//! What a byte costs over kernel TCP and over light sockets, between two machines of one switch: the same transfer, in turns, with the
//! processor time of all there is: both programs, the switch, and the kernel for any of them.

use super::tcp::{self, Kind, Tcp, transfer};
use serde::Serialize;
use sluicenet_dataplane::engine::Engine;
use sluicenet_node::vale::ValeConfig;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration as Time;
use sluicenet_socket::attach::Attachment;
use sluicenet_socket::{Config, Host, TcplightStream};
use sluicenet_wire::ethernet::MacAddress;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the machines' programs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guest {
    /// The kernel's TCP behind a veth pair, a frame for each segment.
    Tcp,
    /// The same, its segments and checksums left to whoever is behind the switch.
    TcpOffload,
    /// Light sockets over ports in shared memory.
    Tcplight,
}

/// What the switch does with frames that find no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// It drops them.
    Lossy,
    /// They wait, and so does who sends them.
    Lossless,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct Sockets {
    /// How long each pair is measured in each turn.
    pub time: Duration,
    /// Turns.
    pub turns: u32,
    /// Connections at once.
    pub streams: u32,
}

/// What came out of one pair.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pair {
    /// What the programs used.
    pub guest: Guest,
    /// What the switch did with frames that found no room.
    pub switch: Class,
    /// Payload received, in all turns.
    pub gbps: f64,
    /// Processor seconds of programs and switch, the kernel's for them among these, for each gigabyte received.
    pub cpu_s_per_gb: f64,
    /// The same of all cores, whoever they worked for.
    pub machine_s_per_gb: f64,
    /// Segments TCP sent again.
    pub resent: u64,
    /// Frames lost.
    pub lost: u64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Connections at once.
    pub streams: u32,
    /// For how long each pair was measured, in all turns.
    pub seconds: f64,
    /// One for each pair of what programs use and what the switch does.
    pub pairs: Vec<Pair>,
    /// TCPlight's throughput over that of TCP over a lossy switch: without offload, and with.
    pub throughput_ratio: [f64; 2],
    /// Processor time of TCP over a lossy switch for each gigabyte over TCPlight's: without offload, and with.
    pub cpu_ratio: [f64; 2],
}

/// The pairs: TCPlight is made for switches that lose nothing, and has nothing against loss.
const PAIRS: [(Guest, Class); 5] = [
    (Guest::Tcp, Class::Lossy),
    (Guest::TcpOffload, Class::Lossy),
    (Guest::Tcp, Class::Lossless),
    (Guest::TcpOffload, Class::Lossless),
    (Guest::Tcplight, Class::Lossless),
];

/// Buffers of a light socket's port.
const BUFFERS: u32 = 2048;
const PORT: u16 = 7000;

/// Measures it; ends early when `stop` is raised.
///
/// # Errors
/// When the kernel has not what it takes, or a connection fails.
pub fn run(what: &Sockets, stop: &AtomicBool) -> io::Result<Figures> {
    let mut ways = [tcp::Way::default(); PAIRS.len()];
    // Closer together than whatever else the machine does changes.
    for _ in 0..what.turns {
        for (sum, &(guest, class)) in ways.iter_mut().zip(&PAIRS) {
            sum.add(&once(what, guest, class, stop)?);
        }
    }
    let pair = |(way, &(guest, switch)): (&tcp::Way, &(Guest, Class))| Pair {
        guest,
        switch,
        gbps: way.gbps / f64::from(what.turns),
        cpu_s_per_gb: way.cpu_s / (way.bytes as f64 / 1e9),
        machine_s_per_gb: way.machine_s / (way.bytes as f64 / 1e9),
        resent: way.resent,
        lost: way.lost,
    };
    let pairs: Vec<Pair> = ways.iter().zip(&PAIRS).map(pair).collect();
    let [plain, offload, .., light] = pairs[..] else { unreachable!("one for each of PAIRS") };
    Ok(Figures {
        streams: what.streams,
        seconds: what.time.as_secs_f64() * f64::from(what.turns),
        throughput_ratio: [plain, offload].map(|tcp| light.gbps / tcp.gbps),
        cpu_ratio: [plain, offload].map(|tcp| tcp.cpu_s_per_gb / light.cpu_s_per_gb),
        pairs,
    })
}

fn once(what: &Sockets, guest: Guest, class: Class, stop: &AtomicBool) -> io::Result<tcp::Way> {
    let lossless = if class == Class::Lossless { PrioritySet::ALL } else { PrioritySet::NONE };
    let of_tcp = Tcp { kind: Kind::Veth, time: what.time, turns: 1, streams: what.streams };
    match guest {
        Guest::Tcp => tcp::once(&of_tcp, [false; 2], lossless, stop),
        Guest::TcpOffload => tcp::once(&of_tcp, [true; 2], lossless, stop),
        Guest::Tcplight => light(what, lossless, stop),
    }
}

fn light(what: &Sockets, lossless: PrioritySet, stop: &AtomicBool) -> io::Result<tcp::Way> {
    let vale = ValeConfig { detection_time: Time::MAX, lossless, ..ValeConfig::default() };
    let mut engine = Engine::new(2, vale);
    let end = AtomicBool::new(false);
    let mut ports = Vec::new();
    for k in 0..2u8 {
        let mac = MacAddress::local(u32::from(k) + 1);
        let access = engine.plug_shm(k.into(), "sluicenet-bench", BUFFERS)?;
        engine.give(mac.0, 0, k.into());
        ports.push((Attachment::local(access, Some(mac)), Ipv4Addr::new(10, 0, 0, k + 1)));
    }
    std::thread::scope(|scope| {
        let running = scope.spawn(|| engine.run(&end).map(|()| engine));
        let moved = (|| {
            let mut hosts = Vec::new();
            for (port, address) in ports {
                hosts.push(Host::open(port, Config::new(address, 24))?);
            }
            let listener = hosts[1].listen(PORT, 128)?;
            let to = SocketAddrV4::new(hosts[1].address(), PORT);
            let mut streams = Vec::new();
            for _ in 0..what.streams {
                let stream = hosts[0].connect(to)?;
                streams.push((Light(stream), Light(listener.accept()?.0)));
            }
            transfer(streams, what.time, stop)
        })();
        end.store(true, Ordering::Relaxed);
        let engine = running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let reports = (0..2).filter_map(|k| engine.report(k));
        let (frames, lost) = reports.fold((0, 0), |(frames, lost), report| {
            (frames + report.counters.delivered, lost + report.counters.dropped.total_frames())
        });
        Ok(tcp::Way { frames, lost, ..moved? })
    })
}

/// A stream that is read and written by value.
struct Light(TcplightStream);

impl Read for Light {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(into)
    }
}

impl Write for Light {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&self.0).write(from)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

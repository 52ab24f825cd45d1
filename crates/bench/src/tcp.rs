//! The gain of segmentation offload for TCP between two tenants in namespaces. Three cases take turns: with offload,
//! without it, and from a tenant with it to one without.

use super::transfer::{Moved, transfer};
use serde::Serialize;
use sluicenet_dataplane::engine::{Access, Engine, PortReport};
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::tap::{TapConfig, TapPort};
use sluicenet_dataplane::kernel::valve::{ValveConfig, ValvePort};
use sluicenet_dataplane::port::Port;
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_proto::loss::DropReason;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How the tenants are connected to the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A veth pair, a valve at the switch's end
    Veth,
    /// A TAP device whose queue is held
    Tap,
}

/// The measurement.
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    /// How the tenants are connected to the switch.
    pub kind: Kind,
    /// How long each case is measured, in a turn.
    pub time: Duration,
    /// Turns.
    pub turns: u32,
    /// Connections at once.
    pub streams: u32,
}

/// The result of one case.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CaseResult {
    /// Payload received, in all turns.
    pub gbps: f64,
    /// Delivered bytes.
    pub bytes: u64,
    /// Processor seconds of the programs and the switch, with those of the kernel for them.
    pub cpu_s: f64,
    /// Processor seconds of all cores, for all processes.
    pub machine_s: f64,
    /// Frames the switch delivered.
    pub frames: u64,
    /// Segments TCP sent again.
    pub resent: u64,
    /// Counted losses in the switch and between sockets and switch, in frames.
    pub lost: u64,
}

/// The figures.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// How the tenants were connected to the switch.
    pub kind: Kind,
    /// One segment in each frame.
    pub plain: CaseResult,
    /// Both tenants leave segmentation to be done after the switch.
    pub offload: CaseResult,
    /// The sender leaves segmentation to be done, the receiver takes no such frames: the switch cuts them.
    pub mixed: CaseResult,
    /// `offload` over `plain`.
    pub ratio: f64,
}

const PORT: u16 = 7000;

/// Measures it; ends early when `stop` is raised.
///
/// # Errors
/// The kernel lacks a feature, or a connection fails.
pub fn run(what: &Tcp, stop: &AtomicBool) -> io::Result<Figures> {
    let mut results = [CaseResult::default(); 3];
    let offloads = [[false, false], [true, true], [true, false]];
    // Short turns: the load of the machine changes little between the cases of one turn.
    for _ in 0..what.turns {
        for (result, offload) in results.iter_mut().zip(offloads) {
            let turn = once(what, offload, stop)?;
            result.gbps += turn.gbps / f64::from(what.turns);
            result.bytes += turn.bytes;
            result.cpu_s += turn.cpu_s;
            result.machine_s += turn.machine_s;
            result.frames += turn.frames;
            result.resent += turn.resent;
            result.lost += turn.lost;
        }
    }
    let [plain, offload, mixed] = results;
    Ok(Figures { kind: what.kind, plain, offload, mixed, ratio: offload.gbps / plain.gbps })
}

fn open(kind: Kind, lan: &Lan, i: usize, offload: bool) -> Result<Box<dyn Port>, KernelError> {
    Ok(match kind {
        Kind::Veth => {
            lan.veth(i).create(Lan::mac(i), 1500)?;
            let config = ValveConfig { watchdog: WatchdogConfig::OFF, offload, ..ValveConfig::default() };
            Box::new(ValvePort::open(lan.veth(i), &config)?)
        }
        Kind::Tap => {
            let config = TapConfig { offload, ..TapConfig::default() };
            Box::new(TapPort::create(lan.tenant(i), DEVICE, Lan::mac(i), 1500, &config)?)
        }
    })
}

/// One turn.
fn once(what: &Tcp, offload: [bool; 2], stop: &AtomicBool) -> io::Result<CaseResult> {
    let lan = Lan::create(&format!("tcp-{}", std::process::id()), 2, Wiring::Bare)?;
    let vale = ValeConfig { watchdog: WatchdogConfig::OFF, ..ValeConfig::default() };
    let mut engine = Engine::new(2, vale);
    for (i, offload) in offload.into_iter().enumerate() {
        let port = open(what.kind, &lan, i, offload)?;
        engine.plug(i, &format!("tenant-{i}"), port, Access::default())?;
        engine.give(Lan::mac(i), 0, i);
        lan.configure(i)?;
    }
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| engine.run(&end).map(|()| engine));
        let moved = connect(&lan, what.streams).and_then(|s| transfer(s, what.time, None, || Ok(0.0), stop));
        let resent = resent(&lan);
        end.store(true, Ordering::Relaxed);
        let engine = running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let Moved { gbps, bytes, cpu_s, machine_s, .. } = moved?;
        let mut result = CaseResult { gbps, bytes, cpu_s, machine_s, resent: resent?, ..CaseResult::default() };
        for k in 0..2 {
            let report = engine.report(k).unwrap_or_default();
            result.frames += report.counters.delivered;
            result.lost += lost(&report).map(|(_, frames)| frames).sum::<u64>();
        }
        Ok(result)
    })
}

/// Frames lost at a port and between it and its sockets, as far as they are counted, with the reasons.
pub(super) fn lost(report: &PortReport) -> impl Iterator<Item = (&'static str, u64)> {
    // Occasional IPv6 frames to all neighbours are no part of the experiment.
    let reasons = DropReason::ALL.into_iter().filter(|&reason| reason != DropReason::FloodNoRoom);
    let dropped = reasons.map(|reason| (reason.name(), report.counters.dropped.frames(reason)));
    let edge = report.own.iter().filter(|(name, _)| name.starts_with("edge_") && *name != "edge_softnet");
    dropped.chain(edge.copied()).filter(|&(_, frames)| frames > 0)
}

/// Connections between the two tenants.
pub(super) fn connect(lan: &Lan, count: u32) -> io::Result<Vec<(TcpStream, TcpStream)>> {
    let listener = lan.tenant(1).enter(|| TcpListener::bind(Lan::socket(1, PORT)))??;
    let mut streams = Vec::new();
    for _ in 0..count {
        let stream = lan.tenant(0).enter(|| TcpStream::connect(Lan::socket(1, PORT)))??;
        streams.push((stream, listener.accept()?.0));
    }
    Ok(streams)
}

/// Segments that the sender's TCP sent again.
pub(super) fn resent(lan: &Lan) -> io::Result<u64> {
    let text = lan.tenant(0).enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))??;
    let mut lines = text.lines().filter(|l| l.starts_with("Tcp:")).map(str::split_whitespace);
    let (names, values) = (lines.next(), lines.next());
    let pair = names.into_iter().flatten().zip(values.into_iter().flatten()).find(|&(name, _)| name == "RetransSegs");
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "no RetransSegs in /proc/net/snmp");
    pair.and_then(|(_, value)| value.parse().ok()).ok_or_else(missing)
}

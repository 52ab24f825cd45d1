//! Experiment 1 of Crisan 2014, 4.2.3, with namespaces in place of virtual machines: two senders at full speed into one sink
//! over a virtual switch; what was lost, and where.

use super::ovs::{self, Ovs};
use serde::Serialize;
use sluicenet_dataplane::engine::{Access, Engine};
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::edge::{Edge, EdgeCounters};
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::valve::{ValveConfig, ValvePort};
use sluicenet_node::vale::ValeConfig;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Over which switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// This project's, a valve at each port
    Ours,
    /// The Linux bridge
    Bridge,
    /// Open vSwitch with its datapath in user space
    Ovs,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Overload {
    /// Over which switch.
    pub switch: Switch,
    /// How long the senders send.
    pub time: Duration,
    /// Bytes of a datagram.
    pub payload: usize,
    /// Where Open vSwitch may keep its files.
    pub scratch: PathBuf,
}

/// Datagrams lost, by the place where it was counted, on the way from sender to sink.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Points {
    /// In the queues of the senders' devices.
    pub sender_qdisc: u64,
    /// At the senders' devices and their peers.
    pub sender_device: u64,
    /// In the switch; of a switch that does not count, what no other point has.
    pub switch: u64,
    /// At the sink's device and its peer.
    pub sink_device: u64,
    /// Between the devices and the stack.
    pub softnet: u64,
    /// At the sink's socket.
    pub socket: u64,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Over which switch.
    pub switch: Switch,
    /// How long the senders sent.
    pub seconds: f64,
    /// Bytes of a datagram.
    pub payload: usize,
    /// Datagrams that `send()` took.
    pub sent: u64,
    /// Datagrams that `recv()` returned.
    pub received: u64,
    /// Those that were sent and not received.
    pub lost: u64,
    /// Their share, in percent.
    pub lost_percent: f64,
    /// Thousands of datagrams received a second, from the first to the last.
    pub received_kpps: f64,
    /// Datagrams that came out of order, twice, or after a gap.
    pub disordered: u64,
    /// Where they were lost.
    pub lost_at: Points,
}

/// Why it could not be measured.
#[derive(Debug)]
pub enum OverloadError {
    /// Something of the kernel's was not to be had.
    Kernel(KernelError),
    /// Open vSwitch did not start.
    Ovs(ovs::OvsError),
    /// A socket failed.
    Io(io::Error),
}

impl fmt::Display for OverloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverloadError::Kernel(e) => e.fmt(f),
            OverloadError::Ovs(e) => e.fmt(f),
            OverloadError::Io(e) => write!(f, "a socket of the experiment: {e}"),
        }
    }
}
impl std::error::Error for OverloadError {}
impl From<KernelError> for OverloadError {
    fn from(e: KernelError) -> OverloadError {
        OverloadError::Kernel(e)
    }
}
impl From<ovs::OvsError> for OverloadError {
    fn from(e: ovs::OvsError) -> OverloadError {
        OverloadError::Ovs(e)
    }
}
impl From<io::Error> for OverloadError {
    fn from(e: io::Error) -> OverloadError {
        OverloadError::Io(e)
    }
}

const SENDERS: usize = 2;
const SINK: usize = 2;
const PORT: u16 = 7000;

/// Measures it; ends early when `stop` is raised.
pub fn run(what: &Overload, stop: &AtomicBool) -> Result<Figures, OverloadError> {
    let wiring = match what.switch {
        Switch::Ours => Wiring::Valve,
        Switch::Bridge => Wiring::Plain,
        // It hands frames on as they are: checksums have to be in them.
        Switch::Ovs => Wiring::Checksummed,
    };
    let lan = Lan::create(&format!("overload-{}", std::process::id()), SENDERS + 1, wiring)?;
    match what.switch {
        Switch::Ours => {
            let config = ValveConfig { detection_time: None, ..ValveConfig::default() };
            let vale = ValeConfig { detection_time: sluicenet_proto::time::Duration::MAX, ..ValeConfig::default() };
            let mut engine = Engine::new(SENDERS + 1, vale);
            for i in 0..=SENDERS {
                let port = ValvePort::open(lan.veth(i), &config)?;
                let plugged = engine.plug(i, &format!("tenant-{i}"), Box::new(port), Access::default());
                plugged.map_err(io::Error::from)?;
                engine.give(Lan::mac(i), 0, i);
            }
            let end = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let running = scope.spawn(|| engine.run(&end).map(|()| engine));
                let figures = experiment(what, &lan, stop);
                end.store(true, Ordering::Relaxed);
                let engine = running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                let mut figures = figures?;
                // Frames for everybody that did not reach everybody are none of the experiment's.
                let report = engine.report(SINK).unwrap_or_default();
                let flooded = report.counters.dropped.frames(sluicenet_proto::loss::DropReason::FloodNoRoom);
                figures.lost_at.switch = report.counters.dropped.total_frames() - flooded;
                // Frames that the device did not take were kept, and are none of the lost.
                let full = report.own.iter().find(|(name, _)| *name == "device_full").map_or(0, |&(_, n)| n);
                figures.lost_at.sink_device = figures.lost_at.sink_device.saturating_sub(full);
                Ok(figures)
            })
        }
        Switch::Bridge => {
            lan.switch().enter(|| {
                let mut links = Links::open()?;
                links.create_bridge("br0")?;
                for i in 0..=SENDERS {
                    links.set_master(lan.veth(i).switch_device, "br0")?;
                }
                links.up("br0")
            })??;
            experiment(what, &lan, stop)
        }
        Switch::Ovs => {
            let devices: Vec<_> = (0..=SENDERS).map(|i| lan.veth(i).switch_device.to_owned()).collect();
            let _running = Ovs::start(lan.switch(), &what.scratch, &devices)?;
            experiment(what, &lan, stop)
        }
    }
}

fn experiment(what: &Overload, lan: &Lan, stop: &AtomicBool) -> Result<Figures, OverloadError> {
    let to = Lan::socket(SINK, PORT);
    let mut sink = Sink::bind(lan.tenant(SINK), to, what.payload, SENDERS as u16)?;
    let mut senders = Vec::new();
    for i in 0..SENDERS {
        senders.push(Sender::new(lan.tenant(i), i as u16, to, what.payload)?);
    }
    settle(&mut senders[0], &mut sink)?;
    let (sent_before, received_before) = (senders[0].sent(), sink.received());
    let edge = |i: usize| {
        let veth = lan.veth(i);
        Edge::open(veth.tenant, DEVICE, veth.switch, veth.switch_device)
    };
    let mut edges = (0..=SENDERS).map(edge).collect::<Result<Vec<_>, _>>()?;
    let done = AtomicBool::new(false);
    let (sent, seconds, window) = std::thread::scope(|scope| {
        let done = &done;
        let sinking = scope.spawn(|| receive(&mut sink, done));
        let started = Instant::now();
        let sending: Vec<_> = senders
            .into_iter()
            .map(|mut sender| {
                scope.spawn(move || {
                    while started.elapsed() < what.time && !stop.load(Ordering::Relaxed) {
                        sender.send(u64::MAX)?;
                    }
                    Ok::<_, io::Error>(sender.sent())
                })
            })
            .collect();
        let mut sent = 0;
        let mut failed = None;
        for sender in sending {
            match sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(n) => sent += n,
                Err(e) => failed = Some(e),
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        let window = sinking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        failed.map_or(Ok((sent - sent_before, seconds, window)), Err)
    })?;
    let received = sink.received() - received_before;
    let edges = edges.iter_mut().map(Edge::read).collect::<Result<Vec<_>, _>>()?;
    let lost = sent.saturating_sub(received);
    Ok(Figures {
        switch: what.switch,
        seconds,
        payload: what.payload,
        sent,
        received,
        lost,
        lost_percent: 100.0 * lost as f64 / sent.max(1) as f64,
        received_kpps: received as f64 / window.as_secs_f64().max(1e-9) / 1e3,
        disordered: sink.disordered(),
        lost_at: points(what.switch, lost, &edges),
    })
}

/// Sends until something arrives, and then waits until nothing more does: a switch may need some time to know its ports.
fn settle(sender: &mut Sender, sink: &mut Sink) -> Result<(), OverloadError> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while sink.received() == 0 {
        sender.send(1)?;
        sink.receive(1)?;
        if Instant::now() > deadline {
            let why = "no datagram came through the switch for 20 s";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why).into());
        }
    }
    while sink.receive(64)? > 0 {}
    Ok(())
}

/// Receives until the senders are done and nothing more has come for half a second; the time from the first to the last.
fn receive(sink: &mut Sink, done: &AtomicBool) -> io::Result<Duration> {
    let (mut first, mut last, mut quiet) = (None, None, 0);
    while quiet < 10 {
        if sink.receive(64)? > 0 {
            let now = Instant::now();
            first.get_or_insert(now);
            last = Some(now);
            quiet = 0;
        } else if done.load(Ordering::Relaxed) {
            quiet += 1;
        }
    }
    Ok(first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first))
}

fn points(switch: Switch, lost: u64, edges: &[EdgeCounters]) -> Points {
    let (senders, sink) = edges.split_at(SENDERS);
    let sum = |of: fn(&EdgeCounters) -> u64| senders.iter().map(of).sum::<u64>();
    let device = |e: &EdgeCounters| e.tenant_device + e.switch_device;
    let mut points = Points {
        sender_qdisc: sum(|e| e.qdisc),
        sender_device: sum(|e| e.tenant_device + e.switch_device),
        switch: 0,
        sink_device: sink.iter().map(device).sum(),
        // The same number for the whole system.
        softnet: sink.iter().map(|e| e.softnet).sum(),
        socket: sink.iter().map(|e| e.sockets).sum(),
    };
    // A device's counter shows what the way to the stack threw away as well.
    points.sink_device = points.sink_device.saturating_sub(points.softnet);
    if switch != Switch::Ours {
        let known = points.sender_qdisc + points.sender_device + points.sink_device + points.softnet + points.socket;
        points.switch = lost.saturating_sub(known);
    }
    points
}

//! Frames through a bump in links of shared memory. Generator, bump and sink of a link take turns on one thread, so that what is
//! measured is their work and not the wake-up of threads.

use super::ports::PortsError;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use sluicenet_dataplane::bump::program::{Mode, Safe};
use sluicenet_dataplane::bump::{self, Applications, Loop, Settings, number_of};
use sluicenet_dataplane::clock;
use sluicenet_dataplane::shm::{self, Client};
use sluicenet_proto::netbump::{
    BumpCongestionPoint, BumpReactionPoint, Dctcp, Filter, L4s, Map, Port, QueueId, Red, Stock,
};
use sluicenet_proto::units::Rate;
use sluicenet_vswitchd::bump::program::{InProcess, starter};
use sluicenet_wire::ethernet::{EtherType, HEADER_LEN, MacAddress};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Frames of a generator before it is the bump's turn.
const BURST: usize = 64;
/// Buffers of a port, half of them for sending.
const BUFFERS: u32 = 512;
/// Turns in which each case is measured.
const TURNS: usize = 5;
/// Rounds between two looks at the clock.
const ROUNDS: usize = 64;
/// Most samples of latency that are kept.
const SAMPLES_MAX: usize = 1 << 22;

/// Longest wait for the processes of a program.
const START_MAX: Duration = Duration::from_secs(30);

/// The application of the bump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum App {
    /// None: the bump estimates and forwards
    None,
    /// Random early detection
    Red,
    /// DCTCP's marking
    Dctcp,
    /// The marking ramp of L4S
    L4s,
    /// QCN: congestion point and reaction point, one after the other
    Qcn,
}

impl App {
    fn applications(self) -> Applications {
        let stock = match self {
            App::None => vec![],
            App::Red => vec![Stock::Red(Red { config: Red::alfares2012(0.1), seed: 1 })],
            App::Dctcp => vec![Stock::Dctcp(Dctcp::default())],
            App::L4s => vec![Stock::L4s(L4s::rfc9332(1))],
            App::Qcn => vec![
                Stock::CongestionPoint(BumpCongestionPoint::alfares2012(1 << 16, 1)),
                Stock::ReactionPoint(BumpReactionPoint::alfares2012(1)),
            ],
        };
        stock.into_iter().map(|app| (app, Filter::default())).collect()
    }
}

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Bump {
    /// The application.
    pub app: App,
    /// A program from outside instead of it.
    pub program: Option<Program>,
    /// Bytes of a frame without its check sequence.
    pub size: usize,
    /// Links, each with a thread; their hosts differ.
    pub links: usize,
    /// Pipelines of the link, each with a thread; they share the hosts.
    pub pipelines: usize,
    /// Hosts behind each link, each at a port of 1 Gb/s.
    pub stations: usize,
    /// For how long.
    pub time: Duration,
    /// Frames a second while the latency is measured.
    pub rate: f64,
}

/// A program from outside.
#[derive(Clone, Debug)]
pub struct Program {
    /// The shared library.
    pub bytes: Vec<u8>,
    /// Whether it is called in the bump's own process.
    pub in_process: bool,
}

impl Program {
    fn mode(&self, ports: &[Port]) -> Result<Mode, PortsError> {
        let failed = |e: &dyn std::fmt::Display| PortsError::from(std::io::Error::other(format!("the program: {e}")));
        if self.in_process {
            return Ok(Mode::Fast(Box::new(InProcess::load(&self.bytes, &[], 1).map_err(|e| failed(&e))?)));
        }
        let starter = starter(&self.bytes, &["bump", "program"], &[], 1);
        let (chooses, deadline) =
            (starter.try_out().map_err(|e| failed(&e))?, sluicenet_proto::time::Duration::from_secs(1));
        let in_use = (0..ports.len() as QueueId).collect();
        Ok(Mode::Safe(Safe { starter, chooses, deadline, block: false, ports: ports.to_vec(), in_use }))
    }
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The application.
    pub app: App,
    /// How a program from outside runs, instead of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<&'static str>,
    /// Bytes of a frame.
    pub size: usize,
    /// Links.
    pub links: usize,
    /// Pipelines of a link.
    pub pipelines: usize,
    /// Millions of frames a second through the bump, of all links and pipelines: the median of the turns.
    pub mpps: f64,
    /// In the fastest turn.
    pub mpps_best: f64,
    /// In the slowest turn.
    pub mpps_worst: f64,
    /// Billions of bits a second of these frames, in the median.
    pub gbps: f64,
    /// The same of one thread, in turn with the others; only with several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_mpps: Option<f64>,
    /// How many times as fast all threads were as one: the median of the turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<f64>,
    /// How many times as fast it was in the best turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling_best: Option<f64>,
    /// Millions of frames in a second of processor time of one core, in the median: other programs take none of it.
    pub core_mpps: f64,
    /// The same in the best turn.
    pub core_mpps_best: f64,
    /// Millions of frames in a second of processor time of one thread alone: without locks, and with locks that nobody else
    /// takes; only with several threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_core_mpps: Option<[f64; 2]>,
    /// How many times as much all cores did as one alone, by processor time: what sharing costs, and not the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_scaling: Option<f64>,
    /// Frames that were sent, not dropped by the application, and not received.
    pub lost: u64,
    /// Frames that the application dropped.
    pub dropped: u64,
    /// Frames that it marked.
    pub marked: u64,
    /// Frames a second while the latency was measured.
    pub rate: f64,
    /// The latency that the bump adds, in us: the median of the frames.
    pub added_p50_us: f64,
    /// The latency that it adds at 99 %.
    pub added_p99_us: f64,
    /// The latency that it adds at 99.9 %.
    pub added_p999_us: f64,
    /// The latency with the bump.
    pub with_bump: Latency,
    /// The latency of the same loop without the bump.
    pub without: Latency,
}

/// Percentiles of a latency, in us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean_us: f64,
    /// The median.
    pub p50_us: f64,
    /// At 95 %.
    pub p95_us: f64,
    /// At 99 %.
    pub p99_us: f64,
    /// At 99.9 %.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Frames measured.
    pub frames: usize,
}

fn mac(link: usize, station: usize) -> [u8; 6] {
    let [high, low] = (station as u16).to_be_bytes();
    [2, 0, 1, link as u8, high, low]
}

/// A UDP datagram with ECT(0) to a station.
fn frame(link: usize, station: usize, size: usize) -> Vec<u8> {
    let mut frame = vec![0; size];
    frame[..6].copy_from_slice(&mac(link, station));
    frame[6..12].copy_from_slice(&MacAddress::local(7).0);
    frame[12..HEADER_LEN].copy_from_slice(&EtherType::IPV4.0.to_be_bytes());
    let repr = ipv4::Repr {
        source: [10, 0, 0, 1].into(),
        destination: [10, 1, link as u8, station as u8].into(),
        protocol: Protocol::UDP,
        dscp: 0,
        ecn: Ecn::Ect0,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        payload_len: (size - HEADER_LEN - ipv4::HEADER_LEN) as u16,
    };
    repr.emit(&mut frame[HEADER_LEN..]);
    frame
}

/// Generator, bump and sink of a link. Aligned, so that no two threads write to one cache line.
#[repr(align(128))]
struct Rig {
    bump: Box<dyn Loop>,
    generator: Client,
    sink: Client,
    frames: Vec<Vec<u8>>,
    next: usize,
    sent: u64,
    received: u64,
}

/// The rigs of `threads` links, or of as many pipelines of one link.
fn rigs(settings: &Bump, links: usize, pipelines: usize) -> Result<Vec<Rig>, PortsError> {
    let threads = links * pipelines;
    let mut entries = Vec::new();
    for link in 0..links {
        for station in 0..settings.stations {
            entries.push((number_of(mac(link, station)), (link * settings.stations + station) as QueueId));
        }
    }
    let ports = vec![Port { rate: Rate::gbps(1), buffer_bytes: None }; entries.len()];
    let map = Map::new(&entries, None);
    let started = Instant::now();
    let one = |n: usize| Settings {
        links: vec![[format!("in-{n}"), format!("out-{n}")]],
        maps: vec![map.clone(), map.clone()],
        mac: MacAddress::local(1).0,
        notification_priority: 7,
        updates: None,
        started,
    };
    let each: Vec<Settings> = (0..threads).map(one).collect();
    let mut loops = match &settings.program {
        None => bump::loops(settings.app.applications(), &ports, each),
        Some(program) => {
            let modes: Result<Vec<Mode>, _> = each.iter().map(|_| program.mode(&ports)).collect();
            bump::loops_with(modes?, &ports, each)
        }
    };
    for bump in &mut loops {
        let started = Instant::now();
        while bump.report().lanes.iter().any(|lane| !lane.runs) && started.elapsed() < START_MAX {
            bump.round();
        }
    }
    let mut rigs = Vec::new();
    for (n, mut bump) in loops.into_iter().enumerate() {
        let generator = Client::open(bump.plug_shm(0, BUFFERS)?.memory)?;
        let sink = Client::open(bump.plug_shm(1, BUFFERS)?.memory)?;
        let link = n / pipelines;
        let frames = (0..settings.stations).map(|station| frame(link, station, settings.size)).collect();
        rigs.push(Rig { bump, generator, sink, frames, next: 0, sent: 0, received: 0 });
    }
    Ok(rigs)
}

impl Rig {
    #[inline(always)]
    fn turn(&mut self) -> Result<(), PortsError> {
        let Rig { bump, generator, sink, frames, next, sent, received } = self;
        let mut burst = 0;
        while burst < BURST && generator.send(&frames[*next])? {
            burst += 1;
            *next += 1;
            if *next == frames.len() {
                *next = 0;
            }
        }
        *sent += burst as u64;
        // Nothing sleeps here.
        let _ = generator.publish();
        bump.round();
        let mut into = [0; 2048];
        let into = &mut into[..frames[0].len()];
        while sink.receive(into)?.is_some() {
            *received += 1;
        }
        let _ = sink.publish();
        Ok(())
    }

    /// Runs for a time; returns frames, seconds, and seconds of processor time.
    fn run(&mut self, time: Duration, interrupt: &AtomicBool) -> Result<(u64, f64, f64), PortsError> {
        let (before, started, cpu) = (self.received, Instant::now(), cpu_seconds());
        while started.elapsed() < time && !interrupt.load(Ordering::Relaxed) {
            for _ in 0..ROUNDS {
                self.turn()?;
            }
        }
        Ok((self.received - before, started.elapsed().as_secs_f64(), cpu_seconds() - cpu))
    }

    /// Frames that were lost, dropped and marked so far.
    fn fates(&mut self) -> Result<(u64, u64), PortsError> {
        let inside = |bump: &dyn Loop| bump.report().lanes.iter().any(|lane| lane.inside > 0);
        while self.bump.round() > 0 || inside(&*self.bump) {
            let mut into = [0; 2048];
            while self.sink.receive(&mut into)?.is_some() {
                self.received += 1;
            }
            let _ = self.sink.publish();
        }
        let mut into = [0; 2048];
        while self.sink.receive(&mut into)?.is_some() {
            self.received += 1;
        }
        let report = self.bump.report();
        let dropped: u64 = report.ends.iter().map(|end| end.counts.dropped.total_frames()).sum();
        Ok((self.sent - self.received - dropped, dropped))
    }
}

/// The cores on which this process may run.
fn cores() -> Vec<usize> {
    sched_getaffinity(None).map_or(vec![], |set| (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Pins this thread to one of the cores.
fn pin(cores: &[usize], n: usize) {
    let Some(&core) = cores.get(n % cores.len().max(1)) else { return };
    let mut set = CpuSet::new();
    set.set(core);
    // Without this right, the kernel chooses.
    let _ = sched_setaffinity(None, &set);
}

/// Processor time of this thread.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// One turn of several rigs, each on a core: millions of frames a second, and per second of processor time of one core.
fn turn(rigs: &mut [Rig], time: Duration, interrupt: &AtomicBool) -> Result<(f64, f64), PortsError> {
    let (cores, barrier) = (cores(), Barrier::new(rigs.len()));
    let results = std::thread::scope(|scope| {
        let run = |(n, rig): (usize, &'_ mut Rig)| {
            pin(&cores, n);
            barrier.wait();
            rig.run(time, interrupt)
        };
        let threads: Vec<_> = rigs.iter_mut().enumerate().map(|this| scope.spawn(move || run(this))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect::<Vec<_>>()
    });
    let (mut mpps, mut all, mut cpu) = (0.0, 0, 0.0);
    for result in results {
        let (frames, seconds, cpu_seconds) = result?;
        mpps += frames as f64 / seconds / 1e6;
        all += frames;
        cpu += cpu_seconds;
    }
    Ok((mpps, all as f64 / cpu / 1e6))
}

/// The upper median; NaN of no values.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures throughput and latency.
pub fn run(settings: &Bump, interrupt: &AtomicBool) -> Result<Figures, PortsError> {
    let threads = settings.links * settings.pipelines;
    let time = settings.time / (2 * TURNS as u32);
    let mut all = rigs(settings, settings.links, settings.pipelines)?;
    let (mut alone, mut locked) = (Vec::new(), Vec::new());
    if threads > 1 {
        alone = rigs(settings, 1, 1)?;
        // The table of two loops, of which one runs.
        locked = rigs(settings, 2, 1)?;
        locked.truncate(1);
    }
    let (mut mpps, mut one, mut scaling) = (Vec::new(), Vec::new(), Vec::new());
    let (mut core, mut core_scaling) = (Vec::new(), Vec::new());
    let mut alone_core = [Vec::new(), Vec::new()];
    for n in 0..TURNS {
        if n > 0 && interrupt.load(Ordering::Relaxed) {
            break;
        }
        let (fast, of_core) = turn(&mut all, time, interrupt)?;
        mpps.push(fast);
        core.push(of_core);
        if threads > 1 {
            let (single, of_single) = turn(&mut alone, time, interrupt)?;
            one.push(single);
            scaling.push(fast / single);
            core_scaling.push(threads as f64 * of_core / of_single);
            let (_, of_locked) = turn(&mut locked, time, interrupt)?;
            alone_core[0].push(of_single);
            alone_core[1].push(of_locked);
        }
    }
    let (mut lost, mut dropped) = (0, 0);
    for rig in &mut all {
        let (more_lost, more_dropped) = rig.fates()?;
        (lost, dropped) = (lost + more_lost, dropped + more_dropped);
    }
    let marked = all[0].bump.report_queues().iter().map(|queue| queue.counts.marked).sum();
    drop(all);
    let (mut with_bump, mut without) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let mut rig = rigs(settings, 1, 1)?;
        latency(&mut rig[0], settings.rate, time, interrupt, &mut with_bump)?;
        reference(settings, time, interrupt, &mut without)?;
    }
    let (with_bump, without) = (Latency::of(with_bump), Latency::of(without));
    let median_mpps = median(&mut mpps);
    Ok(Figures {
        app: settings.app,
        program: settings.program.as_ref().map(|p| if p.in_process { "in the bump's process" } else { "in processes" }),
        size: settings.size,
        links: settings.links,
        pipelines: settings.pipelines,
        mpps: median_mpps,
        mpps_best: mpps.last().copied().unwrap_or(f64::NAN),
        mpps_worst: mpps.first().copied().unwrap_or(f64::NAN),
        gbps: median_mpps * 8.0 * settings.size as f64 / 1e3,
        one_mpps: (threads > 1).then(|| median(&mut one)),
        scaling: (threads > 1).then(|| median(&mut scaling)),
        scaling_best: (threads > 1).then(|| scaling.last().copied().unwrap_or(f64::NAN)),
        core_mpps: median(&mut core),
        core_mpps_best: core.last().copied().unwrap_or(f64::NAN),
        alone_core_mpps: (threads > 1).then(|| alone_core.each_mut().map(|all| median(all))),
        core_scaling: (threads > 1).then(|| median(&mut core_scaling)),
        lost,
        dropped,
        marked,
        rate: settings.rate,
        added_p50_us: with_bump.p50_us - without.p50_us,
        added_p99_us: with_bump.p99_us - without.p99_us,
        added_p999_us: with_bump.p999_us - without.p999_us,
        with_bump,
        without,
    })
}

/// The clock of the latency: the time stamp counter, or nanoseconds.
struct Clock {
    started: Instant,
    ticks: Option<u64>,
}

impl Clock {
    fn start() -> Clock {
        Clock { started: Instant::now(), ticks: clock::ticks() }
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        clock::since(self.ticks).unwrap_or_else(|| self.started.elapsed().as_nanos() as u64)
    }

    /// Ticks of a second, measured until now.
    fn rate(&self) -> f64 {
        self.now() as f64 / self.started.elapsed().as_secs_f64()
    }
}

/// Sends frames at a rate and notes when each arrives. `step` sends the next one if it is due and returns how many came.
fn paced(
    rate: f64,
    time: Duration,
    interrupt: &AtomicBool,
    samples: &mut Vec<f64>,
    mut step: impl FnMut(bool) -> Result<(bool, usize), PortsError>,
) -> Result<(), PortsError> {
    let warm = Clock::start();
    while warm.started.elapsed() < Duration::from_millis(2) {
        std::hint::spin_loop();
    }
    let gap = warm.rate() / rate;
    let clock = Clock::start();
    let (mut next, mut under_way, mut raw) = (0.0, std::collections::VecDeque::new(), Vec::new());
    let mut rounds = 0u32;
    loop {
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(1024) && (clock.started.elapsed() >= time || interrupt.load(Ordering::Relaxed)) {
            break;
        }
        let now = clock.now();
        // No lane of a program overflows: frames are told apart by their order.
        let due = now as f64 >= next && under_way.len() < BURST;
        let (sent, came) = step(due)?;
        if sent {
            under_way.push_back(now);
            // A late generator does not catch up: a burst would measure itself.
            next = (next + gap).max(now as f64);
        }
        if came > 0 {
            let now = clock.now();
            for _ in 0..came {
                if let Some(since) = under_way.pop_front().filter(|_| raw.len() < SAMPLES_MAX) {
                    raw.push(now - since);
                }
            }
        }
    }
    let us = 1e6 / clock.rate();
    samples.extend(raw.into_iter().map(|ticks| ticks as f64 * us));
    Ok(())
}

fn latency(
    rig: &mut Rig,
    rate: f64,
    time: Duration,
    interrupt: &AtomicBool,
    samples: &mut Vec<f64>,
) -> Result<(), PortsError> {
    let Rig { bump, generator, sink, frames, next, .. } = rig;
    let mut into = [0; 2048];
    let into = &mut into[..frames[0].len()];
    paced(rate, time, interrupt, samples, |due| {
        let mut sent = false;
        if due {
            sent = generator.send(&frames[*next])?;
            *next = (*next + 1) % frames.len();
            let _ = generator.publish();
        }
        bump.round();
        let mut came = 0;
        while sink.receive(into)?.is_some() {
            came += 1;
        }
        let _ = sink.publish();
        Ok((sent, came))
    })
}

/// The same loop without the bump: the sink reads the generator's frames from its memory.
fn reference(
    settings: &Bump,
    time: Duration,
    interrupt: &AtomicBool,
    samples: &mut Vec<f64>,
) -> Result<(), PortsError> {
    let (mut port, access) = shm::Port::create("sluicenet-bench", BUFFERS)?;
    let mut generator = Client::open(access.memory)?;
    let frames: Vec<_> = (0..settings.stations).map(|station| frame(0, station, settings.size)).collect();
    let mut next = 0;
    let mut into = [0; 2048];
    let into = &mut into[..settings.size];
    paced(settings.rate, time, interrupt, samples, |due| {
        let mut sent = false;
        if due {
            sent = generator.send(&frames[next])?;
            next = (next + 1) % frames.len();
            let _ = generator.publish();
        }
        let mut came = 0;
        while let Some(shown) = port.next_frame()? {
            port.buffers().read(shown.buffer, into);
            port.accept();
            port.give_back(shown.buffer);
            came += 1;
        }
        port.publish();
        Ok((sent, came))
    })
}

impl Latency {
    fn of(mut samples: Vec<f64>) -> Latency {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = samples.len().saturating_sub(1);
            samples.get(((samples.len() as f64 * share) as usize).min(last)).copied().unwrap_or(f64::NAN)
        };
        Latency {
            mean_us: samples.iter().sum::<f64>() / samples.len().max(1) as f64,
            p50_us: at(0.5),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: at(1.0),
            frames: samples.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_with_any_application_and_any_number_of_threads() {
        for (app, links, pipelines, size) in [
            (App::None, 1, 1, 64),
            (App::Red, 1, 1, 1_514),
            (App::Red, 2, 1, 64),
            (App::Dctcp, 1, 2, 64),
            (App::L4s, 1, 1, 100),
            (App::Qcn, 1, 1, 64),
        ] {
            let time = Duration::from_millis(20);
            let settings = Bump { app, program: None, size, links, pipelines, stations: 8, time, rate: 100_000.0 };
            let figures = run(&settings, &AtomicBool::new(false)).unwrap();
            assert!(figures.mpps > 0.0 && figures.lost == 0, "{figures:?}");
            assert_eq!(figures.scaling.is_some(), links * pipelines > 1);
        }
    }
}

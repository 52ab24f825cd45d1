//! The cost of programs that have stopped reading, for other tenants: full-speed senders send to them, and two other tenants
//! go on. Windows with and without stopped programs take turns. At the end all of them read again, and nothing is lost.

use crate::bump::median;
use serde::Serialize;
use sluicenet_dataplane::engine::{Access, Engine};
use sluicenet_dataplane::kernel::lan::{Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::valve::{ValveConfig, ValvePort};
use sluicenet_dataplane::remote::Remote;
use sluicenet_node::vale::ValeConfig;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Tenants that go on: the first sends to the second. The programs that stop are at the third.
const SENDS: usize = 0;
const RECEIVES: usize = 1;
const STOPS: usize = 2;
/// Programs that one tenant sends to.
const OF_SENDER: u32 = 5;
const PORT: u16 = 7000;
const PAYLOAD: usize = 1_000;
/// How long the senders have to fill the programs' sockets, and how long none may fill before no other one does.
const FILL_AT_MOST: Duration = Duration::from_secs(3);
const FILLS_WITHIN: Duration = Duration::from_secs(1);

/// The measurement.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// Programs that stop.
    pub receivers: u32,
    /// How long a window is.
    pub time: Duration,
    /// Windows of each kind.
    pub turns: u32,
}

/// The figures for a number of programs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// Programs that stop.
    pub receivers: u32,
    /// Of these, the fewest that were stuck in a window.
    pub stuck: u64,
    /// Datagrams a second between the other tenants while programs have stopped, in thousands: the median.
    pub with_kpps: f64,
    /// The same while none has.
    pub without_kpps: f64,
    /// The median of the ratios of neighbouring windows.
    pub ratio: f64,
    /// The lowest ratio.
    pub ratio_least: f64,
    /// The highest ratio.
    pub ratio_most: f64,
    /// Datagrams for the programs that they had not received at the end.
    pub lost: u64,
    /// Datagrams sent to the programs.
    pub sent: u64,
}

struct Counts {
    end: AtomicBool,
    floods: AtomicBool,
    received: AtomicU64,
    sent: Vec<AtomicU64>,
}

/// Measures it; ends early when `stop` is raised.
///
/// # Errors
/// The kernel lacks a feature, or a program fails.
pub fn run(what: &Stopped, stop: &AtomicBool) -> io::Result<Figures> {
    let senders = what.receivers.div_ceil(OF_SENDER) as usize;
    let tenants = STOPS + 1 + senders;
    let lan = Lan::create(&format!("stop-{}", std::process::id()), tenants, Wiring::Valve)?;
    let mut engine = Engine::new(tenants, ValeConfig::default());
    for i in 0..tenants {
        let port = ValvePort::open(lan.veth(i), &ValveConfig::default())?;
        engine.plug(i, &format!("tenant-{i}"), Box::new(port), Access::default())?;
        engine.give(Lan::mac(i), 0, i);
    }
    let remote = engine.remote()?;
    let counts = Counts {
        end: AtomicBool::new(false),
        floods: AtomicBool::new(false),
        received: AtomicU64::new(0),
        sent: (0..what.receivers).map(|_| AtomicU64::new(0)).collect(),
    };
    let (engine_ends, end) = (AtomicBool::new(false), &counts.end);
    let mut sinks = Vec::new();
    let mut floods = Vec::new();
    for k in 0..what.receivers {
        let (to, tenant) = (Lan::socket(STOPS, PORT + k as u16), STOPS + 1 + (k / OF_SENDER) as usize);
        sinks.push(Sink::bind(lan.tenant(STOPS), to, PAYLOAD, 1)?);
        floods.push(Sender::new(lan.tenant(tenant), 0, to, PAYLOAD)?);
    }
    let mut sink = Sink::bind(lan.tenant(RECEIVES), Lan::socket(RECEIVES, PORT), PAYLOAD, 1)?;
    let mut sender = Sender::new(lan.tenant(SENDS), 0, Lan::socket(RECEIVES, PORT), PAYLOAD)?;
    std::thread::scope(|scope| {
        let running = scope.spawn(|| engine.run(&engine_ends));
        scope.spawn(move || while !end.load(Ordering::Relaxed) && sender.send(32).is_ok() {});
        let received = &counts.received;
        scope.spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let Ok(n) = sink.receive(64) else { return };
                received.fetch_add(n as u64, Ordering::Relaxed);
            }
        });
        for (flood, sent) in floods.into_iter().zip(&counts.sent) {
            let counts = &counts;
            scope.spawn(move || {
                let mut flood = flood;
                while !counts.end.load(Ordering::Relaxed) {
                    if !counts.floods.load(Ordering::Relaxed) {
                        // As rarely as a sender that waits for room: the windows differ in nothing else.
                        std::thread::sleep(Duration::from_millis(50));
                    } else if flood.send(32).is_err() {
                        return;
                    }
                    sent.store(flood.sent(), Ordering::Release);
                }
            });
        }
        let figures = measure(what, &counts, &remote, &mut sinks, stop);
        counts.end.store(true, Ordering::Relaxed);
        engine_ends.store(true, Ordering::Relaxed);
        // The engine looks once more.
        let _ = remote.post(|_| ());
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        figures
    })
}

fn measure(
    what: &Stopped,
    counts: &Counts,
    remote: &Remote<Engine>,
    sinks: &mut [Sink],
    stop: &AtomicBool,
) -> io::Result<Figures> {
    let window = || {
        let (before, start) = (counts.received.load(Ordering::Relaxed), Instant::now());
        while start.elapsed() < what.time && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        (counts.received.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64() / 1e3
    };
    let stuck_now = || -> io::Result<u64> {
        let report = remote.run(|engine| engine.report(STOPS))?.unwrap_or_default();
        Ok(report.own.iter().find(|(name, _)| *name == "sockets_stuck_now").map_or(0, |(_, n)| *n))
    };
    let is_stopped = || stop.load(Ordering::Relaxed);
    let (mut with, mut without, mut ratios, mut stuck) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..what.turns {
        let alone = window();
        if is_stopped() {
            break;
        }
        counts.floods.store(true, Ordering::Relaxed);
        let (start, mut most, mut grew) = (Instant::now(), 0, Instant::now());
        while most < what.receivers.into()
            && start.elapsed() < FILL_AT_MOST
            && grew.elapsed() < FILLS_WITHIN
            && !is_stopped()
        {
            std::thread::sleep(Duration::from_millis(20));
            let stuck = stuck_now()?;
            if stuck > most {
                (most, grew) = (stuck, Instant::now());
            }
        }
        let beside = window();
        let stuck_then = stuck_now()?;
        counts.floods.store(false, Ordering::Relaxed);
        drain(counts, sinks, stop)?;
        if is_stopped() {
            break;
        }
        stuck.push(stuck_then);
        with.push(beside);
        without.push(alone);
        ratios.push(beside / alone.max(f64::MIN_POSITIVE));
    }
    let stuck = stuck.into_iter().min().unwrap_or_default();
    let sent: u64 = counts.sent.iter().map(|sent| sent.load(Ordering::Acquire)).sum();
    let received: u64 = sinks.iter().map(Sink::received).sum();
    let ratio_least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let ratio_most = ratios.iter().copied().fold(0.0, f64::max);
    let [with_kpps, without_kpps, ratio] = [with, without, ratios].map(|mut values| median(&mut values));
    Ok(Figures {
        receivers: what.receivers,
        stuck,
        with_kpps,
        without_kpps,
        ratio,
        ratio_least,
        ratio_most,
        lost: sent.saturating_sub(received),
        sent,
    })
}

/// All programs read, until they have what was sent to them.
fn drain(counts: &Counts, sinks: &mut [Sink], stop: &AtomicBool) -> io::Result<()> {
    // A sender that waits for room ends its call within 50 ms.
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..20 {
        let mut missing = 0;
        for (sink, sent) in sinks.iter_mut().zip(&counts.sent) {
            while sink.received() < sent.load(Ordering::Acquire) && sink.receive(64)? > 0 {}
            missing += sent.load(Ordering::Acquire).saturating_sub(sink.received());
        }
        if missing == 0 || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

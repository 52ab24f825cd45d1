//! Traffic for a while, what arrives of it while time goes by, and how soon large flows are on their new paths.

use super::fault::{Fault, What};
use super::network::{Network, check};
use super::pattern::{Job, Pattern};
use super::traffic::{Traffic, Transport, reach};
use crate::machine::Ticks;
use serde::Serialize;
use serde_json::Value;
use sluicenet_experiment::run::mbps;
use sluicenet_proto::frame::HostId;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often what has arrived is written down.
const INTERVAL: Duration = Duration::from_millis(100);
/// Between two runs: the last one's flows are no large ones any more, whose rate the controller judges over a second, and no part of what a classifier
/// knows of its ports, which is of the period that runs and the one before.
const PAUSE: Duration = Duration::from_millis(2_000);
/// How often ports are looked at while a flow is waited for.
const LOOK: Duration = Duration::from_millis(2);
/// How long a flow may take to be on another path, or to be known to stay.
const MOVE_PATIENCE: Duration = Duration::from_secs(3);
/// Frames at a port that are of the flow, and not one that asks for an address.
const FRAMES_MIN: u64 = 3;

/// What is sent.
#[derive(Clone, Debug)]
pub struct Load {
    /// Who sends to whom.
    pub pattern: Pattern,
    /// Over what.
    pub transport: Transport,
    /// Bytes of each flow; default endless.
    pub bytes: Option<u64>,
    /// For how long, at most.
    pub seconds: Duration,
    /// Of these, those that do not count for means.
    pub warm_up: Duration,
    /// What happens meanwhile, in order.
    pub faults: Vec<Fault>,
    /// Of the pattern, of the ports flows come from, of hashes and of annealing.
    pub seed: u64,
}

/// Rates of an interval after the other.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Course {
    /// Ends of the intervals, in seconds from the beginning.
    pub at_s: Vec<f64>,
    /// All flows together.
    pub total_mbps: Vec<f64>,
}

/// A flow.
#[derive(Clone, Debug, Serialize)]
pub struct FlowResult {
    /// Who sends, by number.
    pub src: HostId,
    /// Who receives.
    pub dst: HostId,
    /// Of a program's bytes, after the warm-up.
    pub mbps: f64,
    /// From its first byte to its last one's arrival, of one that has an end.
    pub seconds: Option<f64>,
    /// Rates while time goes by.
    pub course_mbps: Vec<f64>,
}

/// What one traffic came to.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// How packets found their way.
    pub routing: String,
    /// Who sent to whom.
    pub pattern: String,
    /// Over what.
    pub transport: Transport,
    /// The hosts' congestion control, as Linux calls it, where it is TCP and the system says.
    pub congestion_control: Option<String>,
    /// Bytes of each flow that had an end.
    pub bytes: Option<u64>,
    /// Of the pattern and of hashes.
    pub seed: u64,
    /// A program's bytes, of all flows, after the warm-up.
    pub total_mbps: f64,
    /// What the links of all hosts carry of them.
    pub ideal_mbps: f64,
    /// The one of the other.
    pub percent: f64,
    /// How long it took.
    pub seconds: f64,
    /// When it began, on the clock of [`Measured::controller`].
    pub began_at_s: f64,
    /// Part of the time of the machine's processors that nobody used meanwhile; absent where the system does not say.
    pub idle: Option<f64>,
    /// Every flow.
    pub flows: Vec<FlowResult>,
    /// All together.
    pub course: Course,
    /// When what happened, in seconds.
    pub faults: Vec<(f64, String)>,
    /// What the controller said meanwhile.
    pub controller: Vec<Value>,
}

/// Has hosts send for a while.
///
/// # Errors
/// What the network refuses; nobody can be reached; somebody wants it to end.
pub fn measure(network: &mut Network, routing: &str, load: &Load, stop: &AtomicBool) -> io::Result<Measured> {
    let invalid = |e: String| io::Error::new(io::ErrorKind::InvalidInput, e);
    let jobs = load.pattern.jobs(network.tree(), load.seed).map_err(invalid)?;
    reach(network, &jobs, stop)?;
    std::thread::sleep(PAUSE);
    let from = network.said(0).len();
    let traffic = Traffic::start(network, &jobs, load.transport, load.bytes, load.seed)?;
    let (begun, began_at_s, ticks) = (Instant::now(), monotonic_s(), Ticks::now().ok());
    let mut faults = load.faults.iter().peekable();
    let mut happened = Vec::new();
    let mut marks: Vec<(f64, Vec<u64>)> = vec![(0.0, vec![0; traffic.flows.len()])];
    let mut next = INTERVAL;
    loop {
        let passed = begun.elapsed();
        if passed >= load.seconds || load.bytes.is_some() && traffic.is_done() {
            break;
        }
        check(stop)?;
        if let Some(fault) = faults.next_if(|fault| fault.after <= passed) {
            happened.push((passed.as_secs_f64(), fault.what.to_string()));
            fault.happen(network, routing, load.seed)?;
            continue;
        }
        let wake = faults.peek().map_or(next, |fault| fault.after.min(next)).min(load.seconds);
        std::thread::sleep(wake.saturating_sub(passed));
        if begun.elapsed() >= next {
            marks.push((begun.elapsed().as_secs_f64(), arrived(&traffic)));
            next = begun.elapsed() + INTERVAL;
        }
    }
    marks.push((begun.elapsed().as_secs_f64(), arrived(&traffic)));
    let idle = ticks.zip(Ticks::now().ok()).map(|(before, now)| now.idle_since(before));
    let flows = traffic.flows.clone();
    drop(traffic);
    // A slow machine takes its time to start a controller: what it finds belongs to the run.
    if load.faults.iter().any(|fault| fault.what == What::StartController) {
        network.wait_for_controller(stop)?;
    }
    let hosts = f64::from(network.tree().hosts());
    let ideal_mbps = hosts * network.settings.rate_bps as f64 / 1e6 * load.transport.goodput();
    let last = &marks[marks.len() - 1];
    let warm = load.warm_up.as_secs_f64();
    let first = marks.iter().find(|(at, _)| *at >= warm && *at < last.0).unwrap_or(&marks[0]);
    let flow = |i: usize| {
        let course = marks.windows(2).map(|w| mbps(w[1].1[i] - w[0].1[i], (w[1].0 - w[0].0).max(1e-9))).collect();
        let seconds = match flows[i].times() {
            (Some(begin), Some(end)) => Some(end.saturating_duration_since(begin).as_secs_f64()),
            _ => None,
        };
        let rate = mbps(last.1[i] - first.1[i], (last.0 - first.0).max(1e-9));
        FlowResult { src: flows[i].src, dst: flows[i].dst, mbps: rate, seconds, course_mbps: course }
    };
    let results: Vec<FlowResult> = (0..flows.len()).map(flow).collect();
    let total_mbps: f64 = results.iter().map(|flow| flow.mbps).sum();
    let course = Course {
        at_s: marks[1..].iter().map(|mark| mark.0).collect(),
        total_mbps: (1..marks.len()).map(|k| results.iter().map(|flow| flow.course_mbps[k - 1]).sum()).collect(),
    };
    Ok(Measured {
        routing: routing.into(),
        pattern: load.pattern.to_string(),
        transport: load.transport,
        congestion_control: (load.transport == Transport::Tcp).then(congestion_control).flatten(),
        bytes: load.bytes,
        seed: load.seed,
        total_mbps,
        ideal_mbps,
        percent: 100.0 * total_mbps / ideal_mbps,
        seconds: last.0,
        began_at_s,
        idle,
        flows: results,
        course,
        faults: happened,
        controller: network.said(from),
    })
}

/// What new namespaces, and so the hosts, begin with: that of the one the testbed is started in.
fn congestion_control() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok()?;
    Some(name.trim().to_owned())
}

/// The clock that the controller's words have.
fn monotonic_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The devices by which a flow goes up on the path it was given last, by what the controller said.
fn given(said: &[Value], ends: [Option<Ipv4Addr>; 2]) -> Option<Vec<String>> {
    let [src, dst] = ends.map(|address| address.map(|a| a.to_string()));
    let is_its = |line: &&Value| {
        line["event"] == "placed" && line["src"].as_str() == src.as_deref() && line["dst"].as_str() == dst.as_deref()
    };
    let path = said.iter().rfind(is_its)?["path"].as_array()?;
    path.iter().map(|hop| Some(format!("{}p{}", hop[0].as_str()?, hop[1].as_u64()? + 1))).collect()
}

fn arrived(traffic: &Traffic) -> Vec<u64> {
    traffic.flows.iter().map(|flow| flow.arrived.load(Ordering::Relaxed)).collect()
}

/// What became of a flow that a controller is to give a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    /// Its packets were seen on the path it was given.
    Moved,
    /// It was given the path that its packets had taken from the beginning.
    Stayed,
    /// It was given another path, on which no packets were seen.
    NotMoved,
    /// It was given no path.
    NotPlaced,
}

/// A flow that a controller is to give a path, and what was seen of it.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// Who sends.
    pub src: HostId,
    /// Who receives.
    pub dst: HostId,
    /// What became of it.
    pub became: Became,
    /// From its first packet to its first ones on the new path, in milliseconds, where it moved.
    pub moved_ms: Option<f64>,
}

/// Has one flow after the other begin, at the full rate of its link, and sees by the counters of the switches' ports when its packets take
/// another path; where they take none, what the controller said tells why. With all it said meanwhile.
///
/// # Errors
/// As [`measure`].
pub fn control_loop(
    network: &mut Network,
    count: u32,
    seed: u64,
    stop: &AtomicBool,
) -> io::Result<(Vec<Seen>, Vec<Value>)> {
    let tree = network.tree();
    let from = network.said(0).len();
    let mut upward = network.upward()?;
    let mut seen = Vec::new();
    for n in 0..count {
        check(stop)?;
        let src = n % tree.hosts();
        let dst = (src + tree.hosts() / 2) % tree.hosts();
        let jobs = [Job { src, to: vec![dst] }];
        reach(network, &jobs, stop)?;
        std::thread::sleep(PAUSE);
        let before = upward.sent_frames()?;
        let traffic = Traffic::start(network, &jobs, Transport::Udp, None, seed + u64::from(n))?;
        let mut first: Vec<bool> = Vec::new();
        let until = Instant::now() + MOVE_PATIENCE;
        let spoken = network.said(0).len();
        let mut counted: Vec<u64> = Vec::new();
        let mut moved_ms = None;
        while Instant::now() < until && moved_ms.is_none() {
            std::thread::sleep(LOOK);
            let now = Instant::now();
            counted = upward.sent_frames()?.iter().zip(&before).map(|(new, old)| new.saturating_sub(*old)).collect();
            if first.is_empty() {
                // Up from the edge switch and up from the aggregation switch.
                if counted.iter().filter(|&&frames| frames >= FRAMES_MIN).count() >= 2 {
                    first = counted.iter().map(|&frames| frames > 0).collect();
                }
                continue;
            }
            let is_new = counted.iter().zip(&first).any(|(&frames, &had)| !had && frames >= FRAMES_MIN);
            if let (true, Some(begun)) = (is_new, traffic.flows[0].times().0) {
                moved_ms = Some(now.saturating_duration_since(begun).as_secs_f64() * 1e3);
            }
        }
        let carried = |device: &str| upward.devices().zip(&counted).any(|(d, &n)| d == device && n >= FRAMES_MIN);
        let became = match given(&network.said(spoken), [src, dst].map(|host| tree.host_address(host))) {
            _ if moved_ms.is_some() => Became::Moved,
            None => Became::NotPlaced,
            Some(devices) if devices.iter().all(|device| carried(device)) => Became::Stayed,
            Some(_) => Became::NotMoved,
        };
        seen.push(Seen { src, dst, became, moved_ms });
    }
    Ok((seen, network.said(from)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_path_a_flow_was_given_last() {
        let placed = |src: &str, path: Value| json!({ "event": "placed", "src": src, "dst": "10.2.0.2", "path": path });
        let ends = ["10.0.0.2", "10.2.0.2"].map(|a| a.parse().ok());
        let mut said = vec![
            placed("10.0.0.2", json!([["e0-0", 2], ["a0-0", 2]])),
            placed("10.0.0.2", json!([["e0-0", 3], ["a0-1", 2]])),
            placed("10.0.0.3", json!([["e0-0", 2], ["a0-0", 3]])),
            json!({ "event": "lost", "src": "10.0.0.2", "dst": "10.2.0.2" }),
        ];
        assert_eq!(given(&said, ends), Some(vec!["e0-0p4".to_owned(), "a0-1p3".to_owned()]));
        said.push(placed("10.0.0.2", Value::Null));
        assert_eq!(given(&said, ends), None, "no path any more");
        said.push(placed("10.0.0.2", json!([["e0-0"]])));
        assert_eq!((given(&said, ends), given(&[], ends)), (None, None));
    }
}

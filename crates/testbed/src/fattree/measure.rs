//! Sends traffic for a while, records received bytes over time, and measures how soon large flows use their new paths.

use super::fault::{Fault, What};
use super::network::Network;
use super::pattern::{Job, Pattern};
use super::traffic::{Traffic, Transport, reach};
use crate::machine::Ticks;
use crate::namespaces::check;
use serde::Serialize;
use serde_json::Value;
use sluicenet_experiment::run::mbps;
use sluicenet_proto::frame::HostId;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The interval between samples of the received bytes.
const INTERVAL: Duration = Duration::from_millis(100);
/// The pause between two runs. After it, flows of the last run are no longer large for the controller, which measures
/// rates over a second. A flow classifier, which knows the current period and the one before, has forgotten them too.
const PAUSE: Duration = Duration::from_millis(2_000);
/// The interval between reads of the ports' counters while waiting for a flow to move.
const LOOK: Duration = Duration::from_millis(2);
/// The time limit for a flow to take another path, or to be known to stay.
const MOVE_PATIENCE: Duration = Duration::from_secs(3);
/// The fewest frames at a port that show a flow and not an address request.
const FRAMES_MIN: u64 = 3;

/// The traffic of a measurement.
#[derive(Clone, Debug)]
pub struct Load {
    /// The pattern of senders and receivers.
    pub pattern: Pattern,
    /// The transport protocol.
    pub transport: Transport,
    /// Bytes of each flow; default endless.
    pub bytes: Option<u64>,
    /// The longest duration of the traffic.
    pub seconds: Duration,
    /// The part of this duration that means leave out.
    pub warm_up: Duration,
    /// Faults during the traffic, in order of time.
    pub faults: Vec<Fault>,
    /// The seed of the pattern, of source ports, of hashes and of annealing.
    pub seed: u64,
}

/// Rates in successive intervals.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Course {
    /// Ends of the intervals, in seconds from the beginning.
    pub at_s: Vec<f64>,
    /// The rate of all flows together.
    pub total_mbps: Vec<f64>,
}

/// The results of one flow.
#[derive(Clone, Debug, Serialize)]
pub struct FlowResult {
    /// The sender's number.
    pub src: HostId,
    /// The receiver's number.
    pub dst: HostId,
    /// The rate of application bytes after the warm-up.
    pub mbps: f64,
    /// Time from the first byte to the arrival of the last, if the flow has an end.
    pub seconds: Option<f64>,
    /// Rates in successive intervals.
    pub course_mbps: Vec<f64>,
}

/// The results of one measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The routing that the controller used.
    pub routing: String,
    /// The pattern of senders and receivers.
    pub pattern: String,
    /// The transport protocol.
    pub transport: Transport,
    /// The hosts' congestion control by its Linux name, for TCP, if the system tells.
    pub congestion_control: Option<String>,
    /// Bytes of each flow that had an end.
    pub bytes: Option<u64>,
    /// The seed of the pattern and of hashes.
    pub seed: u64,
    /// The rate of application bytes of all flows together, after the warm-up.
    pub total_mbps: f64,
    /// The rate of application bytes that the links of all hosts can carry.
    pub ideal_mbps: f64,
    /// `total_mbps` as a percentage of `ideal_mbps`.
    pub percent: f64,
    /// Duration of the traffic.
    pub seconds: f64,
    /// Start of the traffic, on the clock of [`Measured::controller`].
    pub began_at_s: f64,
    /// The share of the machine's processor time that was idle during the traffic; absent if the system does not tell.
    pub idle: Option<f64>,
    /// Every flow.
    pub flows: Vec<FlowResult>,
    /// The rates of all flows together over time.
    pub course: Course,
    /// Times of the faults in seconds, and the faults.
    pub faults: Vec<(f64, String)>,
    /// The controller's output during the traffic.
    pub controller: Vec<Value>,
}

/// Has the hosts send for a while.
///
/// # Errors
/// A request that the network refused, an unreachable receiver, or an interrupt.
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
    // A slow machine takes long to start a controller: the connections of its switches belong to the run.
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

/// The congestion control of new namespaces, and so of the hosts: that of the namespace in which the testbed is
/// started.
fn congestion_control() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").ok()?;
    Some(name.trim().to_owned())
}

/// The clock of the controller's output.
fn monotonic_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The devices by which a flow goes up on its last assigned path, from the controller's output.
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

/// The outcome of a flow that a controller should place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Became {
    /// The flow's packets were seen on its assigned path.
    Moved,
    /// The controller assigned the path that the flow's packets had taken from the beginning.
    Stayed,
    /// The controller assigned another path, on which no packets were seen.
    NotMoved,
    /// The controller assigned no path.
    NotPlaced,
}

/// A flow that a controller should place, and its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// The sender.
    pub src: HostId,
    /// The receiver.
    pub dst: HostId,
    /// The flow's outcome.
    pub became: Became,
    /// Time from the first packet to the first packets on the new path, in milliseconds, if the flow moved.
    pub moved_ms: Option<f64>,
}

/// Starts one flow after the other at the full rate of its link. The counters of the switches' ports show when its
/// packets take another path. If they take none, the controller's output tells the reason. Returns the flows and the
/// controller's output.
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
        let traffic = Traffic::start(network, &jobs, Transport::Udp, None, seed.wrapping_add(n.into()))?;
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
                // A flow goes up from the edge switch and from the aggregation switch.
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

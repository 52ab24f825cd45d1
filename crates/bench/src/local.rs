//! Costs of the switch for programs that do not fill it: the time of a round trip, the processor time while nothing
//! moves, and the cost of a stopped receiver for others.

use super::ports::PortsError;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use serde::Serialize;
use sluicenet_dataplane::engine::{Access, Engine};
use sluicenet_dataplane::shm::{self, Client};
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_proto::guard::Guard;
use sluicenet_wire::ethernet::MacAddress;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A switch on a thread of its own, which stops when this is dropped.
struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<std::io::Result<()>>>,
    remote: sluicenet_dataplane::remote::Remote<Engine>,
}

impl Running {
    fn start(ports: usize) -> Result<(Running, Vec<(shm::Access, Client)>), PortsError> {
        // No waiting program is given up here.
        let mut engine = Engine::new(ports, ValeConfig { watchdog: WatchdogConfig::OFF, ..ValeConfig::default() });
        let mut clients = Vec::new();
        for k in 0..ports {
            let access = engine.plug_shm(k, &format!("bench-{k}"), 1024)?;
            engine.give(mac(k), 0, k);
            let client = Client::open(access.memory.try_clone()?)?;
            clients.push((access, client));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, remote) = (stop.clone(), engine.remote()?);
        let thread = std::thread::spawn(move || engine.run(&stopped));
        Ok((Running { stop, thread: Some(thread), remote }, clients))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.remote.post(|_| {});
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn mac(port: usize) -> [u8; 6] {
    let [high, low] = (port as u16).to_be_bytes();
    [2, 0, 0, 1, high, low]
}

fn frame(from: usize, to: usize) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(from));
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Shows the client's queues to the switch, and wakes the switch if it sleeps.
fn publish((access, client): &mut (shm::Access, Client)) {
    if client.publish() {
        let _ = rustix::io::write(&access.kick, &1u64.to_ne_bytes());
    }
}

/// A round trip through the switch, there and back, and one without it.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Round trips measured.
    pub trips: u64,
    /// Half of them took no longer than this, in microseconds.
    pub p50_us: f64,
    /// 99 % of them.
    pub p99_us: f64,
    /// 99.9 % of them.
    pub p999_us: f64,
    /// Half of the round trips between the same two threads without a switch, through one word of memory, took no longer.
    pub direct_p50_us: f64,
    /// Time that the switch adds to the direct round trip.
    pub added_p50_us: f64,
}

/// Measures round trips of one frame at a time: the programs on one core, the switch on another.
pub fn latency(time: Duration, interrupt: &AtomicBool) -> Result<Latency, PortsError> {
    let (running, mut clients) = Running::start(2)?;
    let (there, back) = (frame(0, 1), frame(1, 0));
    let mut into = [0; 64];
    let mut trips = Vec::new();
    let until = Instant::now() + time;
    let trip = |clients: &mut Vec<(shm::Access, Client)>, into: &mut [u8]| -> Result<(), PortsError> {
        for (from, to, frame) in [(0, 1, &there), (1, 0, &back)] {
            while !clients[from].1.send(frame)? {}
            publish(&mut clients[from]);
            while clients[to].1.receive(into)?.is_none() {
                std::hint::spin_loop();
            }
            publish(&mut clients[to]);
        }
        Ok(())
    };
    for _ in 0..1000 {
        trip(&mut clients, &mut into)?;
    }
    while (trips.is_empty() || Instant::now() < until) && !interrupt.load(Ordering::Relaxed) {
        let before = Instant::now();
        trip(&mut clients, &mut into)?;
        trips.push(before.elapsed());
    }
    drop(running);
    let direct = direct(time / 4);
    trips.sort_unstable();
    let at = |trips: &[Duration], share: f64| {
        trips.get((trips.len() as f64 * share) as usize).map_or(f64::NAN, |t| t.as_secs_f64() * 1e6)
    };
    let (p50_us, direct_p50_us) = (at(&trips, 0.5), at(&direct, 0.5));
    if direct_p50_us > p50_us {
        return Err(PortsError::NoBaseline);
    }
    Ok(Latency {
        trips: trips.len() as u64,
        p50_us,
        p99_us: at(&trips, 0.99),
        p999_us: at(&trips, 0.999),
        direct_p50_us,
        added_p50_us: p50_us - direct_p50_us,
    })
}

/// Two round trips of a word between two threads, as often as a frame changes threads when it goes there and back.
fn direct(time: Duration) -> Vec<Duration> {
    use std::sync::atomic::AtomicU64;
    let word = AtomicU64::new(0);
    let mut trips = Vec::new();
    std::thread::scope(|scope| {
        let (word, others) = (&word, other_cores());
        scope.spawn(move || {
            // Where that is refused the two may share a core, which shows.
            let _ = others.map(|others| sched_setaffinity(None, &others));
            loop {
                match word.load(Ordering::Acquire) {
                    u64::MAX => return,
                    odd if odd % 2 == 1 => word.store(odd + 1, Ordering::Release),
                    _ => std::hint::spin_loop(),
                }
            }
        });
        let until = Instant::now() + time;
        let mut at = 0;
        while trips.is_empty() || Instant::now() < until {
            let before = Instant::now();
            for _ in 0..2 {
                word.store(at + 1, Ordering::Release);
                while word.load(Ordering::Acquire) != at + 2 {
                    std::hint::spin_loop();
                }
                at += 2;
            }
            trips.push(before.elapsed());
        }
        word.store(u64::MAX, Ordering::Release);
    });
    trips.sort_unstable();
    trips
}

/// Where others may run than the core that this thread is on now, if there is any.
fn other_cores() -> Option<CpuSet> {
    let mut others = sched_getaffinity(None).ok()?;
    others.unset(sched_getcpu());
    (others.count() > 0).then_some(others)
}

/// The processor while nothing moves.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    /// Ports, a program at each.
    pub ports: usize,
    /// How long it was looked at.
    pub seconds: f64,
    /// Processor time, in percent of one core.
    pub cpu_percent: f64,
    /// Times the switch woke and slept again, a second.
    pub wakes_per_second: f64,
}

/// Measures the processor time of a switch at which nothing moves.
pub fn idle(ports: usize, time: Duration) -> Result<Idle, PortsError> {
    let (running, _clients) = Running::start(ports)?;
    std::thread::sleep(Duration::from_millis(50));
    let sleeps = || running.remote.run(|engine| engine.sleeps());
    let (slept, cpu, started) = (sleeps()?, cpu_time(), Instant::now());
    std::thread::sleep(time);
    let (used, seconds) = (cpu_time().saturating_sub(cpu), started.elapsed().as_secs_f64());
    let wakes = sleeps()?.saturating_sub(slept);
    Ok(Idle {
        ports,
        seconds,
        cpu_percent: used.as_secs_f64() / seconds * 100.0,
        wakes_per_second: wakes as f64 / seconds,
    })
}

/// Processor time of this process, all threads.
pub(super) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Cost of a stopped receiver for others.
#[derive(Clone, Debug, Serialize)]
pub struct Blocked {
    /// Rounds, each of them once without and once with the stopped receiver.
    pub rounds: usize,
    /// Frames a second from one port to another, in millions, while no other port sends: the median of the rounds.
    pub alone_mpps: f64,
    /// Frames a second while two others are held back by a receiver that takes nothing, its output and their inputs
    /// full.
    pub beside_stopped_mpps: f64,
    /// Cost of the stopped receiver, in percent: the median of the rounds; negative when there is none.
    pub cost_percent: f64,
    /// In the round in which it cost least.
    pub least_cost_percent: f64,
    /// In the round in which it cost most.
    pub most_cost_percent: f64,
    /// Times the others were found to be held back, in the round in which that was seldom.
    pub held_back: u64,
    /// Frames that waited for the stopped receiver at its output, in the round in which these were fewest.
    pub output_frames: u32,
    /// Lost frames of all ports.
    pub lost: u64,
}

/// Frames in a queue, and buffers of a program, half of them to send with. Two senders have more frames than the
/// receiver's buffers, its output and their inputs hold.
const BLOCKED_SLOTS: u32 = 64;
const BLOCKED_BUFFERS: u32 = 1024;

/// One flow for a while, alone or beside two senders to a stopped receiver.
struct Slice {
    mpps: f64,
    held_back: u64,
    output: u32,
    lost: u64,
}

fn slice(stopped: bool, time: Duration) -> Result<Slice, PortsError> {
    let mut engine =
        Engine::new(5, ValeConfig { watchdog: WatchdogConfig::OFF, slots: BLOCKED_SLOTS, ..ValeConfig::default() });
    let mut clients = Vec::new();
    for k in 0..5 {
        let access = engine.plug_shm(k, &format!("bench-{k}"), BLOCKED_BUFFERS)?;
        engine.give(mac(k), 0, k);
        clients.push(Client::open(access.memory)?);
    }
    let (flow, others) = (frame(0, 1), [frame(2, 4), frame(3, 4)]);
    let (mut sent, mut received) = (0u64, 0u64);
    let mut into = [0; 64];
    let press = |clients: &mut [Client]| -> Result<u64, PortsError> {
        let mut more = 0;
        for (client, frame) in clients[2..4].iter_mut().zip(&others) {
            while client.send(frame)? {
                more += 1;
            }
            let _ = client.publish();
        }
        Ok(more)
    };
    // Until nothing of theirs moves any more.
    if stopped {
        loop {
            let more = press(&mut clients)?;
            sent += more;
            if engine.round() == 0 && more == 0 {
                break;
            }
        }
    }
    let (before, started) = (received, Instant::now());
    while received == before || started.elapsed() < time {
        for turn in 0..64 {
            for _ in 0..32 {
                sent += u64::from(clients[0].send(&flow)?);
            }
            let _ = clients[0].publish();
            // A sender that is held back sleeps, and looks again only now and then.
            if stopped && turn == 0 {
                sent += press(&mut clients)?;
            }
            engine.round();
            while clients[1].receive(&mut into)?.is_some() {
                received += 1;
            }
            let _ = clients[1].publish();
        }
    }
    let mpps = received as f64 / started.elapsed().as_secs_f64() / 1e6;
    let held = |k| engine.report(k).map_or(0, |r| r.counters.held_back);
    let held_back = held(2).min(held(3));
    let output = engine.report(4).map_or(0, |r| r.output.iter().sum());
    loop {
        let moved = engine.round() > 0 || engine.queued() > 0;
        let mut came = 0;
        for client in [1, 4] {
            while clients[client].receive(&mut into)?.is_some() {
                came += 1;
            }
            let _ = clients[client].publish();
        }
        received += came;
        if !moved && came == 0 {
            break;
        }
    }
    Ok(Slice { mpps, held_back, output, lost: sent - received })
}

/// Measures one flow with and without others that wait for a receiver that has stopped, in turn, on one core.
///
/// # Errors
/// When the others were not held back: then nothing was measured.
pub fn blocked(time: Duration, interrupt: &AtomicBool) -> Result<Blocked, PortsError> {
    const ROUNDS: u32 = 10;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        if interrupt.load(Ordering::Relaxed) {
            break;
        }
        rounds.push((slice(false, time / (2 * ROUNDS))?, slice(true, time / (2 * ROUNDS))?));
    }
    let held_back = rounds.iter().map(|(_, s)| s.held_back).min().unwrap_or(0);
    let output_frames = rounds.iter().map(|(_, s)| s.output).min().unwrap_or(0);
    if !rounds.is_empty() && (held_back == 0 || output_frames < BLOCKED_SLOTS) {
        return Err(PortsError::NobodyHeldBack);
    }
    let sorted = |of: &dyn Fn(&(Slice, Slice)) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let median = |values: &[f64]| values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
    let cost = sorted(&|(alone, beside)| (1.0 - beside.mpps / alone.mpps) * 100.0);
    Ok(Blocked {
        rounds: rounds.len(),
        alone_mpps: median(&sorted(&|r| r.0.mpps)),
        beside_stopped_mpps: median(&sorted(&|r| r.1.mpps)),
        cost_percent: median(&cost),
        least_cost_percent: cost.first().copied().unwrap_or(f64::NAN),
        most_cost_percent: cost.last().copied().unwrap_or(f64::NAN),
        held_back,
        output_frames,
        lost: rounds.iter().map(|(a, b)| a.lost + b.lost).sum(),
    })
}

/// Cost of a port that sends forged frames for others.
#[derive(Clone, Debug, Serialize)]
pub struct Spoofed {
    /// Rounds, each of them once without a third sender, once with the attacker, and once with an honest sender.
    pub rounds: usize,
    /// Frames a second between two locked ports, in millions, while no other port sends: the median of the rounds. The third
    /// program has a core of its own in a switch that is under attack, so its own time is never counted.
    pub alone_mpps: f64,
    /// Frames a second while a third locked port always has forged frames to send.
    pub beside_attacker_mpps: f64,
    /// Frames a second while that port sends as many frames that it may send, to a fourth port.
    pub beside_honest_mpps: f64,
    /// Cost of the attacker, in percent: the median of the rounds; negative when there is none.
    pub cost_percent: f64,
    /// In the round in which it cost least.
    pub least_cost_percent: f64,
    /// In the round in which it cost most.
    pub most_cost_percent: f64,
    /// Cost of the honest sender.
    pub honest_cost_percent: f64,
    /// Cost of the attacker if its program has the same core, so that its time counts too.
    pub same_core_cost_percent: f64,
    /// Forged frames that were counted at the attacker.
    pub refused: u64,
    /// Frames of the honest sender.
    pub honest: u64,
    /// Forged frames that reached another port.
    pub arrived: u64,
    /// Lost frames of the others.
    pub lost: u64,
}

/// What one part of a round saw.
#[derive(Default)]
struct Campaign {
    mpps: f64,
    /// The rate if the time of the third program counts.
    same_core_mpps: f64,
    refused: u64,
    honest: u64,
    arrived: u64,
    lost: u64,
}

/// What the third port sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Third {
    Nothing,
    /// As many as the switch takes.
    Forged,
    /// As many as it takes of an attacker.
    Honest,
}

fn own(port: usize) -> Access {
    let addresses = Some(vec![IpAddr::from([10, 0, 0, port as u8 + 1]).into()]);
    let guard = Guard { macs: vec![MacAddress(mac(port))], addresses, router: false, dhcp_server: false };
    Access { guard: Some(Arc::new(guard)), ..Access::default() }
}

/// A datagram in an Ethernet frame.
fn datagram(from: usize, to: usize, address: u8, ports: [u8; 4]) -> Vec<u8> {
    let mut frame = frame(from, to);
    frame[12..24].copy_from_slice(&[0x08, 0x00, 0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, address, 10, 0, 0, to as u8 + 1]);
    frame[34..38].copy_from_slice(&ports);
    frame
}

/// Frames that port 2 may not send: by MAC, IPv4, ARP, IPv6 and DHCP.
fn forged() -> Vec<Vec<u8>> {
    let typed = |kind: [u8; 2], start: &[u8]| {
        let mut frame = frame(2, 1);
        frame[12..14].copy_from_slice(&kind);
        frame[14..14 + start.len()].copy_from_slice(start);
        frame
    };
    vec![
        frame(0, 1),
        datagram(2, 1, 1, [0x10, 0, 0x10, 0]),
        typed([0x08, 0x06], &[0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 1, 2, 10, 0, 0, 1]),
        typed([0x86, 0xDD], &[0x60, 0, 0, 0, 0, 10, 17, 64, 0x20, 1, 0x0D, 0xB8]),
        datagram(2, 1, 3, [0, 67, 0, 68]),
    ]
}

/// Rounds between two turns of the third program.
const TURNS: usize = 64;

fn campaign(third: Third, time: Duration) -> Result<Campaign, PortsError> {
    let mut engine = Engine::new(4, ValeConfig { watchdog: WatchdogConfig::OFF, ..ValeConfig::default() });
    let mut clients = Vec::new();
    for k in 0..4 {
        let access = engine.plug_shm(k, &format!("bench-{k}"), BLOCKED_BUFFERS)?;
        engine.set_access(k, own(k));
        engine.give(mac(k), 0, k);
        clients.push(Client::open(access.memory)?);
    }
    let (flow, forged) = (datagram(0, 1, 1, [0x10, 0, 0x10, 0]), forged());
    let allowed = datagram(2, 3, 3, [0x10, 0, 0x10, 0]);
    let (mut sent, mut received, mut arrived, mut next, mut honest) = (0u64, 0u64, 0u64, 0, 0u64);
    let mut into = [0; 64];
    let (started, mut others) = (Instant::now(), Duration::ZERO);
    while received == 0 || started.elapsed() < time {
        for turn in 0..TURNS {
            for _ in 0..32 {
                sent += u64::from(clients[0].send(&flow)?);
            }
            let _ = clients[0].publish();
            if turn == 0 && third != Third::Nothing {
                let before = Instant::now();
                match third {
                    Third::Nothing => {}
                    Third::Forged => {
                        while clients[2].send(&forged[next % forged.len()])? {
                            next += 1;
                        }
                    }
                    Third::Honest => {
                        for _ in 0..TURNS {
                            honest += u64::from(clients[2].send(&allowed)?);
                        }
                        while clients[3].receive(&mut into)?.is_some() {}
                        let _ = clients[3].publish();
                    }
                }
                let _ = clients[2].publish();
                others += before.elapsed();
            }
            engine.round();
            while clients[1].receive(&mut into)?.is_some() {
                let is_honest = into == flow[..];
                (received, arrived) = (received + u64::from(is_honest), arrived + u64::from(!is_honest));
            }
            let _ = clients[1].publish();
        }
    }
    let took = started.elapsed();
    let [mpps, same_core_mpps] = [took - others, took].map(|took| received as f64 / took.as_secs_f64() / 1e6);
    while engine.round() > 0 || engine.queued() > 0 {
        for k in [1, 3] {
            while clients[k].receive(&mut into)?.is_some() {
                let is_honest = into == flow[..];
                if k == 1 {
                    (received, arrived) = (received + u64::from(is_honest), arrived + u64::from(!is_honest));
                }
            }
            let _ = clients[k].publish();
        }
    }
    let refused = engine.report(2).map_or(0, |r| r.counters.refused.total_frames());
    Ok(Campaign { mpps, same_core_mpps, refused, honest, arrived, lost: sent - received })
}

/// Measures one flow between locked ports with and without a third one that sends forged frames, in turn, on one core.
///
/// # Errors
/// Memory was not to be had.
pub fn spoofed(time: Duration, interrupt: &AtomicBool) -> Result<Spoofed, PortsError> {
    const ROUNDS: u32 = 20;
    const PARTS: [Third; 3] = [Third::Nothing, Third::Forged, Third::Honest];
    let mut rounds: Vec<[Campaign; 3]> = Vec::new();
    for _ in 0..ROUNDS {
        if interrupt.load(Ordering::Relaxed) {
            break;
        }
        let mut round = [(); 3].map(|()| Campaign::default());
        for (part, third) in round.iter_mut().zip(PARTS) {
            *part = campaign(third, time / (3 * ROUNDS))?;
        }
        rounds.push(round);
    }
    let sorted = |of: &dyn Fn(&[Campaign; 3]) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let median = |values: &[f64]| values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
    let cost = sorted(&|[alone, beside, _]| (1.0 - beside.mpps / alone.mpps) * 100.0);
    Ok(Spoofed {
        rounds: rounds.len(),
        alone_mpps: median(&sorted(&|r| r[0].mpps)),
        beside_attacker_mpps: median(&sorted(&|r| r[1].mpps)),
        beside_honest_mpps: median(&sorted(&|r| r[2].mpps)),
        cost_percent: median(&cost),
        least_cost_percent: cost.first().copied().unwrap_or(f64::NAN),
        most_cost_percent: cost.last().copied().unwrap_or(f64::NAN),
        honest_cost_percent: median(&sorted(&|[alone, _, beside]| (1.0 - beside.mpps / alone.mpps) * 100.0)),
        same_core_cost_percent: median(&sorted(&|[alone, beside, _]| {
            (1.0 - beside.same_core_mpps / alone.same_core_mpps) * 100.0
        })),
        refused: rounds.iter().map(|r| r[1].refused).sum(),
        honest: rounds.iter().map(|r| r[2].honest).sum(),
        arrived: rounds.iter().flatten().map(|part| part.arrived).sum(),
        lost: rounds.iter().flatten().map(|part| part.lost).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_there() {
        let never = AtomicBool::new(false);
        // Even where the machine has time for each of them once only.
        match latency(Duration::ZERO, &never) {
            Ok(l) => {
                assert!(l.trips > 0 && l.p50_us <= l.p99_us && l.direct_p50_us > 0.0 && l.added_p50_us >= 0.0, "{l:?}")
            }
            // Other tests run beside this one: times that could not be measured are refused.
            Err(e) => assert!(matches!(e, PortsError::NoBaseline), "{e}"),
        }
        let blocked = blocked(Duration::ZERO, &never).unwrap();
        assert!(blocked.lost == 0 && blocked.alone_mpps > 0.0 && blocked.beside_stopped_mpps > 0.0, "{blocked:?}");
        assert!(blocked.held_back > 0 && blocked.output_frames >= BLOCKED_SLOTS && blocked.rounds == 10, "{blocked:?}");
        assert!(blocked.least_cost_percent <= blocked.cost_percent, "{blocked:?}");
        let spoofed = spoofed(Duration::ZERO, &never).unwrap();
        assert!(spoofed.refused > 0 && spoofed.arrived + spoofed.lost == 0, "{spoofed:?}");
        let slept = || idle(3, Duration::from_millis(100)).unwrap().wakes_per_second > 0.0;
        assert!((0..300).any(|_| slept()), "a switch at which nothing moves never sleeps");
    }
}

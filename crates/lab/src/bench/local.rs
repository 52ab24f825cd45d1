//! What the switch costs those who do not fill it: the time of a round trip, the processor while nothing moves, and what a
//! receiver that has stopped costs others.

use super::ports::PortsError;
use serde::Serialize;
use sluicenet_dataplane::engine::Engine;
use sluicenet_dataplane::shm::{Access, Client};
use sluicenet_node::vale::{Action, ValeConfig};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A switch on a thread of its own, which stops when this is dropped.
struct Running {
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<std::io::Result<()>>>,
    remote: sluicenet_dataplane::remote::Remote,
}

impl Running {
    fn start(ports: usize) -> Result<(Running, Vec<(Access, Client)>), PortsError> {
        // Nobody who waits here is given up.
        let mut engine = Engine::new(ports, ValeConfig { action: Action::Off, ..ValeConfig::default() });
        let mut clients = Vec::new();
        for k in 0..ports {
            let access = engine.plug_shm(k, &format!("bench-{k}"), 1024)?;
            engine.give(mac(k), 0, k);
            let client = Client::open(access.memory.try_clone()?)?;
            clients.push((access, client));
        }
        let stop = std::sync::Arc::new(AtomicBool::new(false));
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
    [2, 0, 0, 0, 1, port as u8]
}

fn frame(from: usize, to: usize) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(from));
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Shows the switch what was done, and wakes it if it sleeps.
fn publish((access, client): &mut (Access, Client)) {
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
    /// What the switch adds to that.
    pub added_p50_us: f64,
}

/// Measures round trips of one frame at a time: the programs on one core, the switch on another.
pub fn latency(time: Duration, interrupt: &AtomicBool) -> Result<Latency, PortsError> {
    let (running, mut clients) = Running::start(2)?;
    let (there, back) = (frame(0, 1), frame(1, 0));
    let mut into = [0; 64];
    let mut trips = Vec::new();
    let until = Instant::now() + time;
    let trip = |clients: &mut Vec<(Access, Client)>, into: &mut [u8]| -> Result<(), PortsError> {
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
        scope.spawn(|| {
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

/// The processor while nothing moves.
#[derive(Clone, Debug, Serialize)]
pub struct Idle {
    /// Ports, a program at each.
    pub ports: usize,
    /// How long it was looked at.
    pub seconds: f64,
    /// Of one core, in percent.
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

/// Of this process, all threads.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What a receiver that has stopped costs others.
#[derive(Clone, Debug, Serialize)]
pub struct Blocked {
    /// Frames a second from one port to another, in millions, while nobody else is there: the median of the slices.
    pub alone_mpps: f64,
    /// The same while two others send to a receiver that takes nothing.
    pub beside_stopped_mpps: f64,
    /// What the stopped receiver costs, in percent; negative when nothing.
    pub cost_percent: f64,
    /// Frames lost by anybody.
    pub lost: u64,
}

/// Measures one flow with and without others that wait for a receiver that has stopped, in turn, on one core.
pub fn blocked(time: Duration, interrupt: &AtomicBool) -> Result<Blocked, PortsError> {
    const SLICES: u32 = 20;
    let config = || ValeConfig { action: Action::Off, ..ValeConfig::default() };
    let mut rates = [Vec::new(), Vec::new()];
    let mut lost = 0;
    for slice in 0..SLICES {
        if interrupt.load(Ordering::Relaxed) {
            break;
        }
        let stopped = slice % 2 == 1;
        let mut engine = Engine::new(5, config());
        let mut clients = Vec::new();
        for k in 0..5 {
            let access = engine.plug_shm(k, &format!("bench-{k}"), 256)?;
            engine.give(mac(k), 0, k);
            clients.push(Client::open(access.memory)?);
        }
        let flow = frame(0, 1);
        let others = [frame(2, 4), frame(3, 4)];
        let (mut sent, mut waiting, mut received) = (0u64, 0u64, 0u64);
        let mut into = [0; 64];
        let started = Instant::now();
        while received == 0 || started.elapsed() < time / SLICES {
            for turn in 0..64 {
                for _ in 0..32 {
                    sent += u64::from(clients[0].send(&flow)?);
                }
                let _ = clients[0].publish();
                // Who is held back sleeps, and looks again only now and then.
                if stopped && (waiting < 1_000 || turn == 0) {
                    for (client, frame) in clients[2..4].iter_mut().zip(&others) {
                        waiting += u64::from(client.send(frame)?);
                        let _ = client.publish();
                    }
                }
                engine.turn();
                while clients[1].receive(&mut into)?.is_some() {
                    received += 1;
                }
                let _ = clients[1].publish();
            }
        }
        rates[usize::from(stopped)].push(received as f64 / started.elapsed().as_secs_f64() / 1e6);
        while engine.turn() > 0 || engine.queued() > 0 {
            for client in [1, 4] {
                while clients[client].receive(&mut into)?.is_some() {
                    received += 1;
                }
                let _ = clients[client].publish();
            }
        }
        for client in [1, 4] {
            while clients[client].receive(&mut into)?.is_some() {
                received += 1;
            }
        }
        lost += sent + waiting - received;
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let [mut alone, mut beside] = rates;
    let (alone, beside) = (median(&mut alone), median(&mut beside));
    Ok(Blocked { alone_mpps: alone, beside_stopped_mpps: beside, cost_percent: (1.0 - beside / alone) * 100.0, lost })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_there() {
        let never = AtomicBool::new(false);
        // Even where the machine has time for each of them once only.
        let latency = latency(Duration::ZERO, &never).unwrap();
        assert!(latency.trips > 0 && latency.p50_us <= latency.p99_us && latency.direct_p50_us > 0.0, "{latency:?}");
        let blocked = blocked(Duration::ZERO, &never).unwrap();
        assert!(blocked.lost == 0 && blocked.alone_mpps > 0.0 && blocked.beside_stopped_mpps > 0.0, "{blocked:?}");
        let slept = || idle(3, Duration::from_millis(100)).unwrap().wakes_per_second > 0.0;
        assert!((0..300).any(|_| slept()), "a switch at which nothing moves never sleeps");
    }
}

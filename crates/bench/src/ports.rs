//! Frames through the switch between ports in shared memory, or of virtio drivers, as fast as they go: programs, switch and
//! all on one core, or the programs on a second one.

use serde::Serialize;
use sluicenet_dataplane::clock;
use sluicenet_dataplane::engine::{Access, Engine};
use sluicenet_dataplane::port::BrokenPort;
use sluicenet_dataplane::shm::Client;
use sluicenet_dataplane::vhost::driver::{Driver, DriverConfig};
use sluicenet_dataplane::vhost::{Port, Socket};
use sluicenet_node::vale::ValeConfig;
use sluicenet_proto::guard::Guard;
use sluicenet_wire::ethernet::MacAddress;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Over what the frames move.
#[derive(Clone, Copy, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Memory that programs share with the switch
    Shm,
    /// The queues of virtio network drivers, as QEMU guests have them
    VhostUser,
}

/// What the ports may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Lock {
    /// Everything
    None,
    /// Frames of their own MAC addresses
    Mac,
    /// Frames of their own MAC and IPv4 addresses
    Ip,
}

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Kind of the ports that the frames move over.
    pub kind: Kind,
    /// Bytes of a frame without its check sequence.
    pub size: usize,
    /// Ports, each sending to the next.
    pub ports: usize,
    /// Stations behind each port; successive frames differ in both sender and receiver.
    pub stations: usize,
    /// Buffers of a port, half of them for sending; of a virtio driver they are its two queues.
    pub buffers: u32,
    /// For how long.
    pub time: Duration,
    /// 1: programs and switch take turns on one core; 2: the switch has a core of its own.
    pub cores: usize,
    /// What the ports may send.
    pub lock: Lock,
    /// A directory for sockets.
    pub scratch: PathBuf,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Kind of the ports that the frames moved over.
    pub kind: Kind,
    /// Bytes of a frame.
    pub size: usize,
    /// Ports.
    pub ports: usize,
    /// Stations behind each port.
    pub stations: usize,
    /// What the ports may send.
    pub lock: Lock,
    /// Cores that were busy.
    pub cores: usize,
    /// How long it took.
    pub seconds: f64,
    /// Frames the programs sent.
    pub sent: u64,
    /// Frames the programs received.
    pub received: u64,
    /// Frames that were sent and not received.
    pub lost: u64,
    /// Millions of frames received a second.
    pub mpps: f64,
    /// Their bits, in billions a second.
    pub gbps: f64,
    /// Ticks of the time stamp counter a frame, where there is one.
    pub cycles_per_packet: Option<f64>,
}

/// Why it could not be measured.
#[derive(Debug)]
pub enum PortsError {
    /// Memory or sockets were not to be had.
    Io(std::io::Error),
    /// A port broke, which only a fault of this program can cause.
    Broken,
    /// A receiver that takes nothing held no sender back: nothing was measured.
    NobodyHeldBack,
    /// Two threads that were to wait for each other on two cores took longer than all that was to be measured beside them.
    NoBaseline,
}

impl fmt::Display for PortsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortsError::Io(e) => write!(f, "memory and sockets for the ports: {e}"),
            PortsError::NobodyHeldBack => f.write_str("the stopped receiver held nobody back: nothing was measured"),
            PortsError::NoBaseline => {
                f.write_str("the two threads of the baseline had no core each: nothing was measured")
            }
            PortsError::Broken => f.write_str("a port broke the rules of its rings"),
        }
    }
}

impl std::error::Error for PortsError {}

impl From<std::io::Error> for PortsError {
    fn from(e: std::io::Error) -> PortsError {
        PortsError::Io(e)
    }
}
impl From<BrokenPort> for PortsError {
    fn from(_: BrokenPort) -> PortsError {
        PortsError::Broken
    }
}

/// Frames a program sends before it is the next one's turn.
const BURST: usize = 32;

/// The end of a port that a program has.
trait End: Send {
    /// Sends a frame if there is a buffer for it.
    fn send(&mut self, frame: &[u8]) -> Result<bool, BrokenPort>;
    /// Receives a frame if there is one; whether there was.
    fn receive(&mut self, into: &mut [u8]) -> Result<bool, BrokenPort>;
    /// Shows the program's queues to the switch.
    fn publish(&mut self);
}

impl End for Client {
    #[inline(always)]
    fn send(&mut self, frame: &[u8]) -> Result<bool, BrokenPort> {
        Client::send(self, frame)
    }
    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<bool, BrokenPort> {
        Ok(Client::receive(self, into)?.is_some())
    }
    #[inline(always)]
    fn publish(&mut self) {
        // In this measurement no program sleeps.
        let _ = Client::publish(self);
    }
}

impl End for Driver {
    #[inline(always)]
    fn send(&mut self, frame: &[u8]) -> Result<bool, BrokenPort> {
        Driver::send(self, frame)
    }
    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<bool, BrokenPort> {
        Ok(Driver::receive(self, into)?.is_some())
    }
    #[inline(always)]
    fn publish(&mut self) {
        self.publish_silently();
    }
}

/// A program at each port. It sends to the next program and counts the frames that it receives.
struct Programs<E> {
    ends: Vec<E>,
    /// Frames that each program sends in turn.
    frames: Vec<Vec<Vec<u8>>>,
    next: usize,
    sent: u64,
    received: u64,
}

/// The IPv4 address of all stations at a port.
fn ipv4(port: usize) -> [u8; 4] {
    [10, 0, 0, port as u8 + 1]
}

/// The permissions of a port.
fn access(ports: &Ports, k: usize) -> Access {
    let guard = Guard {
        macs: (0..ports.stations).map(|station| MacAddress(mac(k, station))).collect(),
        addresses: (ports.lock == Lock::Ip).then(|| vec![IpAddr::from(ipv4(k)).into()]),
        router: false,
        dhcp_server: false,
    };
    Access { guard: (ports.lock != Lock::None).then(|| Arc::new(guard)), ..Access::default() }
}

/// The start of a UDP datagram in an Ethernet frame of `len` bytes.
fn datagram(frame: &mut [u8], from: [u8; 4], to: [u8; 4]) {
    let len = (frame.len() - 14) as u16;
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..24].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, 17]);
    frame[26..30].copy_from_slice(&from);
    frame[30..34].copy_from_slice(&to);
    frame[34..38].copy_from_slice(&[0x10, 0, 0x10, 0]);
}

/// Bytes of the shortest frame with a UDP datagram.
const DATAGRAM_MIN: usize = 14 + 20 + 8;

fn mac(port: usize, station: usize) -> [u8; 6] {
    let [high, low] = (station as u16).to_be_bytes();
    [2, 0, 0, high, low, port as u8]
}

fn shared_memory(engine: &mut Engine, ports: &Ports) -> Result<Vec<Client>, PortsError> {
    let open = |k| -> Result<Client, PortsError> {
        let access = engine.plug_shm(k, "sluicenet-bench", ports.buffers)?;
        Ok(Client::open(access.memory)?)
    };
    (0..ports.ports).map(open).collect()
}

fn drivers(engine: &mut Engine, ports: &Ports) -> Result<Vec<Driver>, PortsError> {
    let paths: Vec<PathBuf> = (0..ports.ports).map(|k| ports.scratch.join(format!("port-{k}.sock"))).collect();
    for (k, path) in paths.iter().enumerate() {
        let port = Port::open(Socket::Listen(path.clone()))?;
        engine.plug_vhost(k, "sluicenet-bench", port, Access::default()).map_err(std::io::Error::from)?;
    }
    let config = DriverConfig { queue_size: (ports.buffers / 2) as u16, ..DriverConfig::default() };
    let connecting = std::thread::spawn(move || -> std::io::Result<Vec<Driver>> {
        paths.iter().map(|path| Driver::connect(path, config)).collect()
    });
    // The switch takes queues into service between its turns.
    while !connecting.is_finished() {
        engine.round();
        std::thread::yield_now();
    }
    Ok(connecting.join().unwrap_or_else(|e| std::panic::resume_unwind(e))?)
}

impl<E: End> Programs<E> {
    fn new(engine: &mut Engine, ports: &Ports, ends: Vec<E>) -> Programs<E> {
        let mut frames = Vec::new();
        for k in 0..ports.ports {
            let of_station = |station| {
                let mut frame = vec![0; ports.size];
                frame[..6].copy_from_slice(&mac((k + 1) % ports.ports, station));
                frame[6..12].copy_from_slice(&mac(k, station));
                if frame.len() < DATAGRAM_MIN {
                    // An EtherType for experiments (IEEE 802).
                    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
                } else {
                    datagram(&mut frame, ipv4(k), ipv4((k + 1) % ports.ports));
                }
                frame
            };
            engine.set_access(k, access(ports, k));
            for station in 0..ports.stations {
                engine.give(mac(k, station), 0, k);
            }
            frames.push((0..ports.stations).map(of_station).collect());
        }
        Programs { ends, frames, next: 0, sent: 0, received: 0 }
    }

    fn send(&mut self) -> Result<(), PortsError> {
        for (end, frames) in self.ends.iter_mut().zip(&self.frames) {
            let mut burst = 0;
            while burst < BURST && end.send(&frames[self.next])? {
                burst += 1;
                self.next += 1;
                if self.next == frames.len() {
                    self.next = 0;
                }
            }
            self.sent += burst as u64;
            end.publish();
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), PortsError> {
        let mut frame = [0; 2048];
        for (end, sent) in self.ends.iter_mut().zip(&self.frames) {
            let into = &mut frame[..sent[0].len()];
            while end.receive(into)? {
                self.received += 1;
            }
            end.publish();
        }
        Ok(())
    }
}

/// Measures.
pub fn run(ports: &Ports, interrupt: &AtomicBool) -> Result<Figures, PortsError> {
    let stations = ports.ports * ports.stations;
    let mut engine = Engine::new(ports.ports, ValeConfig { stations: stations.max(8192), ..ValeConfig::default() });
    match ports.kind {
        Kind::Shm => {
            let ends = shared_memory(&mut engine, ports)?;
            measure(ports, engine, ends, interrupt)
        }
        Kind::VhostUser => {
            let ends = drivers(&mut engine, ports)?;
            measure(ports, engine, ends, interrupt)
        }
    }
}

fn measure<E: End>(
    ports: &Ports,
    mut engine: Engine,
    ends: Vec<E>,
    interrupt: &AtomicBool,
) -> Result<Figures, PortsError> {
    let mut programs = Programs::new(&mut engine, ports, ends);
    let (started, ticks) = (Instant::now(), clock::ticks());
    let go_on = || started.elapsed() < ports.time && !interrupt.load(Ordering::Relaxed);
    let (seconds, ticks) = if ports.cores == 1 {
        while go_on() {
            // Many rounds at a time, so that the clock is not measured.
            for _ in 0..64 {
                programs.send()?;
                engine.round();
                programs.receive()?;
            }
        }
        (started.elapsed().as_secs_f64(), clock::since(ticks))
    } else {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let switch = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    engine.round();
                }
            });
            let mut drive = || -> Result<(f64, Option<u64>), PortsError> {
                while go_on() {
                    for _ in 0..64 {
                        programs.send()?;
                        programs.receive()?;
                    }
                }
                Ok((started.elapsed().as_secs_f64(), clock::since(ticks)))
            };
            let measured = drive();
            stop.store(true, Ordering::Relaxed);
            switch.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
            measured
        })?
    };
    // Frames that are still on their way count as well, but their time does not.
    while engine.round() > 0 || engine.queued() > 0 {
        programs.receive()?;
    }
    programs.receive()?;
    engine.ledger();
    let Programs { sent, received, .. } = programs;
    Ok(Figures {
        kind: ports.kind,
        size: ports.size,
        ports: ports.ports,
        stations: ports.stations,
        lock: ports.lock,
        cores: ports.cores,
        seconds,
        sent,
        received,
        lost: sent - received,
        mpps: received as f64 / seconds / 1e6,
        gbps: received as f64 * 8.0 * ports.size as f64 / seconds / 1e9,
        cycles_per_packet: ticks.map(|t| t as f64 / received.max(1) as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_however_it_runs() {
        let scratch = std::env::temp_dir().join(format!("sluicenet-bench-ports-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        for kind in [Kind::Shm, Kind::VhostUser] {
            for (cores, ports, size, buffers, lock) in [
                (1, 2, 64, 64, Lock::None),
                (1, 5, 1_514, 64, Lock::Mac),
                (2, 2, 60, 64, Lock::Ip),
                (2, 3, 2_048, 4, Lock::None),
            ] {
                let (stations, time, scratch) = (ports, Duration::from_millis(30), scratch.clone());
                let ports = Ports { kind, size, ports, stations, buffers, time, cores, lock, scratch };
                let figures = run(&ports, &AtomicBool::new(false)).unwrap();
                assert!(figures.sent > 0 && figures.lost == 0, "{figures:?}");
            }
        }
        std::fs::remove_dir_all(&scratch).unwrap();
    }
}

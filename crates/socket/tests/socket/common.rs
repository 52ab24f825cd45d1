//! A switch in a thread, with hosts and raw ports at it.
#![allow(dead_code)]

use sluicenet_dataplane::engine::Engine;
use sluicenet_dataplane::remote::Remote;
use sluicenet_dataplane::shm::Client;
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_socket::attach::Attachment;
use sluicenet_socket::{Config, Host};
use sluicenet_wire::checksum::PseudoHeader;
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::{ipv4, tcplight, udp};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest that a test waits.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Switch {
    remote: Remote<Engine>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(u64, u64, u64)>>,
}

pub fn mac(n: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, n])
}
pub fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, n)
}
pub fn at(n: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(ip(n), port)
}

impl Switch {
    /// A switch whose watchdog is off: only tests about time may depend on it.
    pub fn start() -> Switch {
        Switch::with(ValeConfig { watchdog: WatchdogConfig::OFF, ..ValeConfig::default() })
    }

    pub fn with(config: ValeConfig) -> Switch {
        let mut engine = Engine::new(16, config);
        let remote = engine.remote().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let until = stop.clone();
        let thread = std::thread::spawn(move || {
            engine.run(&until).unwrap();
            engine.ledger()
        });
        Switch { remote, stop, thread: Some(thread) }
    }

    /// Attaches to port `n`.
    pub fn port(&self, n: u8, buffers: u32) -> Attachment {
        let plugged = self.remote.run(move |engine| {
            let access = engine.plug_shm(n.into(), &format!("socket-{n}"), buffers).unwrap();
            assert!(engine.give(mac(n).0, 0, n.into()));
            access
        });
        Attachment::local(plugged.unwrap(), Some(mac(n)))
    }

    pub fn host(&self, n: u8) -> Host {
        self.host_with(n, |_| ())
    }

    pub fn host_with(&self, n: u8, change: impl FnOnce(&mut Config)) -> Host {
        let mut config = Config::new(ip(n), 24);
        change(&mut config);
        Host::open(self.port(n, 1024), config).unwrap()
    }

    /// The result of `f` while the switch takes and delivers nothing.
    pub fn halted<R>(&self, f: impl FnOnce() -> R) -> R {
        let (halted, is_halted) = std::sync::mpsc::channel();
        let (goes_on, may_go_on) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                self.remote.run(move |_| {
                    let _ = halted.send(());
                    let _ = may_go_on.recv_timeout(PATIENCE);
                })
            });
            is_halted.recv_timeout(PATIENCE).expect("the switch takes commands");
            let answer = f();
            let _ = goes_on.send(());
            answer
        })
    }

    /// Takes a port away, as when its program was killed.
    pub fn unplug(&self, n: u8) {
        self.remote.run(move |engine| engine.unplug(n.into())).unwrap();
    }

    /// Whether a port can be plugged again.
    pub fn vacant(&self, n: u8) -> bool {
        self.remote.run(move |engine| engine.report(n.into()).is_none()).unwrap()
    }

    /// Frames that the switch dropped, of all ports.
    pub fn dropped(&self) -> u64 {
        self.remote.run(|engine| engine.ledger().2).unwrap()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.remote.post(|_| ());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

/// A program that sends and sees frames as they are.
pub struct Raw {
    pub client: Client,
    kick: OwnedFd,
    n: u8,
}

impl Raw {
    pub fn new(switch: &Switch, n: u8) -> Raw {
        let access = switch.port(n, 1024).access;
        Raw { client: Client::open(access.memory).unwrap(), kick: access.kick, n }
    }

    pub fn send(&mut self, frame: &[u8]) {
        let start = Instant::now();
        while !self.client.send(frame).unwrap() {
            assert!(start.elapsed() < PATIENCE);
            self.publish();
            std::thread::yield_now();
        }
        self.publish();
    }

    pub fn publish(&mut self) {
        if self.client.publish() {
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// A UDP datagram for a host.
    pub fn datagram(&self, to: u8, from_port: u16, to_port: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = self.packet(to, ipv4::Protocol::UDP, udp::HEADER_LEN + payload.len());
        bytes.extend_from_slice(&[0; udp::HEADER_LEN]);
        bytes.extend_from_slice(payload);
        let header = udp::Repr { source_port: from_port, destination_port: to_port };
        let pseudo = PseudoHeader { source: ip(self.n), destination: ip(to) };
        header.emit(&mut bytes[34..], Some(&pseudo));
        bytes
    }

    /// The headers of Ethernet and IPv4 for `len` bytes for a host.
    fn packet(&self, to: u8, protocol: ipv4::Protocol, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; 34];
        ethernet::Repr { destination: mac(to), source: mac(self.n), ethertype: EtherType::IPV4 }.emit(&mut bytes);
        let packet = ipv4::Repr {
            source: ip(self.n),
            destination: ip(to),
            protocol,
            dscp: 0,
            ecn: ipv4::Ecn::NotEct,
            identification: 0,
            dont_fragment: true,
            ttl: 64,
            payload_len: len as u16,
        };
        packet.emit(&mut bytes[14..]);
        bytes
    }

    /// A segment for a host.
    pub fn segment(&self, to: u8, header: tcplight::Repr, payload: &[u8]) -> Vec<u8> {
        let mut bytes = self.packet(to, tcplight::PROTOCOL, tcplight::HEADER_LEN + payload.len());
        bytes.resize(34 + tcplight::HEADER_LEN, 0);
        header.emit(&mut bytes[34..]);
        bytes.extend_from_slice(payload);
        bytes
    }

    /// The next segment that comes, if one does soon.
    pub fn receive(&mut self, patience: Duration) -> Option<(tcplight::Repr, Vec<u8>)> {
        let start = Instant::now();
        let mut bytes = [0; 2048];
        loop {
            let got = self.client.receive(&mut bytes).unwrap();
            self.publish();
            if let Some(len) = got
                && let Ok((header, packet)) = ethernet::Repr::parse(&bytes[..len])
                && header.ethertype == EtherType::IPV4
                && let Ok((_, payload)) = ipv4::Repr::parse(packet)
                && let Ok((header, payload)) = tcplight::Repr::parse(payload)
            {
                return Some((header, payload.to_vec()));
            }
            if got.is_none() {
                if start.elapsed() >= patience {
                    return None;
                }
                std::thread::yield_now();
            }
        }
    }
}

/// Waits for something to be so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not {what} in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The error number of a failure.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&result.unwrap_err()).expect("an error of a system call")
}

/// Bytes that no two places have in common for long.
pub struct Pattern(u64);

impl Pattern {
    pub fn new(seed: u64) -> Pattern {
        Pattern(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
    }
}

//! A switch with guests at its ports, in one thread, turn by turn.
#![allow(dead_code)]

use sluicenet_dataplane::engine::{Access, Engine};
use sluicenet_dataplane::vhost::driver::{Driver, DriverConfig};
use sluicenet_dataplane::vhost::{Port, Socket};
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub fn mac(n: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, n as u8]
}

/// A frame of `len` bytes that carries a number.
pub fn frame(from: usize, to: usize, number: u64, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len.max(22)).map(|k| (k as u64 * 7 + number) as u8).collect();
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(from));
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..22].copy_from_slice(&number.to_le_bytes());
    frame
}

/// The number a frame carries.
pub fn number(frame: &[u8]) -> u64 {
    u64::from_le_bytes(frame[14..22].try_into().unwrap())
}

/// No watchdog: however slow the machine, only tests about it may hang on time.
pub fn patient() -> ValeConfig {
    ValeConfig { watchdog: WatchdogConfig::OFF, ..ValeConfig::default() }
}

/// A switch, a directory for its sockets, and guests.
pub struct Rig {
    pub engine: Engine,
    pub guests: Vec<Option<Driver>>,
    dir: PathBuf,
}

impl Rig {
    /// A switch with a guest of this kind at every port.
    pub fn new(configs: &[DriverConfig]) -> Rig {
        let mut rig = Rig::empty(configs.len());
        for (k, config) in configs.iter().enumerate() {
            rig.plug(k);
            rig.connect(k, *config);
        }
        rig
    }

    /// A switch without guests at its ports.
    pub fn empty(ports: usize) -> Rig {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-vhost-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        Rig { engine: Engine::new(ports, patient()), guests: (0..ports).map(|_| None).collect(), dir }
    }

    pub fn path(&self, k: usize) -> PathBuf {
        self.dir.join(format!("{k}.sock"))
    }

    pub fn plug(&mut self, k: usize) {
        self.plug_port(k, |port| port);
    }

    /// Plugs in a port with an agent in its guest.
    pub fn plug_with_agent(&mut self, k: usize) {
        self.plug_port(k, |port| port.with_agent().unwrap());
    }

    fn plug_port(&mut self, k: usize, with: impl FnOnce(Port) -> Port) {
        let port = with(Port::open(Socket::Listen(self.path(k))).unwrap());
        self.engine.plug_vhost(k, &format!("guest-{k}"), port, Access::default()).unwrap();
        assert!(self.engine.give(mac(k), 0, k));
    }

    /// Turns the switch until `done` in another thread is.
    pub fn during<R: Send + 'static>(&mut self, done: impl FnOnce() -> R + Send + 'static) -> R {
        let thread = std::thread::spawn(done);
        while !thread.is_finished() {
            self.engine.round();
            std::thread::yield_now();
        }
        thread.join().unwrap()
    }

    pub fn connect(&mut self, k: usize, config: DriverConfig) {
        let path = self.path(k);
        self.guests[k] = Some(self.during(move || Driver::connect(&path, config).unwrap()));
    }

    pub fn guest(&mut self, k: usize) -> &mut Driver {
        self.guests[k].as_mut().unwrap()
    }

    /// Runs the switch until `done`, or fails with the name `what` of the awaited event.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Rig) -> bool) {
        let started = std::time::Instant::now();
        while !done(self) {
            self.engine.round();
            std::thread::yield_now();
            if started.elapsed().as_secs() >= 60 {
                let ports: Vec<_> = (0..self.guests.len()).map(|k| self.engine.report(k)).collect();
                panic!("waited for {what}: {ports:#?}");
            }
        }
    }

    /// Sends a frame and shows the switch that it is there.
    pub fn send(&mut self, from: usize, frame: &[u8]) -> bool {
        let sent = self.guest(from).send(frame).unwrap();
        self.guest(from).publish();
        sent
    }

    /// The next frame a guest has received.
    pub fn receive(&mut self, k: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 70_000];
        let len = self.guest(k).receive(&mut bytes).unwrap()?;
        self.guest(k).publish();
        bytes.truncate(len);
        Some(bytes)
    }

    /// A counter of the port's own.
    pub fn counter(&self, k: usize, name: &str) -> u64 {
        let own = self.engine.report(k).unwrap().own;
        own.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// A frame from `from` to `to` arrives: neither is any the worse.
    pub fn check_passage(&mut self, from: usize, to: usize) {
        let sent = frame(from, to, 77_777, 300);
        assert!(self.send(from, &sent), "no buffer to send with");
        let mut seen = None;
        self.until("a frame of an innocent", |rig| {
            seen = rig.receive(to);
            seen.is_some()
        });
        assert_eq!(seen.unwrap(), sent);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

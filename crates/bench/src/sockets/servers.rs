//! Two servers, a switch each, joined by a link with an overlay over it, and its controller.

use super::super::tcp;
use super::{Hypervisor, Lost};
use rustix::time::{ClockId, clock_gettime};
use sluicenet_dataplane::controller::Daemon;
use sluicenet_dataplane::engine::Engine;
use sluicenet_dataplane::kernel::lan::{Lan, Wiring};
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::remote::Remote;
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::bridge::ENCAPSULATION_BYTES;
use sluicenet_proto::overlay::controller::ControllerConfig;
use sluicenet_proto::overlay::seal::Key;
use sluicenet_vswitchd::config::Config;
use sluicenet_vswitchd::uplink;
use sluicenet_wire::controller::UDP_PORT;
use sluicenet_wire::zbridge::GROWTH;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Ports of a server for its machines; the uplink is the next one.
pub const MACHINES: usize = 2;
/// The tenant that both machines are of, and the class of all they send.
pub const TENANT: u16 = 10;
pub const CLASS: u8 = 3;
/// Largest datagram of the link.
const LINK_MTU: u16 = 1500;
/// The servers' addresses, and the controller's.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(172, 16, 0, 1), Ipv4Addr::new(172, 16, 0, 2)];
const CONTROLLER: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 3);
/// How long machines may take to be known to the controller.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Servers {
    pub lan: Lan,
    pub engines: [Engine; 2],
    controller: Daemon,
    hypervisor: Hypervisor,
}

/// The file of a server's switch, as `switch run` would have it.
fn file(n: usize, hypervisor: Hypervisor, namespace: &str) -> String {
    let other = 1 - n;
    let lossless = if hypervisor == Hypervisor::Lossy { String::new() } else { CLASS.to_string() };
    let stack = match hypervisor {
        Hypervisor::Lossy | Hypervisor::Pfc => "",
        Hypervisor::Tcp => "[tcp_tunnel]\n",
        Hypervisor::Zfabric => "[zcredit]\n[zbridge]\n",
    };
    format!(
        "[switch]\nlossless = [{lossless}]\n\
         [uplink]\ndevice = \"up{n}\"\nnetns = \"{namespace}\"\nmac = \"02:00:00:00:01:0{n}\"\nrate = \"10 Gb/s\"\n\
         [overlay]\naddress = \"{}\"\ncontroller = \"{CONTROLLER}:{UDP_PORT}\"\ncontroller_netns = \"{namespace}\"\nkey = \"key\"\n\
         [[network]]\ntenant = {TENANT}\nvni = 700\n\
         [[server]]\naddress = \"{}\"\nmac = \"02:00:00:00:01:0{other}\"\n{stack}",
        ADDRESSES[n], ADDRESSES[other],
    )
}

fn invalid(e: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, e.to_string())
}

impl Servers {
    /// Both servers, without machines yet.
    pub fn new(hypervisor: Hypervisor, scratch: &Path) -> io::Result<Servers> {
        // Namespaces of the turn before may still be on their way out.
        static TURNS: AtomicU32 = AtomicU32::new(0);
        let tag = format!("sockets-{}-{}", std::process::id(), TURNS.fetch_add(1, Ordering::Relaxed));
        let lan = Lan::create(&tag, 2, Wiring::Bare)?;
        let inside = lan.switch();
        for namespace in [lan.tenant(0), lan.tenant(1), inside] {
            namespace.silence()?;
        }
        let controller = inside.enter(|| -> io::Result<Daemon> {
            let mut links = Links::open()?;
            links.create_veth("up0", "up1", inside)?;
            for name in ["up0", "up1"] {
                links.set_mtu(name, LINK_MTU.into())?;
                links.up(name)?;
            }
            for address in [ADDRESSES[0], ADDRESSES[1], CONTROLLER] {
                links.add_address("lo", address.into(), 32)?;
            }
            Daemon::bind(SocketAddrV4::new(CONTROLLER, UDP_PORT), UDP_PORT, ControllerConfig::default())
        })??;
        let key = [7u8; 32];
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = scratch.join("key");
        let _ = std::fs::remove_file(&path);
        let mut options = std::fs::OpenOptions::new();
        io::Write::write_all(&mut options.write(true).create_new(true).mode(0o600).open(&path)?, digits.as_bytes())?;
        let server = |n: usize| -> io::Result<Engine> {
            let text = file(n, hypervisor, inside.name());
            let config = Config::parse(&scratch.join(format!("server{n}.toml")), &text).map_err(invalid)?;
            let vale = ValeConfig { uplink: Some(MACHINES), watchdog: WatchdogConfig::OFF, ..config.vale };
            let mut engine = Engine::new(MACHINES + 1, vale.clone());
            let uplink = config.uplink.as_ref().ok_or_else(|| invalid("no uplink"))?;
            engine.plug(MACHINES, "uplink", uplink::open(uplink, &vale)?, Default::default())?;
            Ok(engine)
        };
        let mut servers = Servers { engines: [server(0)?, server(1)?], lan, controller, hypervisor };
        ADDRESSES.iter().for_each(|&address| servers.controller.admit(address, Key::new(&key)));
        Ok(servers)
    }

    /// Largest IP packet of a machine.
    pub fn mtu(&self) -> u16 {
        let zbridge = if self.hypervisor == Hypervisor::Zfabric { GROWTH as u16 } else { 0 };
        LINK_MTU - ENCAPSULATION_BYTES - zbridge
    }

    /// Turns the switches until the controller knows both machines, so that no request for them is in vain.
    fn settle(&mut self) -> io::Result<()> {
        let since = Instant::now();
        while self.controller.stations() < 2 {
            if since.elapsed() > PATIENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the machines are not known to the controller"));
            }
            for engine in &mut self.engines {
                engine.round();
            }
            self.controller.round()?;
        }
        Ok(())
    }

    /// Runs both servers, and the controller, while `inside` runs. `inside` gets a meter of the switches' busy time.
    pub fn run<R>(
        &mut self,
        inside: impl FnOnce(&Lan, &dyn Fn() -> io::Result<f64>) -> io::Result<R>,
    ) -> io::Result<R> {
        self.settle()?;
        let remotes: Vec<Remote<Engine>> = self.engines.iter_mut().map(Engine::remote).collect::<io::Result<_>>()?;
        let meter = || -> io::Result<f64> { remotes.iter().map(|remote| remote.run(|_| thread_time())).sum() };
        let end = AtomicBool::new(false);
        let Servers { engines, controller, lan, .. } = self;
        std::thread::scope(|scope| {
            let running: Vec<_> = engines
                .iter_mut()
                .map(|engine| scope.spawn(|| engine.run(&end)))
                .chain([scope.spawn(|| controller.run(&end))])
                .collect();
            let result = inside(lan, &meter);
            end.store(true, Ordering::Relaxed);
            // Sleeping threads look.
            remotes.iter().for_each(|remote| drop(remote.post(|_| {})));
            for thread in running {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            result
        })
    }

    fn reports(&self) -> impl Iterator<Item = sluicenet_dataplane::engine::PortReport> {
        self.engines.iter().flat_map(|engine| (0..=MACHINES).filter_map(|k| engine.report(k)))
    }

    fn own(&self, name: &str) -> u64 {
        self.reports().flat_map(|report| report.own).filter(|own| own.0 == name).map(|own| own.1).sum()
    }

    /// Frames that zBridge sent again, and segments that tunnels did.
    pub fn resent(&self) -> u64 {
        self.own("zbridge_resent") + self.own("tcp_tunnel_resent")
    }

    /// Frames lost for good, as far as they are counted: zBridge and tunnels retransmit losses of the link.
    pub fn lost(&self) -> Lost {
        let is_final = matches!(self.hypervisor, Hypervisor::Lossy | Hypervisor::Pfc);
        let mut lost = Lost::new();
        for (n, engine) in self.engines.iter().enumerate() {
            for report in (0..=MACHINES).filter_map(|k| engine.report(k)) {
                let on_the_link = report.own.iter().filter(|(name, _)| is_final && *name == "rx_socket_drops");
                let refused = DropReason::ALL.map(|reason| (reason.name(), report.counters.refused.frames(reason)));
                for (why, frames) in tcp::lost(&report).chain(on_the_link.copied()).chain(refused) {
                    if frames > 0 {
                        *lost.entry(format!("server {n}, {}: {why}", report.name)).or_default() += frames;
                    }
                }
            }
        }
        lost
    }
}

/// For how long this thread was busy.
fn thread_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

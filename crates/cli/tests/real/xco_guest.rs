//! XCo's agent with departure times in a QEMU guest, whose kernel has `sch_fq`. The controller and the receiver are at the other end of
//! the guest's device.
//!
//! Needs the requirements of `sluicenet_testbed::guest`. The test reports a missing one, and is skipped.

use crate::xco::{Controller, start};
use sluicenet_dataplane::kernel::netns::{self, Namespace};
use sluicenet_testbed::guest::{Attachment, Contents, Guest, GuestConfig, GuestError, Image, Nic, Parts, program};
use sluicenet_testkit::netns::{Namespaces, missing, system};
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time for a short action of a guest, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(120);
const PAYLOAD: usize = 1_400;
/// Bytes of such a datagram as the agent counts them: with its headers of UDP, IPv4 and Ethernet.
const FRAME: usize = PAYLOAD + 8 + 20 + 14;
/// The end of the guest's device in the controller's namespace.
const TAP: &str = "tap0";
/// The rate of the guest's link.
const LINK_MBPS: u32 = 1_000;
/// The rates of a directive and of a flow without one: an emulated guest on a busy machine sends no faster.
const MBPS: u32 = 8;
const SMALL_MBPS: u32 = 2;
/// The agent's file. It looks seldom, and a stream may pause: an emulated processor is slow.
const AGENT: &str = r#"
[xco]
control = "/agent.sock"
device = "eth0"
rate = "1 Gb/s"
host = 0
controller = "02:00:00:00:ff:00"
lease = "5 s"
small_flow = "SMALL Mb/s"
queues = "edt"
poll = "2 ms"
hysteresis = "50 ms"
[[host]]
host = 1
addresses = ["10.9.9.1"]
"#;

/// A guest with an agent in its image.
struct Rig {
    guest: Guest,
    spaces: Namespaces,
    folder: PathBuf,
}

impl Rig {
    fn new(test: &str, small_mbps: u32) -> Option<Rig> {
        let lacks = missing().or_else(|| netns::may_make_namespaces().err().map(|e| e.to_string()));
        let found = || Ok((Parts::find(Nic::Virtio)?, program("strip")?));
        let (parts, _) = match (lacks, found()) {
            (None, Ok(found)) => found,
            (Some(why), _) => return skipped(&why),
            (None, Err(e @ GuestError::Missing(_))) => return skipped(&e.to_string()),
            (None, Err(e)) => panic!("{e}"),
        };
        let spaces = Namespaces::new(test, 1);
        let folder = std::env::temp_dir().join(format!("sluicenet-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let sluicenet = folder.join("sluicenet");
        let strip = Command::new("strip").arg("-o").arg(&sluicenet).arg(env!("CARGO_BIN_EXE_sluicenet")).status();
        assert!(strip.unwrap().success());
        let agent = AGENT.replace("SMALL", &small_mbps.to_string());
        let contents =
            Contents { programs: vec![sluicenet], files: vec![("/agent.toml".into(), agent.as_bytes().into())] };
        let image = Image::write(&parts, &contents, &folder.join("image")).unwrap();
        let (mac, address, memory_mib) = ([2, 0, 0, 0, 0x88, 0], [10, 9, 9, 2].into(), image.memory_mib());
        let attachment = Attachment::Tap { namespace: spaces.0[0].clone(), device: TAP.into() };
        let (nic, offloads, queue) = (Nic::Virtio, false, None);
        let config =
            GuestConfig { mac, address, prefix: 24, mtu: 1500, nic, attachment, offloads, queue, image, memory_mib };
        let guest = Guest::start(&parts, &config, &folder, PATIENCE).unwrap();
        let net = &spaces.0[0];
        for line in [
            format!("ip netns exec {net} sysctl -qw net.ipv6.conf.{TAP}.disable_ipv6=1"),
            format!("ip -n {net} addr add 10.9.9.1/24 dev {TAP}"),
            format!("ip -n {net} link set {TAP} up"),
        ] {
            system(&line).unwrap();
        }
        Some(Rig { guest, spaces, folder })
    }

    fn said(&mut self, command: &str) -> String {
        let outcome = self.guest.run(command, PATIENCE).unwrap();
        assert_eq!(outcome.code, 0, "{command}: {}", outcome.text);
        outcome.text
    }

    /// Starts a controller for a link of the receiver of so many Mb/s, and waits until the agent has joined it.
    fn controller(&self, kind: &str, mbps: u32) -> Controller {
        let control = self.folder.join("c.sock");
        let text = format!(
            "[xco]\ncontrol = \"{}\"\ndevice = \"{TAP}\"\nnetns = \"{}\"\nmac = \"02:00:00:00:ff:00\"\nlease = \"5 s\"\n\
             kind = \"{kind}\"\nslice = \"10 ms\"\n[topology]\nkind = \"links\"\nhosts = 2\nswitches = 1\n\
             [[topology.link]]\na = 0\nb = 2\nrate = \"{LINK_MBPS} Mb/s\"\n\
             [[topology.link]]\na = 1\nb = 2\nrate = \"{mbps} Mb/s\"\n",
            control.display(),
            self.spaces.0[0]
        );
        let controller = start(&self.folder.join("c.toml"), &text, "run", control);
        controller.members(1);
        controller
    }

    /// The agent's counters.
    fn status(&mut self) -> serde_json::Value {
        let json = self.said("sluicenet xco status --control /agent.sock --json");
        let status: serde_json::Value = serde_json::from_str(json.trim()).expect(&json);
        status["xco"].clone()
    }

    fn space(&self) -> Namespace {
        Namespace::open(&self.spaces.0[0]).unwrap()
    }

    /// The guest sends datagrams for so many seconds, as fast as it may. When each arrived.
    fn datagrams(&mut self, seconds: u32) -> Vec<Instant> {
        let socket = self.space().enter(|| UdpSocket::bind("10.9.9.1:7000")).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let to = "--to 10.9.9.1:7000 --number 0 --payload 1400";
        self.said(&format!("sluicenet bench tenant send {to} --seconds {seconds} >/dev/null 2>&1 &"));
        let (mut times, mut bytes) = (Vec::new(), [0; 2048]);
        let started = Instant::now();
        let last = |times: &[Instant]| times.last().map_or(started.elapsed() < PATIENCE, |t| t.elapsed().as_secs() < 1);
        while last(&times) {
            if socket.recv(&mut bytes).is_ok() {
                times.push(Instant::now());
            }
        }
        times
    }

    /// The guest sends so many MiB over TCP, as fast as it may. The rate in Mb/s of that part after the first eighth.
    fn stream(&mut self, mib: usize) -> f64 {
        let listener = self.space().enter(|| TcpListener::bind("10.9.9.1:7001")).unwrap().unwrap();
        self.said(&format!("dd if=/dev/zero bs=1M count={mib} 2>/dev/null | nc 10.9.9.1 7001 >/dev/null 2>&1 &"));
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (mut bytes, mut all, mut since) = (vec![0; 1 << 16], 0, None);
        while all < mib << 20 {
            all += match stream.read(&mut bytes).unwrap() {
                0 => break,
                n => n,
            };
            if all >= mib << 17 && since.is_none() {
                since = Some((all, Instant::now()));
            }
        }
        assert_eq!(all, mib << 20);
        let (before, since) = since.unwrap();
        (all - before) as f64 * 8.0 / 1e6 / since.elapsed().as_secs_f64()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn skipped(why: &str) -> Option<Rig> {
    eprintln!("SKIPPED: {why}");
    None
}

/// Most of the set rate that a receiver may measure: a busy machine delays the first frames, and then the others seem to come
/// faster than they were sent. Without departure times the rate would be several times the set one.
const BUNCHED: f64 = 1.25;

/// The rate of frames in Mb/s as the agent counts them, and the gaps between them in microseconds, shortest first; without the first
/// quarter, in which frames may have the times of a flow without a permission.
fn measured(times: &[Instant]) -> (f64, Vec<f64>) {
    let steady = &times[times.len() / 4..];
    let mut gaps: Vec<f64> = steady.windows(2).map(|w| (w[1] - w[0]).as_secs_f64() * 1e6).collect();
    gaps.sort_by(f64::total_cmp);
    let time = steady[steady.len() - 1] - steady[0];
    ((steady.len() - 1) as f64 * FRAME as f64 * 8.0 / 1e6 / time.as_secs_f64(), gaps)
}

#[test]
fn an_agent_in_a_guest_sets_departure_times() {
    let started = Instant::now();
    let Some(mut rig) = Rig::new("xcoedt", SMALL_MBPS) else { return };
    println!("up after {:.0} s", started.elapsed().as_secs_f64());
    let before = rig.said("ip link show eth0");
    rig.said("sluicenet xco agent /agent.toml >/agent.log 2>&1 &");
    let controller = rig.controller("rate", MBPS);
    assert!(rig.said("ip link show eth0").contains("qdisc fq "));
    let times = rig.datagrams(3);
    let (mbps, gaps) = measured(&times);
    let tcp = rig.stream(2);
    let status = rig.status();
    let events = &status["events"];
    let gap = |part: f64| gaps[(gaps.len() as f64 * part) as usize];
    println!(
        "{MBPS} Mb/s: {mbps:.2} Mb/s, gaps {:.0} us at 10 %, {:.0} us in the median, {:.0} us at 90 %; TCP {tcp:.2} Mb/s; \
         {events} {:.0} s",
        gap(0.1),
        gap(0.5),
        gap(0.9),
        started.elapsed().as_secs_f64()
    );
    // However slow the machine, frames do not leave before their times.
    let most = BUNCHED * f64::from(MBPS);
    assert!(mbps < most && tcp < most, "{mbps} and {tcp} Mb/s");
    assert!(events["directives"].as_u64() > Some(0), "{events}");
    assert_eq!(status["kind"], "coordinated", "{status}");
    // On a busy machine, permissions end before the guest hears of their renewal.
    for none in ["dropped_frames", "starved"] {
        assert_eq!(events[none].as_u64(), Some(0), "{none}: {events}");
    }
    drop(controller);

    // Timeslices are refused, by name: the flow keeps the rate of small flows.
    let _controller = rig.controller("timeslice", LINK_MBPS);
    let (mbps, _) = measured(&rig.datagrams(2));
    rig.said("until grep -q 'departure times need a controller' /agent.log; do sleep 0.1; done");
    let events = &rig.status()["events"];
    println!("timeslices: {mbps:.2} Mb/s; {events}");
    assert!(mbps < BUNCHED * f64::from(SMALL_MBPS), "{mbps} Mb/s");
    assert!(events["slices_refused"].as_u64() > Some(0), "{events}");

    // An agent that ends in order leaves the device as it was; `clean` does it for one that was killed.
    rig.said("sluicenet xco stop --control /agent.sock");
    let qdisc = |text: &str| text.split("qdisc ").nth(1).map(|rest| rest.split(' ').next().unwrap().to_owned());
    assert_eq!(qdisc(&rig.said("ip link show eth0")), qdisc(&before));
    rig.said("sluicenet xco agent --once /agent.toml >/agent.log 2>&1 &");
    rig.said("until sluicenet xco status --control /agent.sock >/dev/null 2>&1; do sleep 0.1; done");
    rig.said("killall -9 sluicenet; sleep 0.2");
    assert!(rig.said("ip link show eth0").contains("qdisc fq "));
    let cleaned = rig.said("sluicenet clean");
    assert!(cleaned.contains("departure times at eth0"), "{cleaned}");
    assert_eq!(qdisc(&rig.said("ip link show eth0")), qdisc(&before));
    println!("{:.0} s", started.elapsed().as_secs_f64());
}

/// The table in docs/xco.md.
#[test]
#[ignore = "a measurement of half a minute, on a computer that does nothing else"]
fn rates_of_an_agent_in_a_guest() {
    let Some(mut rig) = Rig::new("xcorates", 4) else { return };
    rig.said("sluicenet xco agent /agent.toml >/agent.log 2>&1 &");
    println!("| directive, Mb/s | UDP, Mb/s | gap in theory, us | gaps at 10 %, 50 %, 90 %, us | TCP, Mb/s |");
    println!("|---|---|---|---|---|");
    for mbps in [10, 50, 200] {
        let controller = rig.controller("rate", mbps);
        let (rate, gaps) = measured(&rig.datagrams(5));
        let tcp = rig.stream(mbps as usize / 4);
        let ideal = FRAME as f64 * 8.0 / f64::from(mbps);
        let [a, b, c] = [0.1, 0.5, 0.9].map(|part| gaps[(gaps.len() as f64 * part) as usize]);
        println!("| {mbps} | {rate:.2} | {ideal:.0} | {a:.0}, {b:.0}, {c:.0} | {tcp:.2} |");
        drop(controller);
    }
    println!("{}", rig.status()["events"]);
}

//! Congestion notifications on a testbed: the switches of the fabric slow real senders, and tenants cannot.

use serde_json::Value;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::PacketDevice;
use sluicenet_scenario::Scenario;
use sluicenet_testbed::Plan;
use sluicenet_testbed::live::Live;
use sluicenet_testkit::netns::missing;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::qcn;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Three senders of datagrams into one port. The queue of a congestion point is at equilibrium at 20 KB, and an input
/// pauses its sender at 97 KB.
const INTO_ONE_PORT: &str = r#"
[scenario]
name = "notified"
parameters = "crisan2014-ch3"
flow_control = "ZZ"
duration = "120 ms"
warmup = "60 ms"
[topology]
kind = "single-switch"
hosts = 4
link_delay = "1 us"
[server]
vms = 1
[qcn]
enabled = true
[[workload]]
kind = "flow"
src = 0
dst = 3
transport = "udp"
[[workload]]
kind = "flow"
src = 1
dst = 3
transport = "udp"
[[workload]]
kind = "flow"
src = 2
dst = 3
transport = "udp"
[testbed]
slowdown = 100
response = "200 ms"
"#;

/// How often other programs of the machine may disturb a run. A sender that gets no processor sends a burst after that, and
/// a receiver that gets none pauses the fabric.
const ATTEMPTS: usize = 6;

fn possible() -> bool {
    let what = missing();
    what.iter().for_each(|what| println!("SKIPPED: congestion notifications between real sockets: {what}"));
    what.is_none()
}

fn sluicenet(words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_sluicenet")).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn file(name: &str, text: &str) -> PathBuf {
    let file = std::env::temp_dir().join(format!("sluicenet-testbed-{name}-{}.toml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    file
}

/// The senders of [`INTO_ONE_PORT`] with these limiters, and what was measured.
fn into_one_port(limiters: &str) -> Value {
    let _alone = crate::testbed_lock();
    let file = file("notified", INTO_ONE_PORT);
    let limiters = format!("qcn.limiters={limiters}");
    let run = sluicenet(&["--quiet", "--json", "testbed", "flows", &file.display().to_string(), "--set", &limiters]);
    std::fs::remove_file(&file).unwrap();
    let printed: Value = serde_json::from_slice(&run.stdout).unwrap();
    let cell = &printed["cells"][0];
    for place in ["virtual_network", "physical_network", "edges"] {
        assert_eq!(cell["lost"][place], 0, "{limiters}: {cell}");
    }
    assert!(cell["streams"]["min_mbps"].as_f64() > Some(0.0), "{cell}");
    cell.clone()
}

/// Without limiters PFC stops the senders all the time. With limiters, once the rates have settled, it stops nobody.
#[test]
fn limited_senders_into_one_port_are_not_paused_and_lose_nothing() {
    if !possible() {
        return;
    }
    let pauses = |cell: &Value| cell["stops_measured"].as_u64().unwrap();
    let without = into_one_port("off");
    assert!(pauses(&without) > 100 && without["limiters"].is_null(), "{without}");
    for limiters in ["destination", "flow"] {
        let (mut quiet, mut undisturbed) = (false, 0);
        for _ in 0..ATTEMPTS {
            let with = into_one_port(limiters);
            let made = [&with["limiters"]["made"], &with["limiters"]["notifications"]].map(|n| n.as_u64().unwrap());
            println!(
                "{limiters}: {} pauses after the warm-up, {} without limiters; {made:?} limiters and notifications; {} Mb/s",
                pauses(&with),
                pauses(&without),
                with["streams"]["total_mbps"]
            );
            assert!(made[0] >= 3 && made[1] >= made[0], "{with}");
            assert!(pauses(&with) * 20 < pauses(&without), "{with}");
            quiet = pauses(&with) == 0;
            if quiet {
                break;
            }
            let is_disturbed = with["server_stops_measured"] != 0 || with["limited_by_machine"] == true;
            undisturbed += usize::from(!is_disturbed);
        }
        println!("{limiters}: without a pause: {quiet}; {undisturbed} other runs that nothing disturbed");
        assert!(quiet || undisturbed < 2, "{undisturbed} undisturbed runs with pauses, and none without");
    }
}

/// Two servers of two tenants.
const TENANTS: &str = r#"
[scenario]
parameters = "crisan2014-ch3"
flow_control = "ZZ"
duration = "1 ms"
[topology]
kind = "single-switch"
hosts = 2
link_rate = "1 Gb/s"
link_delay = "1 us"
[server]
vms = 2
[qcn]
enabled = true
set_point = "66 KB"
[[workload]]
kind = "flow"
src = 0
dst = 1
transport = "udp"
[testbed]
slowdown = 20
response = "200 ms"
"#;

/// A notification from a tenant to a station, about frames to another one.
fn notification(from: MacAddress, to: MacAddress, about: MacAddress) -> Vec<u8> {
    let message = qcn::Repr::of(9 << 16, (63, 100_000, 1_000), 0, about);
    let frame = qcn::Frame { destination: to, source: from, priority: 0, flow: None, message };
    let mut bytes = vec![0; frame.emitted_len()];
    frame.emit(&mut bytes);
    bytes
}

/// HOSTILE 17 and 33: a tenant that floods the network with notifications slows nobody else.
#[test]
fn hostile_33_a_tenant_that_sends_notifications_limits_nobody() {
    if !possible() {
        return;
    }
    let _alone = crate::testbed_lock();
    let file = file("flood", TENANTS);
    sluicenet(&["--quiet", "testbed", "up", &file.display().to_string()]);
    let down = || drop(Command::new(env!("CARGO_BIN_EXE_sluicenet")).args(["--quiet", "testbed", "down"]).output());
    let flooded = std::panic::catch_unwind(|| {
        let plan = Plan::new(&Scenario::load_with(&file, &[]).unwrap().scenario).unwrap();
        flood(&plan)
    });
    down();
    std::fs::remove_file(&file).unwrap();
    flooded.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn flood(plan: &Plan) {
    const DATAGRAMS: u64 = 2_000;
    let tenant = |host, vm| plan.tenant(host, vm).unwrap();
    let (hostile, from, to) = (tenant(0, 0), tenant(0, 1), tenant(1, 1));
    let socket = |tenant: &sluicenet_testbed::Tenant| {
        let namespace = Namespace::open(&tenant.namespace).unwrap();
        namespace.enter(|| UdpSocket::bind((tenant.address, 7000))).unwrap().unwrap()
    };
    let (sender, receiver) = (socket(from), socket(to));
    receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let over = AtomicBool::new(false);
    let (flood, datagrams) = std::thread::scope(|threads| {
        let flood = threads.spawn(|| {
            let inside = Namespace::open(&hostile.namespace).unwrap();
            let mut device = PacketDevice::open(&inside, "eth0", 64).unwrap();
            let stations = [to.mac, plan.servers[0].mac, plan.servers[1].mac];
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                for station in stations {
                    for about in stations {
                        sent += u64::from(device.send(&notification(hostile.mac, station, about)));
                    }
                }
                device.flush().unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
            sent
        });
        threads.spawn(|| {
            let mut bytes = [0; 1_000];
            for n in 0..DATAGRAMS {
                bytes[..8].copy_from_slice(&n.to_be_bytes());
                sender.send_to(&bytes, (to.address, 7000)).unwrap();
            }
        });
        let start = Instant::now();
        let mut seen = 0;
        let mut bytes = [0; 1_000];
        while seen < DATAGRAMS && start.elapsed().as_secs() < 60 && receiver.recv(&mut bytes).is_ok() {
            assert_eq!(u64::from_be_bytes(bytes[..8].try_into().unwrap()), seen, "in order, each once");
            seen += 1;
        }
        over.store(true, Ordering::Relaxed);
        (flood.join().unwrap(), seen)
    });
    assert_eq!(datagrams, DATAGRAMS);
    let statuses = Live::find().unwrap().statuses().unwrap();
    let counter = |name: &str| -> Vec<u64> {
        let of = |s: &sluicenet_vswitchd::status::Status| s.ports[0].counters[name];
        statuses.iter().map(of).collect()
    };
    let forged = counter("cnm_forged");
    println!("{flood} notifications of a tenant, {forged:?} of them dropped at uplinks");
    assert!(forged[0] > 100 && forged[1] == 0, "{forged:?} of {flood}");
    for name in ["limiters_made", "limiters", "cnm_received"] {
        assert_eq!(counter(name), [0, 0], "{name}");
    }
}

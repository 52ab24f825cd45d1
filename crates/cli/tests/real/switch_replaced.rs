//! A tenant is root in its namespace. Whatever it does with its devices, it delays its own port at most.

use crate::switch_start::{arrive, file, machine, port};
use crate::switching::Running;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_testkit::netns::{Namespaces, missing, system};
use sluicenet_vswitchd::attach::{add_port, remove_port};
use sluicenet_vswitchd::control::{Answer, Request};
use sluicenet_vswitchd::status::{PortStatus, Status};
use std::time::{Duration, Instant};

/// Less than the switch waits for the frames of a tenant's device: 7 s for the first one, 5 s for those that it measures.
const LESS: Duration = Duration::from_secs(5);

fn has(status: &Status, names: [&str; 2]) -> bool {
    names.iter().all(|name| status.ports.iter().any(|p| p.name == *name && p.is_present()))
}

fn within<T>(what: &str, most: Duration, act: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = act();
    assert!(began.elapsed() < most, "{what}: {:?}", began.elapsed());
    done
}

/// A switch with the ports `v1` to `v3` of the first three namespaces, all in service, and the ports in its file. The fourth
/// namespace has a pair, too.
fn serve(name: &str, switch: &str, machines: [&str; 4]) -> (Running, String) {
    (1..).zip(machines).for_each(|(n, own)| machine(switch, own, n));
    let [a, b, c, _] = machines;
    let ports = file(switch, &[(1, a), (2, b), (3, c)]);
    let running = Running::heard(name, &format!("user = \"nobody\"\n{ports}"));
    running.until("all", |s| s.ports.iter().filter(|p| p.is_present()).count() == 3);
    (running, ports)
}

/// The settings of a port of the fourth namespace.
fn fourth(switch: &str, late: &str) -> [String; 3] {
    [format!("netns={switch}"), format!("tenant_netns={late}"), "kind=veth".to_owned()]
}

/// Everything that others ask of a switch meanwhile is done as if the tenant of `v3` were not there.
fn others_go_on(running: &mut Running, switch: &str, [a, b, late]: [&str; 3], both: &str) {
    running.kill();
    within("a restart", LESS, || {
        running.again();
        running.until("the others", |s| has(s, ["v1", "v2"]));
    });
    arrive(a, b, "10.0.0.2");
    let settings = fourth(switch, late);
    for _ in 0..3 {
        within("a port", LESS, || add_port(&running.control(), "v4", &settings).unwrap());
        arrive(a, late, "10.0.0.4");
        running.write(&format!("user = \"nobody\"\naging_time = \"100 s\"\n{both}"));
        let done = within("a reload", LESS, || running.ask(Request::Reload));
        assert!(matches!(&done, Answer::Ok(done) if done == "0 ports added, 0 removed, 0 changed"), "{done:?}");
        remove_port(&running.control(), "v4").unwrap();
    }
    assert!(!port(&running.status(), "v3").is_present());
}

#[test]
fn a_tenant_that_puts_another_pair_in_place_of_its_own_delays_nobody() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("replaced", 5);
    let [switch, a, b, c, late] = [0, 1, 2, 3, 4].map(|n| all.0[n].as_str());
    let (mut running, ports) = serve("replaced", switch, [a, b, c, late]);
    // Its own pair has another name, and a pair that leads to nobody has the name that the file says.
    for line in [
        "link set eth0 down",
        "link set eth0 name own",
        "link set own up",
        "link add eth0 type veth peer name other",
        "link set eth0 address 02:00:00:00:00:03",
        "link set other up",
        "link set eth0 up",
    ] {
        system(&format!("ip -n {c} {line}")).unwrap();
    }
    others_go_on(&mut running, switch, [a, b, late], &ports);
    let absent = port(&running.status(), "v3").absent.clone().unwrap();
    let words = format!("the device eth0 of {c}: v3 is not the other end of its pair");
    assert!(absent.reason.starts_with(&words), "{absent:?}");
    // Nothing was done to its device.
    let queue = std::process::Command::new("tc").args(["-n", c, "qdisc", "show", "dev", "eth0"]).output().unwrap();
    let queue = String::from_utf8(queue.stdout).unwrap();
    assert!(!queue.contains("tbf"), "{queue}");
    // It mends what it did.
    for line in ["link del eth0", "link set own down", "link set own name eth0", "link set eth0 up"] {
        system(&format!("ip -n {c} {line}")).unwrap();
    }
    running.until("it is back", |s| port(s, "v3").is_present());
    arrive(a, c, "10.0.0.3");
}

/// Whether a switch has begun to open the port of a namespace, or serves it.
fn is_claimed(netns: &str) -> bool {
    let read = || std::fs::read_to_string("/proc/thread-self/net/unix").unwrap();
    Namespace::open(netns).unwrap().enter(read).unwrap().contains("@sluicenet-valve")
}

/// The pair is the right one, but its frames do not arrive: the switch waits for them, for this port alone.
#[test]
fn a_tenant_whose_device_takes_no_frame_delays_nobody() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let all = Namespaces::new("deaf", 5);
    let [switch, a, b, c, late] = [0, 1, 2, 3, 4].map(|n| all.0[n].as_str());
    let (mut running, ports) = serve("deaf", switch, [a, b, c, late]);
    // A bridge takes all frames of a device in it.
    for line in ["link add br0 type bridge", "link set br0 up", "link set eth0 master br0"] {
        if let Err(why) = system(&format!("ip -n {c} {line}")) {
            return println!("SKIPPED: a tenant's bridge: {why}");
        }
    }
    others_go_on(&mut running, switch, [a, b, late], &ports);
    // Others also come while a reload waits for its device.
    let user = "user = \"nobody\"\n";
    running.write(&format!("{user}{}", file(switch, &[(1, a), (2, b)])));
    assert!(matches!(running.ask(Request::Reload), Answer::Ok(_)));
    running.until("the helper has given it up", |_| !is_claimed(c));
    running.write(&format!("{user}{ports}"));
    std::thread::scope(|scope| {
        let reload = scope.spawn(|| running.ask(Request::Reload));
        running.until("the reload waits", |_| is_claimed(c));
        add_port(&running.control(), "v4", &fourth(switch, late)).unwrap();
        if reload.is_finished() {
            eprintln!("SKIPPED: this machine needs more than 3 s for a port");
        }
        let done = reload.join().unwrap();
        assert!(matches!(&done, Answer::Ok(done) if done.contains("port v3 is absent")), "{done:?}");
    });
    arrive(a, late, "10.0.0.4");
    system(&format!("ip -n {c} link set eth0 nomaster")).unwrap();
    running.until("it is back", |s| s.ports.iter().all(PortStatus::is_present));
    arrive(a, c, "10.0.0.3");
}

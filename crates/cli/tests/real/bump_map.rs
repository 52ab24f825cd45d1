//! `sluicenet bump map`: the stations behind the ports of a real switch, and the speeds of these ports.

use crate::command::{command, expect};
use sluicenet_bench::ovs::Ovs;
use sluicenet_dataplane::kernel::netns::{self, Namespace};
use sluicenet_dataplane::process::Program;
use sluicenet_testkit::netns::{Namespaces, system};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A namespace with two devices, and a folder; gone when dropped.
struct Place {
    spaces: Namespaces,
    folder: PathBuf,
}

impl Place {
    fn new(test: &str, tools: &[&str]) -> Option<Place> {
        let missing = tools.iter().find(|tool| Command::new(tool).arg("--version").output().is_err());
        let lack = netns::may_make_namespaces().err().map(|e| e.to_string());
        if let Some(why) = lack.or(missing.map(|tool| format!("{tool} is not installed"))) {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let spaces = Namespaces::new(test, 1);
        let space = &spaces.0[0];
        for pair in ["p1 type veth peer name q1", "p2 type veth peer name q2"] {
            system(&format!("ip -n {space} link add {pair}")).unwrap();
        }
        for device in ["p1", "q1", "p2", "q2"] {
            system(&format!("ip -n {space} link set {device} up")).unwrap();
        }
        let folder = std::env::temp_dir().join(format!("sluicenet-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Some(Place { spaces, folder })
    }

    fn namespace(&self) -> Namespace {
        Namespace::open(&self.spaces.0[0]).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn open_vswitch_tells_its_stations_by_openflow() {
    let Some(place) = Place::new("mapovs", &["ovs-ofctl", "ovs-vswitchd"]) else { return };
    let _ovs = match Ovs::start(&place.namespace(), &place.folder, &["p1".into(), "p2".into()]) {
        Ok(ovs) => ovs,
        Err(e) => {
            eprintln!("SKIPPED: {e}");
            return;
        }
    };
    let switch = format!("unix:{}", place.folder.join("br0.mgmt").display());
    for (mac, port) in [("0a", 1), ("0b", 2), ("0c", 2)] {
        let flow = format!("priority=50,dl_dst=02:00:00:00:00:{mac},actions=output:{port}");
        let added = Command::new("ovs-ofctl").args(["add-flow", &switch, &flow]).output().unwrap();
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    }
    let (map, said) = expect(0, &["bump", "map", "--openflow", &switch, "--rate", "1000"]);
    assert!(said.contains("2 ports, 3 stations"), "{said}");
    assert!(map.contains("port = 2\n") && map.contains("[\"02:00:00:00:00:0b\", \"02:00:00:00:00:0c\"]"), "{map}");
    let (_, error) = expect(2, &["bump", "map", "--openflow", "unix:/nonexistent"]);
    assert!(error.contains("ovs-ofctl"), "{error}");
}

/// An agent that has only the forwarding table of a bridge: net-snmp asks this script for it, by `pass`.
const BRIDGE: &str = r#"#!/bin/sh
table="
.1.3.6.1.2.1.17.1.4.1.2.1=IF1
.1.3.6.1.2.1.17.1.4.1.2.2=IF2
.1.3.6.1.2.1.17.4.3.1.2.2.0.0.0.0.10=1
.1.3.6.1.2.1.17.4.3.1.2.2.0.0.0.0.11=2
"
say() { echo "${1%%=*}"; echo integer; echo "${1##*=}"; exit 0; }
for row in $table; do
    case "$1" in
        -g) [ "${row%%=*}" = "$2" ] && say "$row" ;;
        -n) later=$(printf '%s\n%s\n' "$2" "${row%%=*}" | sort -V | tail -1)
            [ "$later" != "$2" ] && say "$row" ;;
    esac
done
exit 0
"#;

#[test]
fn a_bridge_tells_its_stations_by_snmp() {
    let Some(place) = Place::new("mapsnmp", &["snmpd", "snmpbulkwalk"]) else { return };
    let space = &place.spaces.0[0];
    let index = |device: &str| {
        let out = Command::new("ip").args(["-n", space, "-j", "link", "show", device]).output().unwrap();
        let links: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        links[0]["ifindex"].as_u64().unwrap().to_string()
    };
    let script = place.folder.join("bridge.sh");
    std::fs::write(&script, BRIDGE.replace("IF1", &index("p1")).replace("IF2", &index("p2"))).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let settings = place.folder.join("snmpd.conf");
    std::fs::write(&settings, format!("rocommunity secret\npass .1.3.6.1.2.1.17 {}\n", script.display())).unwrap();
    let mut agent = Command::new("/usr/sbin/snmpd");
    agent
        .args(["-f", "-Lo", "-C", "-c"])
        .arg(&settings)
        .args(["-p"])
        .arg(place.folder.join("pid"))
        .arg("udp:127.0.0.1:1161");
    agent.env("SNMP_PERSISTENT_DIR", &place.folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _agent = Program::spawn(agent, Some(&place.namespace())).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    // The request comes from the agent's namespace.
    let program = command(&["bump", "map", "--snmp", "127.0.0.1:1161", "--community", "secret"]);
    let map = loop {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", space]).arg(program.get_program()).args(program.get_args());
        let out = inside.output().unwrap();
        if out.status.success() {
            break String::from_utf8(out.stdout).unwrap();
        }
        assert!(Instant::now() < until, "{}", String::from_utf8_lossy(&out.stderr));
        std::thread::sleep(Duration::from_millis(100));
    };
    // A veth says 10 Gb/s.
    assert!(map.contains("port = 1\nrate = \"10000000000 b/s\"\nmacs = [\"02:00:00:00:00:0a\"]"), "{map}");
    assert!(map.contains("port = 2\n") && map.contains("02:00:00:00:00:0b"), "{map}");
}

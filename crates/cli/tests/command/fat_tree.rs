//! `sluicenet fabric`: its output about a fat-tree, the use of that output in other tools, and refused input.

use crate::command::{expect, json, repository};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_testkit::Dir;
use sluicenet_testkit::netns::{self, Namespaces, system};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_fat_tree_is_described() {
    let d = json(0, &["fabric", "describe", "--k", "48"]);
    assert_eq!((d["hosts"].as_u64(), d["switches"]["total"].as_u64()), (Some(27_648), Some(2_880)));
    assert_eq!(d["paths_between_pods"], 576);
    let (text, _) = expect(0, &["fabric", "describe", "--k", "4"]);
    assert!(text.contains("10.4.1.1") && text.contains("equal-cost paths between pods"), "{text}");
}

#[test]
fn figure_3_3_is_printed() {
    let (text, _) = expect(0, &["fabric", "tables", "--k", "4", "--switch", "10.2.2.1"]);
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    for row in [["0", "10.2.0.0/24", "0", "10.2.0.1"], ["1", "10.2.1.0/24", "1", "10.2.1.1"]] {
        assert!(rows.iter().any(|r| r == &row), "{text}");
    }
    assert!(rows.iter().any(|r| r == &["3", "0.0.0.3/8", "(suffix)", "3", "10.4.2.1"]), "{text}");
    let all = json(0, &["fabric", "tables", "--k", "4"]);
    assert_eq!(all.as_array().unwrap().len(), 20);
    let same = json(0, &["fabric", "tables", "--k", "4", "--format", "json"]);
    assert_eq!(all, same);
}

#[test]
fn open_vswitch_takes_the_flows() {
    if Command::new("ovs-ofctl").arg("--version").output().is_err() {
        eprintln!("skipped: ovs-ofctl is not installed");
        return;
    }
    let dir = Dir::new("fabric-flows");
    for switch in ["10.0.1.1", "10.2.2.1", "10.4.2.1"] {
        let (flows, _) = expect(0, &["fabric", "tables", "--k", "4", "--switch", switch, "--format", "ovs"]);
        let file = dir.file("flows", &flows);
        let parsed = Command::new("ovs-ofctl").args(["-O", "OpenFlow13", "parse-flows", &file]).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&parsed.stdout), String::from_utf8_lossy(&parsed.stderr));
        assert!(parsed.status.success(), "{err}");
        assert_eq!(out.lines().filter(|l| l.contains("ADD")).count(), flows.lines().count(), "{out}{err}");
    }
}

#[test]
fn exports_have_twenty_switches_and_sixteen_hosts() {
    let (yaml, _) = expect(0, &["fabric", "export", "--k", "4", "--format", "containerlab", "--image", "debian:12"]);
    assert_eq!((yaml.matches("ovs-bridge").count(), yaml.matches("image: \"debian:12\"").count()), (20, 16));
    let value = json(0, &["fabric", "export", "--k", "4", "--format", "containerlab"]);
    assert_eq!(value["topology"]["nodes"].as_object().unwrap().len(), 36);
    let (commands, _) = expect(0, &["fabric", "export", "--k", "4", "--format", "ovs"]);
    assert_eq!(commands.lines().filter(|l| l.contains("add-br")).count(), 20);
    assert_eq!(commands.lines().filter(|l| l.contains("add-port")).count(), 80);
    let list = json(0, &["fabric", "export", "--k", "4", "--format", "ovs"]);
    assert_eq!(list.as_array().unwrap().len(), commands.lines().count());
}

#[test]
fn vlans_of_source_routing_are_exported() {
    let (csv, _) = expect(0, &["fabric", "export", "--k", "4", "--format", "vlan"]);
    // Edge switches have 4 ports, aggregation switches 4, and cores 4.
    assert_eq!(csv.lines().count(), 1 + 20 * 4, "{csv}");
    assert!(csv.contains("\ne0-0,0,e0-0p1,2-5\n") && csv.contains("\na1-1,3,a1-1p4,5\n"), "{csv}");
    assert!(csv.contains("\na1-1,0,a1-1p1,\"3,5\"\n") && csv.contains("\nc2-1,3,c2-1p4,4\n"), "{csv}");
    let rows = json(0, &["fabric", "export", "--k", "4", "--format", "vlan"]);
    assert_eq!(rows[0]["vids"], "2-5");
    let (_, error) = expect(2, &["fabric", "export", "--k", "128", "--format", "vlan"]);
    assert!(error.contains("4096 cores") && error.contains("at most 4093"), "{error}");
}

#[test]
fn cost_and_cables() {
    let prices = repository("scenarios/alfares2012/prices-2008.toml");
    // Four ports of switches that have 48, and are paid for and powered whole.
    let (part, _) = expect(0, &["fabric", "cost", "--k", "4", "--prices", &prices]);
    assert!(part.contains("Not a comparison") && part.contains("4 of the 48 ports") && !part.contains(" %"), "{part}");
    let (whole, _) = expect(0, &["fabric", "cost", "--k", "48", "--prices", &prices]);
    assert!(!whole.contains("Not a comparison") && whole.contains(" %"), "{whole}");
    let c = json(0, &["fabric", "cost", "--k", "48", "--prices", &prices, "--oversubscription", "1,3,7"]);
    assert_eq!((c["hosts"].as_u64(), c["networks"].as_array().unwrap().len()), (Some(27_648), 4));
    let (text, _) = expect(0, &["fabric", "cost", "--hosts", "20000", "--prices", &prices]);
    assert!(text.contains("hierarchical, 3:1") && text.contains("20,000 hosts"), "{text}");
    let c = json(0, &["fabric", "cables", "--k", "48"]);
    assert_eq!((c["pod_racks"].as_u64(), c["cores_far"]["bundle_cables"].as_u64()), (Some(12), Some(12)));
    let (text, _) = expect(0, &["fabric", "cables", "--k", "48", "--rise", "3"]);
    assert!(text.contains("7 x 7"), "{text}");
}

#[test]
fn numbers_that_are_no_fat_tree_and_lists_with_holes_are_told() {
    for (k, why) in
        [("5", "even"), ("0", "ports"), ("256", "254"), ("4000000000", "254"), ("-4", "--k"), ("four", "even number")]
    {
        let arg = format!("--k={k}");
        for verb in ["describe", "tables", "cables"] {
            assert!(expect(2, &["fabric", verb, &arg]).1.contains(why), "{verb} {k}");
        }
    }
    assert!(expect(2, &["fabric", "tables", "--k", "4", "--switch", "10.9.0.1"]).1.contains("no such switch"));
    assert!(expect(2, &["fabric", "tables", "--k", "4", "--format", "ovs"]).1.contains("--switch"));
    expect(2, &["fabric", "export", "--k", "4", "--format", "containerlab", "--image", "a\"b"]);
    let dir = Dir::new("fabric-prices");
    let good = std::fs::read_to_string(repository("scenarios/alfares2012/prices-2012.toml")).unwrap();
    let holes = dir.file("holes.toml", &good.replace("price = 2192", "# price = 2192"));
    let (_, err) = expect(2, &["fabric", "cost", "--hosts", "100", "--prices", &holes]);
    let line = good.lines().take_while(|l| !l.contains("four 10GigE")).count();
    assert!(err.contains("`price` is missing") && err.contains(&format!("holes.toml:{line}")), "{err}");
    let none = dir.path("none.toml");
    assert!(expect(2, &["fabric", "cost", "--hosts", "100", "--prices", &none]).1.contains("no such file"));
    expect(2, &["fabric", "cost", "--prices", &holes]);
    let good = repository("scenarios/alfares2012/prices-2012.toml");
    for (args, why) in [(["--hosts", "0"], "no hosts"), (["--hosts", "27649"], "27649"), (["--k", "50"], "48 ports")] {
        let (_, err) = expect(2, &["fabric", "cost", args[0], args[1], "--prices", &good]);
        assert!(err.contains(why), "{err}");
    }
    expect(2, &["fabric", "cost", "--hosts", "9", "--prices", &good, "--oversubscription", "nan"]);
}

#[test]
fn the_comparison_tree_of_3_5_is_a_scenario() {
    let dir = Dir::new("fabric-tree");
    let text = "[topology]\nkind = \"xgft\"\nm = [4, 4]\nw = [1, 1]\nlink_rate = \"96 Mb/s\"\n\
                [[topology.level]]\nlevel = 2\nrate = \"106.67 Mb/s\"\n\
                [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 5\nbytes = \"1 MB\"\ntransport = \"udp\"\n";
    let file = dir.file("tree.toml", text);
    let v = json(0, &["validate", &file]);
    assert_eq!((v["hosts"].as_u64(), v["switches"].as_u64()), (Some(16), Some(5)), "{v}");
    let rates: Vec<f64> = v["links_by_kind"].as_array().unwrap().iter().filter_map(|l| l["gbps"].as_f64()).collect();
    assert!(rates.contains(&0.096) && rates.contains(&0.10667), "{v}");
}

const OVS_SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Open vSwitch's programs in a namespace, with their files in a directory; they end with this.
struct Ovs<'a> {
    dir: &'a Dir,
    programs: Vec<Child>,
}

impl<'a> Ovs<'a> {
    fn start(dir: &'a Dir, namespace: &str) -> Ovs<'a> {
        let mut ovs = Ovs { dir, programs: Vec::new() };
        ovs.run(&format!("ovsdb-tool create {} {OVS_SCHEMA}", dir.path("conf.db")));
        let socket = dir.path("db.sock");
        let server =
            format!("ovsdb-server {} --remote=punix:{socket} --unixctl={}", dir.path("conf.db"), dir.path("db.ctl"));
        ovs.spawn(namespace, &server);
        let until = Instant::now() + Duration::from_secs(60);
        while !Path::new(&socket).exists() {
            assert!(Instant::now() < until, "the database did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        ovs.run("ovs-vsctl --timeout=60 --no-wait init");
        ovs.spawn(namespace, &format!("ovs-vswitchd unix:{socket} --unixctl={}", dir.path("vs.ctl")));
        ovs
    }

    fn tool(&self, line: &str) -> Command {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap());
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, &self.dir.0);
        }
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn spawn(&mut self, namespace: &str, line: &str) {
        let child = self.tool(&format!("ip netns exec {namespace} {line}")).stderr(Stdio::null()).spawn().unwrap();
        self.programs.push(child);
    }

    fn run(&self, line: &str) {
        let out = self.tool(line).output().unwrap();
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

impl Drop for Ovs<'_> {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

#[test]
fn over_open_vswitch_every_host_reaches_every_other_and_what_nobody_has_goes_nowhere() {
    let tools = ["ovsdb-server -V", "ovs-vswitchd -V", "ovs-vsctl -V", "ovs-ofctl -V"];
    let lacks = netns::missing().or_else(|| tools.iter().find_map(|tool| system(tool).err()));
    if let Some(lacks) = lacks.or_else(|| (!Path::new(OVS_SCHEMA).exists()).then(|| format!("no {OVS_SCHEMA}"))) {
        eprintln!("skipped: {lacks}");
        return;
    }
    let dir = Dir::new("fabric-ovs");
    let lab = json(0, &["fabric", "export", "--k", "4", "--format", "containerlab"]);
    let nodes = lab["topology"]["nodes"].as_object().unwrap();
    let hosts: Vec<&String> = nodes.iter().filter(|n| n.1["kind"] == "linux").map(|n| n.0).collect();
    let spaces = Namespaces::new("tree", 1 + hosts.len());
    let (switches, rest) = spaces.0.split_first().unwrap();
    let space: BTreeMap<&str, &String> = hosts.iter().map(|h| h.as_str()).zip(rest).collect();
    // Links as containerlab makes them: the device of a bridge is in the bridges' namespace, a host's in its own.
    for link in lab["topology"]["links"].as_array().unwrap() {
        let end = |i: usize| link["endpoints"][i].as_str().unwrap().split_once(':').unwrap();
        let ((node, device), (_, at)) = (end(0), end(1));
        let of_host = space.get(node).map(|s| format!(" netns {s}")).unwrap_or_default();
        system(&format!("ip -n {switches} link add {at} type veth peer name {device}{of_host}")).unwrap();
        let lower = space.get(node).map_or(switches.as_str(), |s| s.as_str());
        for (space, device) in [(switches.as_str(), at), (lower, device)] {
            system(&format!("ip -n {space} link set {device} up")).unwrap();
        }
    }
    let mut ends: Vec<(Ipv4Addr, UdpSocket)> = Vec::new();
    for host in &hosts {
        let space = space[host.as_str()];
        // The switch in user space sums nothing up that a sender left to its device.
        system(&format!("ip netns exec {space} ethtool -K eth1 tx off")).unwrap();
        let command = nodes[host.as_str()]["exec"][0].as_str().unwrap();
        system(&format!("ip netns exec {space} {command}")).unwrap();
        let address: Ipv4Addr = command.split([' ', '/']).find_map(|word| word.parse().ok()).unwrap();
        let inside = Namespace::open(space).unwrap();
        let socket = inside.enter(|| UdpSocket::bind((address, 9))).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        ends.push((address, socket));
    }
    let ovs = Ovs::start(&dir, switches);
    let (commands, _) = expect(0, &["fabric", "export", "--k", "4", "--format", "ovs"]);
    // Twice: they can be repeated.
    for line in commands.lines().chain(commands.lines()) {
        // Not every kernel has the other datapath.
        ovs.run(&line.replace("protocols=", "datapath_type=netdev protocols="));
    }
    let until = Instant::now() + Duration::from_secs(60);
    for (from, socket) in &ends {
        for (to, receiver) in ends.iter().filter(|end| end.0 != *from) {
            loop {
                assert!(Instant::now() < until, "nothing came from {from} to {to}");
                let _ = socket.send_to(&to.octets(), (*to, 9));
                let mut buffer = [0; 64];
                match receiver.recv_from(&mut buffer) {
                    // Late datagrams of an earlier pair are passed over.
                    Ok((4, SocketAddr::V4(source))) if source.ip() == from && buffer[..4] == to.octets() => break,
                    _ => {}
                }
            }
        }
    }
    // A question for 10.2.2.2 is dropped in pod 2; by the tables of figure 3.5 alone it would go round.
    let _ = ends[0].1.send_to(&[0], (Ipv4Addr::new(10, 2, 2, 2), 9));
    let dropped = || {
        let mut flows = ovs.tool("ovs-ofctl -O OpenFlow13 dump-flows a2-0 arp,arp_tpa=10.2.0.0/16");
        let flows = flows.stdout(Stdio::piped()).output().unwrap();
        let text = String::from_utf8_lossy(&flows.stdout).into_owned();
        let of = |line: &str| line.split("n_packets=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        text.lines().filter(|l| l.contains("actions=drop")).filter_map(of).sum::<u64>()
    };
    while dropped() == 0 {
        assert!(Instant::now() < until, "the question was not dropped where it should be");
        std::thread::sleep(Duration::from_millis(50));
    }
}

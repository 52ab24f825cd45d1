//! Frames of every kind between the tenants of two switches over an overlay: to a station that never spoke, larger than the
//! overlay carries, IPv6, and DHCP. Tenants and link have an MTU of 1500, and ports have a `mac` and no `ip`.

use crate::switching::Running;
use serde_json::Value;
use sluicenet_testkit::netns::{Namespaces, missing, system};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Ends with the test.
pub struct Program(pub Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The cable, the controller, and the tenants: two at server 1, two at server 2.
const FAB: usize = 0;
const CTL: usize = 1;
const TENANTS: [(usize, u8); 4] = [(2, 1), (3, 1), (4, 2), (5, 2)];
const DHCP_SERVER: usize = 5;
/// However slow the machine, nothing is taken for stuck, and the room is for a neighbour as slow.
const SLOW_MACHINE: &str = "response = \"500 ms\"\n[watchdog]\ndetection_time = \"3600 s\"\n";

pub fn inside(netns: &str, line: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns]).args(line.split(' '));
    command
}

fn run(netns: &str, line: &str) -> Output {
    inside(netns, line).output().unwrap_or_else(|e| panic!("{line}: {e}"))
}

/// Runs a command that must succeed.
fn succeeds(netns: &str, line: &str) -> String {
    let out = run(netns, line);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{line}: {said}{}", String::from_utf8_lossy(&out.stderr));
    said
}

/// A ping of which no request stays without an answer.
fn pings(netns: &str, line: &str) {
    let said = succeeds(netns, &format!("ping -W 20 {line}"));
    assert!(said.contains(" 0% packet loss"), "{line}: {said}");
}

/// The namespaces with their devices and addresses: six of them.
pub fn prepare(all: &Namespaces) -> Result<(), String> {
    let name = |n: usize| all.0[n].as_str();
    system(&format!("ip -n {} link add u1 type veth peer name u2", name(FAB)))?;
    for n in 1..=2 {
        system(&format!("ip -n {} link set u{n} up", name(FAB)))?;
    }
    for a in [1, 11, 12] {
        system(&format!("ip -n {} addr add 172.16.0.{a}/32 dev lo", name(CTL)))?;
    }
    for (tenant, _) in TENANTS {
        let ns = name(tenant);
        system(&format!("ip -n {} link add p{tenant} type veth peer name eth0 netns {ns}", name(FAB)))?;
        system(&format!("ip -n {ns} link set eth0 address 02:00:00:00:00:0{tenant}"))?;
        // The second station of server 1 gets its address by DHCP.
        if tenant != 3 {
            system(&format!("ip -n {ns} addr add 10.0.0.{tenant}/24 dev eth0"))?;
        }
        system(&format!("ip -n {ns} addr add fd00::{tenant}/64 dev eth0 nodad"))?;
        system(&format!("ip -n {} link set p{tenant} up", name(FAB)))?;
        system(&format!("ip -n {ns} link set eth0 up"))?;
    }
    Ok(())
}

/// The file of a server, with more keys of its uplink and more sections.
pub fn file(all: &Namespaces, folder: &Path, n: u8, uplink: &str, stack: &str) -> String {
    let [fab, ctl] = [FAB, CTL].map(|n| &all.0[n]);
    let other = 3 - n;
    let mut file = format!(
        "log = \"json\"\n[uplink]\ndevice = \"u{n}\"\nnetns = \"{fab}\"\nmac = \"02:00:00:00:01:0{n}\"\n\
         rate = \"1 Gb/s\"\n{uplink}[overlay]\naddress = \"172.16.0.1{n}\"\n\
         controller = \"172.16.0.1:49789\"\ncontroller_netns = \"{ctl}\"\nkey = \"{}/s{n}.key\"\n{stack}\
         [[network]]\ntenant = 7\nvni = 7007\n[[server]]\naddress = \"172.16.0.1{other}\"\n\
         mac = \"02:00:00:00:01:0{other}\"\n",
        folder.display()
    );
    for (tenant, _) in TENANTS.into_iter().filter(|(_, server)| *server == n) {
        file += &format!(
            "[[port]]\nname = \"t{tenant}\"\nkind = \"veth\"\nnetns = \"{fab}\"\ndevice = \"p{tenant}\"\n\
             tenant_netns = \"{}\"\ntenant = 7\nmac = \"02:00:00:00:00:0{tenant}\"\n",
            all.0[tenant]
        );
        if tenant == DHCP_SERVER {
            file += "dhcp_server = true\n";
        }
    }
    file
}

pub fn controller(all: &Namespaces, folder: &Path) -> Program {
    let mut text = format!("[controller]\nlisten = \"172.16.0.1:49789\"\nnetns = \"{}\"\n", all.0[CTL]);
    for n in 1..=2u8 {
        let key = folder.join(format!("s{n}.key"));
        std::fs::write(&key, format!("{n:02x}").repeat(32)).unwrap();
        std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        text += &format!("[[server]]\naddress = \"172.16.0.1{n}\"\nkey = \"s{n}.key\"\n");
    }
    let file = folder.join("controller.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    Program(command.args(["--quiet", "controller"]).arg(file).stdout(Stdio::null()).spawn().unwrap())
}

/// An iperf3 between two tenants, of which no datagram may be lost. A client that comes before its server listens, or whose
/// connection for control ends, has no result: then both start again.
fn iperf(from: &str, to: &str, address: &str, more: &str) {
    let until = Instant::now() + Duration::from_secs(60);
    let sum = loop {
        let _server = Program(inside(to, "iperf3 -s -1").stdout(Stdio::null()).spawn().unwrap());
        std::thread::sleep(Duration::from_millis(300));
        let said = run(from, &format!("iperf3 -c {address} -J {more}")).stdout;
        let said: Value = serde_json::from_slice(&said).unwrap_or_default();
        let sum = &said["end"]["sum"];
        if sum["packets"].is_u64() {
            break sum.clone();
        }
        println!("iperf3 {more}: {}", said["error"]);
        assert!(Instant::now() < until, "iperf3 {more}: {said}");
    };
    let [lost, all] = ["lost_packets", "packets"].map(|key| sum[key].as_u64().unwrap_or(u64::MAX));
    println!("iperf3 {more}: {lost} of {all} lost");
    assert_eq!(lost, 0, "iperf3 {more}: {sum}");
    assert!(all > 50, "{sum}");
}

/// A lease of the server behind the other switch, and a ping with the address.
fn dhcp(all: &Namespaces, folder: &Path) {
    let (client, server) = (&all.0[3], &all.0[DHCP_SERVER]);
    let line = format!(
        "dnsmasq --no-daemon --conf-file=/dev/null --port=0 --interface=eth0 --bind-interfaces --user=root \
         --dhcp-range=10.0.0.100,10.0.0.150,255.255.255.0,120 --dhcp-leasefile={0}/leases --pid-file={0}/dnsmasq.pid",
        folder.display()
    );
    let _server = Program(inside(server, &line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let script = folder.join("bound");
    std::fs::write(&script, "#!/bin/sh\n[ \"$1\" = bound ] && ip addr add \"$ip/24\" dev eth0\nexit 0\n").unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    succeeds(client, &format!("busybox udhcpc -i eth0 -f -n -q -t 20 -T 2 -s {}", script.display()));
    let addresses = succeeds(client, "ip -4 -o addr show dev eth0");
    assert!(addresses.contains("10.0.0.1"), "{addresses}");
    pings(client, "-c 3 -i 0.2 10.0.0.5");
    system(&format!("ip -n {client} -4 addr flush dev eth0")).unwrap();
    let _ = std::fs::remove_file(folder.join("leases"));
}

#[test]
fn frames_of_every_kind_reach_the_tenants_of_another_server() {
    let tools = ["ping -V", "iperf3 --version", "busybox udhcpc --help", "dnsmasq --version"];
    let lacks = |tool: &&str| {
        let name = tool.split(' ').next().unwrap();
        let found = Command::new(name).args(tool.split(' ').skip(1)).output();
        found.is_err().then(|| format!("{name} is not installed"))
    };
    if let Some(why) = missing().or_else(|| tools.iter().find_map(lacks)) {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let all = Namespaces::new("every-kind", 6);
    prepare(&all).unwrap();
    let folder = std::env::temp_dir().join(format!("sluicenet-overlay-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (a, b) = (&all.0[2], &all.0[4]);
    // Small datagrams that must not be fragmented would teach the tenant the overlay's MTU.
    system(&format!("ip netns exec {a} sysctl -qw net.ipv4.ip_no_pmtu_disc=1")).unwrap();
    for (i, stack) in
        ["", "[zcredit]\n", "[zbridge]\n", "[zcredit]\n[zbridge]\n", "[tcp_tunnel]\n"].into_iter().enumerate()
    {
        println!("with {stack:?}");
        let _controller = controller(&all, &folder);
        let servers =
            [1, 2].map(|n| Running::start(&format!("overlay{i}{n}"), &file(&all, &folder, n, SLOW_MACHINE, stack)));
        for server in &servers {
            server.until("everybody is there", |s| s.ports.iter().all(|p| p.number.is_some()));
        }
        // Nobody has spoken since the switches started, and nobody knows anybody.
        for (tenant, _) in TENANTS {
            let _ = system(&format!("ip -n {} neigh flush all", all.0[tenant]));
        }
        pings(a, "-c 5 -i 0.2 10.0.0.4");
        pings(a, "-c 10 -i 0.05 -s 4000 10.0.0.4");
        pings(a, "-c 10 -i 0.05 -s 1472 10.0.0.4");
        pings(a, "-6 -c 5 -i 0.2 fd00::4");
        iperf(a, b, "10.0.0.4", "-u -l 40000 -b 40M -n 4M");
        // Datagrams that the switch cuts, and whose checksum their kernel leaves to it.
        iperf(a, b, "10.0.0.4", "-u -l 1470 -b 20M -n 500K");
        dhcp(&all, &folder);
        let uplink = |server: &Running, name: &str| {
            let status = server.status();
            let port = status.ports.iter().find(|p| p.name == "uplink").unwrap();
            port.counters.get(name).copied().unwrap_or(0)
        };
        let [cut, copies] = ["fragmented", "group_copies"].map(|name| uplink(&servers[0], name));
        println!("{cut} packets cut, {copies} copies");
        assert!(cut > 100 && copies > 0);
        for lost in ["no_credit", "headroom_exceeded", "bad_crc", "tunnel_ended"] {
            assert_eq!(servers.each_ref().map(|server| uplink(server, lost)), [0, 0], "{lost}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

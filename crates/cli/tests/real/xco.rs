//! XCo on real frames: switches whose uplinks have gates, a bridge of the kernel with a slow port between them, and a controller
//! as a process.

use crate::command::command;
use crate::switching::Running;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns::{self, Namespace};
use sluicenet_testkit::netns::{Namespaces, missing, system};
use sluicenet_vswitchd::control::{Answer, Request, ask};
use sluicenet_vswitchd::status::Status;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PAYLOAD: usize = 1400;
/// Datagrams of each sender: many times what the slow port holds.
const EACH: u64 = 3_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// The slow port: its buffer holds 128 ms of it, 64 slices, for an agent that a busy machine does not run when its slice ends.
const SLOW: &str = "tbf rate 100mbit burst 5kb limit 1600kb";
/// Memory for datagrams at the receiver, bookkeeping of 900 B each included: more than all of them need, so that none is lost
/// while a busy machine does not run it.
const RECEIVE_MEMORY: i32 = 16 << 20;

fn lacks() -> Option<String> {
    missing().or_else(|| netns::may_make_namespaces().err().map(|e| e.to_string())).or_else(|| system("tc -V").err())
}

/// Three servers with a switch each, behind the ports of a bridge; the port to server 2 is slow. The controller is at a port, too.
struct Net {
    lan: Lan,
    tag: String,
    folder: PathBuf,
}

impl Net {
    fn new(tag: &str) -> Option<Net> {
        if let Some(why) = lacks() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let lan = Lan::create(tag, 3, Wiring::Valve).unwrap();
        let ns = lan.switch().name().to_owned();
        let run = |line: &str| system(line).unwrap();
        run(&format!("ip -n {ns} link add br0 type bridge"));
        for (n, device) in ["up0", "up1", "up2", "ctl0", "ctl1"].iter().enumerate() {
            run(&format!("ip -n {ns} link add {device} type veth peer name b{n}"));
            run(&format!("ip -n {ns} link set b{n} master br0"));
            for device in [device, format!("b{n}").as_str()] {
                run(&format!("ip netns exec {ns} sysctl -qw net.ipv6.conf.{device}.disable_ipv6=1"));
                run(&format!("ip -n {ns} link set {device} up"));
            }
        }
        run(&format!("ip -n {ns} link set br0 up"));
        run(&format!("tc -n {ns} qdisc add dev b2 root {SLOW}"));
        let folder = std::env::temp_dir().join(format!("sluicenet-{tag}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Some(Net { lan, tag: tag.to_owned(), folder })
    }

    fn switch(&self, n: usize, xco: &str) -> Running {
        let (tag, ns) = (&self.tag, self.lan.switch().name());
        let stations: String = (0..3)
            .map(|host| {
                let mac = Lan::mac(host).map(|byte| format!("{byte:02x}")).join(":");
                format!("[[host]]\nhost = {host}\nmacs = [\"{mac}\"]\n")
            })
            .collect();
        let xco = match xco {
            "" => String::new(),
            keys => format!("[xco]\nhost = {n}\n{keys}\n{stations}"),
        };
        let file = format!(
            "[watchdog]\ndetection_time = \"3600 s\"\n\
             [uplink]\ndevice = \"up{n}\"\nnetns = \"{ns}\"\nmac = \"02:00:00:00:99:0{n}\"\nrate = \"100 Mb/s\"\n\
             response = \"500 ms\"\nsegmentation = false\n{xco}\
             [[port]]\nname = \"t\"\nkind = \"veth\"\nnetns = \"{ns}\"\ndevice = \"p{n}\"\n\
             tenant_netns = \"sluice-{tag}-{n}\"\ntenant_device = \"{DEVICE}\"\n"
        );
        Running::start(&format!("{tag}{n}"), &file)
    }

    fn switches(&self, xco: &str) -> Vec<Running> {
        let all: Vec<Running> = (0..3).map(|n| self.switch(n, xco)).collect();
        for switch in &all {
            switch.until("everybody is there", |s| s.ports.iter().all(|p| p.number.is_some()));
        }
        all
    }

    /// Starts a controller at a port and waits until it answers.
    fn controller(&self, port: usize, keys: &str) -> Controller {
        let ns = self.lan.switch().name();
        let control = self.folder.join(format!("c{port}.sock"));
        let text = format!(
            "[xco]\ncontrol = \"{}\"\ndevice = \"ctl{port}\"\nnetns = \"{ns}\"\nmac = \"02:00:00:00:ff:0{port}\"\n{keys}\n\
             [topology]\nkind = \"single-switch\"\nhosts = 3\nlink_rate = \"100 Mb/s\"\n",
            control.display()
        );
        start(&self.folder.join(format!("c{port}.toml")), &text, "run", control)
    }

    /// Servers 0 and 1 send to server 2. Returns how many datagrams arrived.
    fn load(&self) -> u64 {
        let to = Lan::socket(2, 7000);
        let sink = Sink::bind(self.lan.tenant(2), to, PAYLOAD, 2).unwrap();
        let senders = [0, 1].map(|i| Sender::new(self.lan.tenant(i), i as u16, to, PAYLOAD).unwrap());
        arrived(sink, senders)
    }
}

/// All send at once, until all is sent; then waits until nothing more arrives. Returns how much did.
fn arrived(mut sink: Sink, senders: [Sender; 2]) -> u64 {
    sink.hold(RECEIVE_MEMORY).unwrap();
    std::thread::scope(|scope| {
        let senders = senders.map(|mut sender| {
            scope.spawn(move || {
                while sender.sent() < EACH {
                    sender.send(EACH - sender.sent()).unwrap();
                }
            })
        });
        let mut last = Instant::now();
        while sink.received() < 2 * EACH {
            if sink.receive(64).unwrap() > 0 {
                last = Instant::now();
            }
            let sent = senders.iter().all(|sender| sender.is_finished());
            if last.elapsed() > if sent { Duration::from_secs(3) } else { PATIENCE } {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    sink.received()
}

/// Starts a program of XCo with this file and waits until it answers.
pub fn start(file: &std::path::Path, text: &str, verb: &str, control: PathBuf) -> Controller {
    std::fs::write(file, text).unwrap();
    let args = ["xco", verb, file.to_str().unwrap(), "--quiet"];
    let child = command(&args).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
    let program = Controller { child, control };
    program.until("it answers", |_| true);
    program
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A controller or an agent.
pub struct Controller {
    child: Child,
    control: PathBuf,
}

impl Controller {
    pub fn until(&self, what: &str, so: impl Fn(&Status) -> bool) -> Status {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Ok(Answer::Status(status)) = ask(&self.control, &Request::Show)
                && so(&status)
            {
                return *status;
            }
            assert!(Instant::now() < until, "{what}: {:?}", ask(&self.control, &Request::Show));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn members(&self, members: usize) -> Status {
        self.until("all hosts join", |s| s.xco.as_ref().is_some_and(|x| x.members == members))
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let pid = match ask(&self.control, &Request::Show) {
            Ok(Answer::Status(status)) => Some(status.pid),
            _ => None,
        };
        // The supervisor of an agent first: it would start another one.
        self.kill();
        if let Some(pid) = pid {
            let _ = system(&format!("kill -9 {pid}"));
        }
    }
}

fn uplink(status: &Status, counter: &str) -> u64 {
    let port = status.ports.iter().find(|p| p.name == "uplink").unwrap();
    port.counters.get(counter).copied().unwrap_or_else(|| panic!("{counter}: {port:?}"))
}

const GATE: &str = "controller = \"02:00:00:00:ff:00\"\nlease = \"5 s\"";

#[test]
fn senders_to_a_slow_port_lose_without_coordination_and_nothing_with_it() {
    let Some(net) = Net::new("xcoslow") else { return };
    {
        let _switches = net.switches("");
        let arrived = net.load();
        println!("without XCo: {arrived} of {} datagrams", 2 * EACH);
        assert!(arrived < 2 * EACH, "the slow port lost nothing: it is no bottleneck");
    }
    let controller = net.controller(0, "lease = \"5 s\"");
    let switches = net.switches(GATE);
    controller.members(3);
    let arrived = net.load();
    let status = controller.members(3);
    let xco = status.xco.unwrap();
    println!("with XCo: {arrived} of {} datagrams; controller {:?}", 2 * EACH, xco.events);
    for (n, switch) in switches.iter().enumerate() {
        let status = switch.status();
        println!(
            "server {n}: {:?}",
            status.ports[0].counters.iter().filter(|(name, _)| name.starts_with("xco")).collect::<Vec<_>>()
        );
        assert_eq!(
            uplink(&status, "xco_uncontrolled_frames") + uplink(&status, "xco_starved"),
            0,
            "server {n} passed frames"
        );
    }
    assert_eq!(arrived, 2 * EACH);
    assert!(xco.events["directives"] > 0);
}

#[test]
fn without_its_controller_everybody_sends_and_with_it_they_wait_again() {
    let Some(net) = Net::new("xcokill") else { return };
    let mut controller = net.controller(0, "lease = \"100 ms\"");
    let gate = GATE.replace("5 s", "100 ms");
    let switches = net.switches(&gate);
    controller.members(3);
    switches[0].until("it is a member", |s| uplink(s, "xco_member") == 1 && uplink(s, "xco_uncontrolled") == 0);
    let killed = Instant::now();
    controller.kill();
    switches[0].until("all frames pass", |s| uplink(s, "xco_uncontrolled") == 1);
    println!("free {:?} after the controller was killed (lease 100 ms)", killed.elapsed());
    assert!(net.load() > 0);
    assert!(uplink(&switches[0].status(), "xco_uncontrolled_frames") > 0);
    let controller = net.controller(0, "lease = \"5 s\"");
    controller.members(3);
    for switch in &switches {
        switch.until("it is controlled again", |s| uplink(s, "xco_uncontrolled") == 0);
    }
    assert_eq!(net.load(), 2 * EACH);
}

#[test]
fn a_standby_takes_over() {
    let Some(net) = Net::new("xcopair") else { return };
    let key = net.folder.join("key");
    std::fs::write(&key, "01".repeat(32)).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let start = |n: usize| {
        let standby = if n == 1 { "\nstandby = true" } else { "" };
        let peer = 1 - n;
        let keys = format!("lease = \"500 ms\"\npeer = \"02:00:00:00:ff:0{peer}\"\nkey = \"key\"{standby}");
        net.controller(n, &keys)
    };
    let second = start(1);
    let mut both = vec![start(0), second];
    let state = |n: usize| *both[n].until("it answers", |s| s.xco.is_some()).xco.unwrap();
    let gate = format!("{}\nstandby = \"02:00:00:00:ff:01\"", GATE.replace("5 s", "500 ms"));
    let switches = net.switches(&gate);
    // On a slow machine the second one may be the one that works.
    let until = Instant::now() + PATIENCE;
    let (active, other, takeovers) = loop {
        let all = [0, 1].map(state);
        let works = (0..2).find(|&n| all[n].role == "active" && all[n].members == 3 && all[1 - n].role == "standby");
        if let Some(n) = works {
            break (n, 1 - n, all[1 - n].events["takeovers"]);
        }
        assert!(Instant::now() < until, "{all:?}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let survivor = both.remove(other);
    // The one that works is killed.
    drop(both);
    survivor.until("it takes over", |s| {
        s.xco.as_ref().is_some_and(|x| x.role == "active" && x.events["takeovers"] > takeovers)
    });
    survivor.members(3);
    switches[0].until("it is controlled", |s| uplink(s, "xco_uncontrolled") == 0);
    // The killed one comes back, and is the standby.
    let again = start(active);
    let role = |status: &Status| status.xco.as_ref().map(|xco| xco.role.clone());
    again.until("it hears the other", |s| role(s).is_some_and(|role| role == "standby"));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(role(&again.until("it answers", |_| true)).as_deref(), Some("standby"));
    survivor.members(3);
}

/// Three hosts without our switch, and agents at those that send; the port to host 2 is slow. The controller is at a port, too.
struct Hosts {
    spaces: Namespaces,
    folder: PathBuf,
}

impl Hosts {
    fn new(test: &str) -> Option<Hosts> {
        if let Some(why) = lacks() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let spaces = Namespaces::new(test, 4);
        let net = &spaces.0[3];
        let run = |line: &str| system(line).unwrap();
        run(&format!("ip -n {net} link add br0 type bridge"));
        run(&format!("ip -n {net} link add ctl0 type veth peer name b3"));
        for (n, host) in spaces.0[..3].iter().enumerate() {
            run(&format!("ip -n {net} link add b{n} type veth peer name eth0 netns {host}"));
            run(&format!("ip netns exec {host} sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1"));
            run(&format!("ip -n {host} addr add 10.9.0.{n}/24 dev eth0", n = n + 1));
            run(&format!("ip -n {host} link set eth0 address {mac} up", mac = host_mac(n)));
        }
        for device in ["b0", "b1", "b2", "b3"] {
            run(&format!("ip -n {net} link set {device} master br0"));
        }
        for device in ["b0", "b1", "b2", "b3", "ctl0", "br0"] {
            run(&format!("ip netns exec {net} sysctl -qw net.ipv6.conf.{device}.disable_ipv6=1"));
            run(&format!("ip -n {net} link set {device} up"));
        }
        run(&format!("tc -n {net} qdisc add dev b2 root {SLOW}"));
        let folder = std::env::temp_dir().join(format!("sluicenet-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Some(Hosts { spaces, folder })
    }

    fn controller(&self) -> Controller {
        let control = self.folder.join("c.sock");
        let text = format!(
            "[xco]\ncontrol = \"{}\"\ndevice = \"ctl0\"\nnetns = \"{}\"\nmac = \"02:00:00:00:ff:00\"\nlease = \"1 s\"\n\
             [topology]\nkind = \"single-switch\"\nhosts = 3\nlink_rate = \"100 Mb/s\"\n",
            control.display(),
            self.spaces.0[3]
        );
        start(&self.folder.join("c.toml"), &text, "run", control)
    }

    fn agent(&self, n: usize) -> Controller {
        let control = self.folder.join(format!("a{n}.sock"));
        let others: String = (0..3)
            .filter(|&host| host != n)
            .map(|host| format!("[[host]]\nhost = {host}\naddresses = [\"10.9.0.{}\"]\n", host + 1))
            .collect();
        let text = format!(
            "[xco]\ncontrol = \"{}\"\ndevice = \"eth0\"\nnetns = \"{}\"\nhost = {n}\nrate = \"100 Mb/s\"\n\
             controller = \"02:00:00:00:ff:00\"\nlease = \"1 s\"\n{others}",
            control.display(),
            self.spaces.0[n]
        );
        start(&self.folder.join(format!("a{n}.toml")), &text, "agent", control)
    }

    fn load(&self) -> u64 {
        let space = |n: usize| Namespace::open(&self.spaces.0[n]).unwrap();
        let to = "10.9.0.3:7000".parse().unwrap();
        let sink = Sink::bind(&space(2), to, PAYLOAD, 2).unwrap();
        arrived(sink, [0, 1].map(|i| Sender::new(&space(i), i as u16, to, PAYLOAD).unwrap()))
    }

    fn qdisc(&self, n: usize) -> String {
        let out =
            std::process::Command::new("tc").args(["-n", &self.spaces.0[n], "qdisc", "show", "dev", "eth0"]).output();
        String::from_utf8(out.unwrap().stdout).unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn host_mac(n: usize) -> String {
    format!("02:00:00:00:88:{n:02x}")
}

#[test]
fn agents_hold_the_frames_of_hosts_without_our_switch() {
    let Some(hosts) = Hosts::new("xcoagent") else { return };
    let without = hosts.load();
    println!("without agents: {without} of {} datagrams", 2 * EACH);
    assert!(without < 2 * EACH, "the slow port lost nothing: it is no bottleneck");
    let controller = hosts.controller();
    let agents = [0, 1].map(|n| hosts.agent(n));
    controller.members(2);
    let arrived = hosts.load();
    for agent in &agents {
        println!("agent: {:?}", agent.until("it answers", |_| true).xco.unwrap().events);
    }
    println!("with agents: {arrived} of {} datagrams; {:?}", 2 * EACH, controller.members(2).xco.unwrap().events);
    assert_eq!(arrived, 2 * EACH);
    // An agent that ends in order leaves the device as it was.
    assert!(hosts.qdisc(0).contains("htb"), "{}", hosts.qdisc(0));
    let [mut first, second] = agents;
    assert!(matches!(sluicenet_vswitchd::control::stop(&first.control), Ok(Answer::Ok(_))));
    assert!(first.child.wait().unwrap().success());
    assert!(!hosts.qdisc(0).contains("htb"), "{}", hosts.qdisc(0));
    // One that is killed is started again, with a session of its own after a lease.
    let pid = second.until("it answers", |_| true).pid;
    system(&format!("kill -9 {pid}")).unwrap();
    second.until("it is started again", |s| s.pid != pid);
    controller.until("it joins again", |s| s.xco.as_ref().is_some_and(|x| x.events["joined"] >= 3));
}

#[test]
fn clean_removes_the_queues_of_a_killed_agent() {
    let Some(hosts) = Hosts::new("xcoclean") else { return };
    let _lock = crate::testbed_lock();
    let mut agent = hosts.agent(0);
    assert!(hosts.qdisc(0).contains("htb"), "{}", hosts.qdisc(0));
    let pid = agent.until("it answers", |_| true).pid;
    // The supervisor first: it would start another one.
    agent.kill();
    system(&format!("kill -9 {pid}")).unwrap();
    let until = Instant::now() + PATIENCE;
    while hosts.qdisc(0).contains("htb") {
        assert!(Instant::now() < until, "{}", hosts.qdisc(0));
        assert!(command(&["clean"]).stdout(Stdio::null()).status().unwrap().success());
    }
}

#[test]
fn an_agent_names_the_queue_that_the_kernel_lacks_and_changes_nothing() {
    let Some(hosts) = Hosts::new("xconofq") else { return };
    let space = &hosts.spaces.0[0];
    if system(&format!("tc -n {space} qdisc add dev lo root fq")).is_ok() {
        eprintln!("SKIPPED: this kernel has sch_fq; the test in a guest uses it");
        return;
    }
    let before = hosts.qdisc(0);
    let file = hosts.folder.join("edt.toml");
    let text = format!(
        "[xco]\ncontrol = \"{}\"\ndevice = \"eth0\"\nnetns = \"{space}\"\nhost = 0\nrate = \"100 Mb/s\"\n\
         controller = \"02:00:00:00:ff:00\"\nqueues = \"edt\"\n[[host]]\nhost = 1\naddresses = [\"10.9.0.2\"]\n",
        hosts.folder.join("edt.sock").display()
    );
    std::fs::write(&file, text).unwrap();
    let output = command(&["xco", "agent", "--once", file.to_str().unwrap(), "--quiet"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the queue sch_fq (CONFIG_NET_SCH_FQ"), "{said}");
    assert_eq!(hosts.qdisc(0), before);
}

//! XCo on real frames: switches whose uplinks have gates, a bridge of the kernel with a slow port between them, and a controller
//! as a process.

use crate::command::command;
use crate::switching::Running;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use sluicenet_dataplane::kernel::netns;
use sluicenet_testkit::netns::{missing, system};
use sluicenet_vswitchd::control::{Answer, Request, ask};
use sluicenet_vswitchd::status::Status;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PAYLOAD: usize = 1400;
/// Datagrams of each sender: many times what the slow port holds.
const EACH: u64 = 3_000;
const PATIENCE: Duration = Duration::from_secs(60);
/// The slow port: its buffer holds 32 ms of it, sixteen slices.
const SLOW: &str = "tbf rate 100mbit burst 5kb limit 400kb";

fn lacks() -> Option<String> {
    missing()
        .or_else(|| netns::may_make_namespaces().err().map(|e| e.to_string()))
        .or_else(|| system("tc -V").err())
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
        let file = self.folder.join(format!("c{port}.toml"));
        std::fs::write(&file, text).unwrap();
        let args = ["xco", "run", file.to_str().unwrap(), "--quiet"];
        let child = command(&args).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        let controller = Controller { child, control };
        controller.until("it answers", |_| true);
        controller
    }

    /// Servers 0 and 1 send to server 2 at once, until all is sent; then waits until nothing more arrives. Returns how much did.
    fn load(&self) -> u64 {
        let to = Lan::socket(2, 7000);
        let mut sink = Sink::bind(self.lan.tenant(2), to, PAYLOAD, 2).unwrap();
        let senders = [0, 1].map(|i| Sender::new(self.lan.tenant(i), i as u16, to, PAYLOAD).unwrap());
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
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

struct Controller {
    child: Child,
    control: PathBuf,
}

impl Controller {
    fn until(&self, what: &str, so: impl Fn(&Status) -> bool) -> Status {
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

    fn members(&self, members: usize) -> Status {
        self.until("all hosts join", |s| s.xco.as_ref().is_some_and(|x| x.members == members))
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
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
    for n in 0..3 {
        let status = switches[n].status();
        println!("server {n}: {:?}", status.ports[0].counters.iter().filter(|(name, _)| name.starts_with("xco")).collect::<Vec<_>>());
        assert_eq!(uplink(&status, "xco_uncontrolled_frames") + uplink(&status, "xco_starved"), 0, "server {n} passed frames");
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
    switches[0].until("it is controlled again", |s| uplink(s, "xco_uncontrolled") == 0);
    assert_eq!(net.load(), 2 * EACH);
}

#[test]
fn a_standby_takes_over() {
    let Some(net) = Net::new("xcopair") else { return };
    let key = net.folder.join("key");
    std::fs::write(&key, "01".repeat(32)).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let pair = |peer: usize| format!("lease = \"500 ms\"\npeer = \"02:00:00:00:ff:0{peer}\"\nkey = \"key\"");
    let second = net.controller(1, &format!("{}\nstandby = true", pair(0)));
    let mut first = net.controller(0, &pair(1));
    let role = |status: &Status, role: &str| status.xco.as_ref().is_some_and(|x| x.role == role);
    first.until("one of the two works", |s| {
        let Ok(Answer::Status(other)) = ask(&second.control, &Request::Show) else { return false };
        role(s, "active") != role(&other, "active")
    });
    let gate = format!("{}\nstandby = \"02:00:00:00:ff:01\"", GATE.replace("5 s", "500 ms"));
    let switches = net.switches(&gate);
    if role(&first.until("it answers", |_| true), "standby") {
        // On a slow machine the second one was first.
        second.members(3);
        return;
    }
    first.members(3);
    first.kill();
    second.until("it takes over", |s| role(s, "active"));
    second.members(3);
    switches[0].until("it is controlled", |s| uplink(s, "xco_uncontrolled") == 0);
    // The first one comes back, and is the standby.
    let first = net.controller(0, &pair(1));
    first.until("it hears the other", |s| role(s, "standby"));
    std::thread::sleep(Duration::from_secs(1));
    assert!(role(&first.until("it answers", |_| true), "standby"));
    second.members(3);
}

//! `sluicenet switch attach` and `detach`: a namespace at an empty switch by one command, all of it or nothing.

use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_testkit::Dir;
use sluicenet_testkit::netns::{missing, system};
use sluicenet_vswitchd::attach::record::Records;
use sluicenet_vswitchd::control::{Answer, Request, ask};
use sluicenet_vswitchd::status::Status;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A switch without a file, and the namespaces that are attached to it.
pub struct Empty {
    pub child: Child,
    pub dir: Dir,
    pub name: String,
    namespaces: Vec<String>,
}

impl Empty {
    pub fn new(test: &str) -> Empty {
        let (dir, name) = (Dir::new(&format!("attach-{test}")), format!("{test}{}", std::process::id()));
        let child = run(&dir, &name);
        Empty::started(child, dir, name)
    }
    /// One that takes so many ports, by its file.
    pub fn for_ports(test: &str, ports: usize) -> Empty {
        let (dir, name) = (Dir::new(&format!("attach-{test}")), format!("{test}{}", std::process::id()));
        let (file, control) = (dir.0.join("vs.toml"), dir.path("vs.sock"));
        let keys = format!("[switch]\nname = \"{name}\"\ncontrol = \"{control}\"\nports = {ports}\n");
        std::fs::write(&file, keys).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
        let child = command.args(["--quiet", "switch", "run"]).arg(file).stdout(Stdio::null()).spawn().unwrap();
        Empty::started(child, dir, name)
    }
    fn started(child: Child, dir: Dir, name: String) -> Empty {
        let empty = Empty { child, dir, name, namespaces: Vec::new() };
        empty.wait();
        empty
    }
    fn wait(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(self.control()).is_err() {
            assert!(Instant::now() < until, "the switch did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    /// The name of a namespace, deleted with this value.
    pub fn namespace(&mut self, n: usize) -> String {
        let name = format!("sluice-{}-{n}", self.name);
        self.namespaces.push(name.clone());
        name
    }
    fn tell(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
        command.args(["--quiet", "switch"]).args(words.split(' ')).arg("--control").arg(self.control());
        command.output().unwrap()
    }
    pub fn done(&self, words: &str) {
        let out = self.tell(words);
        assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
    }
    /// The message of a command that is refused.
    fn refused(&self, words: &str) -> String {
        let out = self.tell(words);
        assert!(!out.status.success(), "{words}");
        String::from_utf8(out.stderr).unwrap()
    }
    pub fn control(&self) -> PathBuf {
        self.dir.0.join("vs.sock")
    }
    pub fn status(&self) -> Status {
        match ask(&self.control(), &Request::Show) {
            Ok(Answer::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }
    pub fn ports(&self) -> Vec<String> {
        let status = self.status();
        status.ports.iter().filter(|port| port.is_present()).map(|port| port.name.clone()).collect()
    }
    fn switch_netns(&self) -> String {
        format!("sluicenet-{}", self.name)
    }
    /// Asserts that nothing of an attachment is left.
    pub fn is_clean(&self) {
        // Also none that is absent because its device has gone.
        let ports: Vec<String> = self.status().ports.into_iter().map(|port| port.name).collect();
        assert_eq!(ports, Vec::<String>::new());
        assert_eq!(Records::at(&self.control()).all().unwrap(), [], "records");
        assert!(Namespace::open(&self.switch_netns()).is_err(), "the switch's namespace");
    }
}

impl Drop for Empty {
    fn drop(&mut self) {
        // A switch that was stopped before does not answer.
        let last = ask(&self.control(), &Request::Show);
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.namespaces.push(self.switch_netns());
        for name in self.namespaces.iter().filter(|name| Namespace::open(name).is_ok()) {
            let _ = Namespace::delete(name);
        }
        if let (false, Ok(Answer::Status(status))) = (std::thread::panicking(), last) {
            assert!(status.refused_calls.is_empty(), "calls that the sandbox refused: {:?}", status.refused_calls);
        }
    }
}

fn run(dir: &Dir, name: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sluicenet"))
        .args(["--quiet", "switch", "run", "--name", name, "--control"])
        .arg(dir.0.join("vs.sock"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A datagram from one namespace to an address of another one.
pub fn reaches(from: &str, to: &str, address: &str) {
    let bound = |netns: &str, at: &str| {
        let socket = Namespace::open(netns).unwrap().enter(|| UdpSocket::bind(at)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
    };
    let sink = bound(to, &format!("{address}:7000"));
    let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let sender = bound(from, any);
    sender.send_to(b"hello", format!("{address}:7000")).unwrap();
    let mut into = [0; 16];
    assert_eq!(sink.recv(&mut into).unwrap(), 5);
}

#[test]
fn three_commands_join_two_namespaces_and_two_undo_it() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let mut switch = Empty::new("three");
    let [a, b] = [1, 2].map(|n| switch.namespace(n));
    switch.done(&format!(
        "attach {a} --create --ip 10.0.0.1/24 --ip fd00::1/64 --name a --gateway 10.0.0.254 --mtu 1400"
    ));
    switch
        .done(&format!("attach {b} --create --ip 10.0.0.2/24 --ip fd00::2/64 --mtu 1400 --route 10.9.0.0/16,10.0.0.1"));
    assert_eq!(switch.ports(), ["a".to_owned(), b.clone()]);
    reaches(&a, &b, "10.0.0.2");
    reaches(&b, &a, "[fd00::1]");
    let shown = |netns: &str, what: &str| {
        let out = Command::new("ip").args(["-n", netns]).args(what.split(' ')).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(shown(&a, "route").contains("default via 10.0.0.254 dev eth0"), "{}", shown(&a, "route"));
    assert!(shown(&b, "route").contains("10.9.0.0/16 via 10.0.0.1 dev eth0"), "{}", shown(&b, "route"));
    assert!(shown(&a, "link show eth0").contains("mtu 1400"));
    // A port is undone with its namespace.
    assert!(switch.refused("del-port a").contains("switch detach a"));
    switch.done("detach a");
    switch.done(&format!("detach {b}"));
    switch.is_clean();
    assert!(Namespace::open(&a).is_err() && Namespace::open(&b).is_err(), "both were made by attach");
    let said = switch.refused(&format!("detach {b}"));
    let place = format!("attached to the switch at {}", switch.control().display());
    assert!(said.contains("neither a namespace nor a port") && said.contains(&place), "{said}");
}

#[test]
fn what_cannot_be_attached_whole_leaves_nothing() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let mut switch = Empty::new("whole");
    let [a, b, full] = [1, 2, 3].map(|n| switch.namespace(n));
    for (words, why) in [
        (format!("attach {a} --ip 10.0.0.1/24"), "--create makes a namespace"),
        (format!("attach {a} --create --ip 10.0.0.1"), "the bits of the network are missing"),
        (format!("attach {a} --create --ip 10.0.0.1/24 --set rate=fast"), "rate"),
        (format!("attach {a} --create --ip 10.0.0.1/24 --set socket=x"), "a port of kind `veth` has no `socket`"),
        // Each of these fails after a part was made.
        (format!("attach {a} --create --ip 10.0.0.1/24 --mtu 65535 --route 10.0.0.1/8"), "the route to 10.0.0.1/8"),
        (format!("attach {a} --create --ip 10.0.0.1/24 --device a/b"), "device"),
    ] {
        let said = switch.refused(&words);
        assert!(said.contains(why), "{words}: {said}");
        switch.is_clean();
        assert!(Namespace::open(&a).is_err(), "{words}");
    }
    // A device of the container keeps its name, and a namespace that attach did not make stays.
    system(&format!("ip netns add {full}")).unwrap();
    system(&format!("ip -n {full} tuntap add eth0 mode tap")).unwrap();
    let said = switch.refused(&format!("attach {full} --ip 10.0.0.3/24"));
    assert!(said.contains("has a device eth0 already"), "{said}");
    switch.is_clean();
    assert!(Namespace::open(&full).is_ok());
    switch.done(&format!("attach {full} --ip 10.0.0.3/24 --device eth1"));
    // The same namespace, or the same port, twice.
    for again in [
        format!("attach {full} --ip 10.0.0.4/24 --device eth2 --name other"),
        format!("attach {b} --create --name {full}"),
    ] {
        let said = switch.refused(&again);
        assert!(said.contains("attached already") && said.contains(&format!("detach {full}")), "{said}");
    }
    assert!(Namespace::open(&b).is_err());
    switch.done(&format!("detach {full}"));
    switch.is_clean();
    assert!(Namespace::open(&full).is_ok());
}

#[test]
fn an_attachment_outlives_the_switch_and_is_undone_without_its_namespace() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let mut switch = Empty::new("outlives");
    let [a, b] = [1, 2].map(|n| switch.namespace(n));
    for (netns, n) in [(&a, 1), (&b, 2)] {
        switch.done(&format!("attach {netns} --create --ip 10.0.0.{n}/24"));
    }
    assert!(switch.refused("reload").contains("was started without a file"));
    switch.child.kill().unwrap();
    switch.child.wait().unwrap();
    switch.child = run(&switch.dir, &switch.name);
    switch.wait();
    let until = Instant::now() + Duration::from_secs(60);
    while switch.ports().len() < 2 {
        assert!(Instant::now() < until, "its ports are not back");
        std::thread::sleep(Duration::from_millis(5));
    }
    reaches(&a, &b, "10.0.0.2");
    // The container has ended, and another one has its name.
    Namespace::delete(&a).unwrap();
    system(&format!("ip netns add {a}")).unwrap();
    switch.done(&format!("detach {a}"));
    assert!(Namespace::open(&a).is_ok(), "a namespace that attach did not make");
    Namespace::delete(&b).unwrap();
    // Without a switch, too.
    switch.done("stop");
    switch.child.wait().unwrap();
    // Nobody has the old namespace open any more, so the kernel may give its number to the next one.
    system(&format!("ip netns add {b}")).unwrap();
    switch.done(&format!("detach {b}"));
    assert!(Namespace::open(&b).is_ok(), "a namespace that attach did not make");
    switch.child = run(&switch.dir, &switch.name);
    switch.wait();
    switch.is_clean();
}

#[test]
fn an_attachment_waits_for_a_switch_that_starts_and_warns_of_open_addresses() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let mut switch = Empty::new("starts");
    let [a, b, c] = [1, 2, 3].map(|n| switch.namespace(n));
    switch.done("stop");
    switch.child.wait().unwrap();
    let control = switch.control();
    let told = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
        command.arg("switch").args(words.split(' ')).arg("--control").arg(&control).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let early = told(&format!("attach {a} --create"));
    let child = run(&switch.dir, &switch.name);
    let said = |child: Child| {
        let out = child.wait_with_output().unwrap();
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{text}");
        text
    };
    const OPEN: &str = "warning: it may send from any IP address";
    const NO_TENANT: &str = "warning: it has no tenant";
    assert!(said(early).contains(OPEN));
    let with_ip = format!("attach {b} --create --ip 10.0.0.2/24");
    for words in [&with_ip, &format!("attach {c} --create --set ip=10.0.0.3 --tenant 7")] {
        let text = said(told(words));
        assert!(!text.contains(OPEN) && !text.contains(NO_TENANT), "{words}: {text}");
    }
    said(told(&format!("detach {b}")));
    let text = said(told(&with_ip));
    assert!(text.contains(NO_TENANT), "port {c} has a tenant: {text}");
    switch.child = child;
    for netns in [&a, &b, &c] {
        switch.done(&format!("detach {netns}"));
    }
    switch.is_clean();
}

#[test]
fn a_refused_attachment_leaves_the_port_that_has_its_name() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let mut switch = Empty::new("taken");
    let a = switch.namespace(1);
    let (file, control) = (switch.dir.path("vs.toml"), switch.dir.path("vs.sock"));
    switch.done("stop");
    switch.child.wait().unwrap();
    let keys = format!("[switch]\nname = \"{}\"\ncontrol = \"{control}\"\n", switch.name);
    std::fs::write(&file, format!("{keys}[[port]]\nname = \"{a}\"\nkind = \"shm\"\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    switch.child = command.args(["--quiet", "switch", "run", &file]).stdout(Stdio::null()).spawn().unwrap();
    switch.wait();
    let before: Vec<String> = switch.status().ports.into_iter().map(|port| port.name).collect();
    assert_eq!(before, std::slice::from_ref(&a));
    let said = switch.refused(&format!("attach {a} --create --ip 10.0.0.1/24"));
    assert!(said.contains("already"), "{said}");
    let after: Vec<String> = switch.status().ports.into_iter().map(|port| port.name).collect();
    assert_eq!(after, before, "the port of the file");
    assert!(Namespace::open(&a).is_err(), "the namespace that was made for it");
}

#[test]
fn many_attachments_at_once_leave_nothing() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    const MANY: usize = 16;
    let mut switch = Empty::new("many");
    let all: Vec<String> = (0..MANY).map(|n| switch.namespace(n)).collect();
    let at_once = |each: &(dyn Fn(usize, &str) + Sync)| {
        std::thread::scope(|scope| {
            all.iter().enumerate().for_each(|(n, netns)| drop(scope.spawn(move || each(n, netns))));
        });
    };
    at_once(&|n, netns| switch.done(&format!("attach {netns} --create --ip 10.0.0.{}/24", n + 1)));
    assert_eq!(switch.ports().len(), MANY);
    reaches(&all[0], &all[MANY - 1], &format!("10.0.0.{MANY}"));
    at_once(&|_, netns| switch.done(&format!("detach {netns}")));
    switch.is_clean();
}

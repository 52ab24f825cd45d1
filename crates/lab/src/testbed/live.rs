//! A testbed that is up: its namespaces, its programs, and how both are gone again.

use super::files::{self, CONTROL, CONTROLLER, Place};
use super::{Plan, Server, bridge};
use crate::switch::control::{Answer, Request, ask};
use crate::switch::status::Status;
use rustix::process::{Pid, Signal};
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::{Feature, Links};
use sluicenet_dataplane::kernel::netns::{self, Namespace};
use sluicenet_dataplane::kernel::veth::Veth;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program of a testbed: what tells it from another one that got its number later.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    name: String,
    pid: i32,
    /// When it was started, in the kernel's ticks since it booted.
    started: u64,
}

impl Program {
    /// When process `pid` was started; `None` when there is none.
    fn started(pid: i32) -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Its name stands in brackets and may hold anything.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        // A zombie has ended.
        if fields.next()? == "Z" {
            return None;
        }
        fields.nth(18)?.parse().ok()
    }
    fn is_running(&self) -> bool {
        Program::started(self.pid) == Some(self.started)
    }
    fn signal(&self, signal: Signal) {
        if let (true, Some(pid)) = (self.is_running(), Pid::from_raw(self.pid)) {
            // It may have ended just now.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
    fn read_all(place: &Place) -> Vec<Program> {
        let text = std::fs::read_to_string(place.programs()).unwrap_or_default();
        let program = |line: &str| {
            let mut words = line.split(' ');
            let (name, pid, started) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Program { name: name.into(), pid, started })
        };
        text.lines().filter_map(program).collect()
    }
}

/// A testbed that is up; it stays so when this is dropped.
#[derive(Debug)]
pub struct Live {
    place: Place,
    programs: Vec<Program>,
    /// Those that this process started, to be waited for.
    children: Vec<std::process::Child>,
}

/// Whether one is up on this machine.
pub fn is_up(place: &Place) -> bool {
    place.programs().exists()
}

impl Live {
    /// Brings a testbed up. `scenario` tells the fabric's program which scenario it is of.
    ///
    /// # Errors
    /// What the system refused; what was made until then is gone again.
    pub fn up(plan: &Plan, scenario: &[String]) -> io::Result<Live> {
        let place = Place::of_the_machine();
        netns::may_make_namespaces()?;
        if is_up(&place) {
            let why = "a testbed is up already: `sluicenet testbed down` ends it";
            return Err(io::Error::new(ErrorKind::AlreadyExists, why));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(place.folder())?;
        File::create(place.programs())?;
        let names: Vec<&str> = plan.namespaces().chain([CONTROL]).collect();
        std::fs::write(place.namespaces(), names.join("\n"))?;
        let mut live = Live { place, programs: Vec::new(), children: Vec::new() };
        match live.bring_up(plan, scenario) {
            Ok(()) => Ok(live),
            Err(e) => {
                let logs = live.last_words();
                // The first error is the one to tell.
                let _ = live.down();
                Err(io::Error::new(e.kind(), format!("{e}{logs}")))
            }
        }
    }

    /// The one that is up on this machine.
    ///
    /// # Errors
    /// When none is.
    pub fn find() -> io::Result<Live> {
        let place = Place::of_the_machine();
        if !is_up(&place) {
            return Err(io::Error::new(ErrorKind::NotFound, "no testbed is up"));
        }
        let programs = Program::read_all(&place);
        Ok(Live { place, programs, children: Vec::new() })
    }

    /// The namespaces of its tenants.
    ///
    /// # Errors
    /// When its files cannot be read.
    pub fn tenants(&self) -> io::Result<Vec<String>> {
        let names = std::fs::read_to_string(self.place.namespaces())?;
        Ok(names.lines().filter(|name| name.contains("-t")).map(str::to_owned).collect())
    }

    fn bring_up(&mut self, plan: &Plan, scenario: &[String]) -> io::Result<()> {
        if !plan.is_bridged() {
            make_control_network(plan)?;
        }
        let fabric = Namespace::create(&plan.fabric)?;
        for server in &plan.servers {
            make_server(plan, server, &fabric)?;
        }
        files::write(plan, &self.place)?;
        if !plan.is_bridged() {
            self.start("controller", &["controller".into(), self.place.controller().display().to_string()])?;
        }
        let fabric: Vec<String> =
            ["testbed", "fabric"].iter().map(|&w| w.to_owned()).chain(scenario.iter().cloned()).collect();
        self.start("fabric", &fabric)?;
        self.wait_for_log("fabric", "fabric runs")?;
        if plan.is_bridged() {
            return Ok(());
        }
        self.wait_for_log("controller", "controller runs")?;
        for server in &plan.servers {
            let words = ["switch".into(), "run".into(), self.place.switch(server).display().to_string()];
            self.start(&format!("s{}", server.host), &words)?;
        }
        for server in &plan.servers {
            self.wait_for_switch(server)?;
        }
        Ok(())
    }

    fn start(&mut self, name: &str, words: &[String]) -> io::Result<()> {
        let own = std::env::current_exe()?;
        let out = File::create(self.place.result(name))?;
        let log = File::create(self.place.log(name))?;
        let child = Command::new(own)
            .args(words)
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(log)
            // Ctrl-C is for who drives the testbed, which then brings it down.
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        let program = Program { name: name.into(), pid, started: Program::started(pid).unwrap_or_default() };
        let line = format!("{} {} {}\n", program.name, program.pid, program.started);
        OpenOptions::new().append(true).open(self.place.programs())?.write_all(line.as_bytes())?;
        self.children.push(child);
        self.programs.push(program);
        Ok(())
    }

    /// Waits until something is so, or a program has ended.
    fn wait(&mut self, name: &str, so: impl Fn() -> bool) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        let at = self.programs.iter().position(|p| p.name == name);
        while !so() {
            let ended = match at.and_then(|at| self.children.get_mut(at)) {
                Some(child) => child.try_wait()?.is_some(),
                None => false,
            };
            if ended || Instant::now() > until {
                return Err(io::Error::other(format!("{name} did not start")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn wait_for_log(&mut self, name: &str, words: &str) -> io::Result<()> {
        let log = self.place.log(name);
        self.wait(name, || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(words)))
    }

    fn wait_for_switch(&mut self, server: &Server) -> io::Result<()> {
        let control = self.place.control(server);
        let ports = server.tenants.len() + 1;
        let is_there = |status: &Status| status.ports.iter().filter(|p| p.number.is_some()).count() == ports;
        // A port that could not be opened will not be.
        let absent = |status: &Status| status.ports.iter().any(|p| p.absent.is_some());
        self.wait(&format!("s{}", server.host), || status_of(&control).is_ok_and(|s| is_there(&s) || absent(&s)))?;
        match status_of(&control)?.ports.iter().find_map(|p| p.absent.as_ref().map(|why| (&p.name, why))) {
            Some((port, why)) => Err(io::Error::other(format!("port {port} of server {}: {why}", server.host))),
            None => Ok(()),
        }
    }

    /// What the programs that have ended said last.
    fn last_words(&self) -> String {
        let said = |p: &Program| {
            let text = std::fs::read_to_string(self.place.log(&p.name)).ok()?;
            let panicked = text.lines().position(|l| l.contains("panicked at"));
            let first = panicked.unwrap_or_else(|| text.lines().count().saturating_sub(1));
            let last: Vec<&str> = text.lines().skip(first).take(2).collect();
            let last = last.join(" ");
            (!p.is_running()).then(|| format!("\n{} ended and said last: {last}", p.name))
        };
        self.programs.iter().filter_map(said).collect()
    }

    /// What the switches say of themselves; bridges say nothing.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn statuses(&self, plan: &Plan) -> io::Result<Vec<Status>> {
        if plan.is_bridged() {
            return Ok(Vec::new());
        }
        plan.servers.iter().map(|server| status_of(&self.place.control(server))).collect()
    }

    /// Ends a program and returns what it printed.
    ///
    /// # Errors
    /// When there is none of that name, or it does not end.
    pub fn end(&mut self, name: &str) -> io::Result<String> {
        let program = self.programs.iter().find(|p| p.name == name).cloned();
        let program = program.ok_or_else(|| io::Error::new(ErrorKind::NotFound, format!("no program {name}")))?;
        program.signal(Signal::TERM);
        self.await_end(&program)?;
        std::fs::read_to_string(self.place.result(name))
    }

    fn await_end(&mut self, program: &Program) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        while program.is_running() {
            if Instant::now() > until {
                program.signal(Signal::KILL);
                return Err(io::Error::new(ErrorKind::TimedOut, format!("{} did not end", program.name)));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.children.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        Ok(())
    }

    /// Brings it down: programs, namespaces, files. Returns the names of the namespaces.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn down(mut self) -> io::Result<Vec<String>> {
        let programs = std::mem::take(&mut self.programs);
        for program in &programs {
            program.signal(Signal::TERM);
        }
        let mut outcome = Ok(());
        for program in &programs {
            outcome = outcome.and(self.await_end(program));
        }
        let names = std::fs::read_to_string(self.place.namespaces())?;
        let mut gone = Vec::new();
        for name in names.lines() {
            // One that was not made yet when the others failed is not there.
            if Namespace::delete(name).is_ok() {
                gone.push(name.to_owned());
            }
        }
        std::fs::remove_dir_all(self.place.folder())?;
        outcome.map(|()| gone)
    }
}

/// Ends the programs of a testbed, whoever brought it up. Returns what there was.
pub(super) fn end_programs(place: &Place) -> Vec<String> {
    let mut gone = Vec::new();
    let running: Vec<Program> = Program::read_all(place).into_iter().filter(Program::is_running).collect();
    running.iter().for_each(|program| program.signal(Signal::KILL));
    for program in running {
        gone.push(format!("process {} ({})", program.pid, program.name));
        let until = Instant::now() + PATIENCE;
        while program.is_running() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    gone
}

fn status_of(control: &Path) -> io::Result<Status> {
    match ask(control, &Request::Show)? {
        Answer::Status(status) => Ok(*status),
        Answer::Error(why) => Err(io::Error::other(why)),
        Answer::Ok(other) => Err(io::Error::new(ErrorKind::InvalidData, other)),
    }
}

/// The network in which servers reach the controller.
fn make_control_network(plan: &Plan) -> io::Result<()> {
    let control = Namespace::create(CONTROL)?;
    control.enter(|| {
        let mut links = Links::open()?;
        let servers = plan.servers.iter().map(|s| s.address);
        servers.chain([CONTROLLER]).try_for_each(|a| links.add_address("lo", IpAddr::V4(a), 32))
    })??;
    Ok(())
}

/// A server: its namespace, its uplink and its tenants.
fn make_server(plan: &Plan, server: &Server, fabric: &Namespace) -> io::Result<()> {
    let inside = Namespace::create(&server.namespace)?;
    let features = [Feature::TxChecksum, Feature::Tso, Feature::Gso, Feature::Gro];
    // What goes over the link are frames.
    let plain = |links: &mut Links, device: &str| {
        features.iter().try_for_each(|&f| links.set_feature(device, f, false))?;
        links.set_mtu(device, plan.mtu)?;
        links.up(device)
    };
    fabric.enter(|| {
        let mut links = Links::open()?;
        links.create_veth(&server.edge, server.uplink, &inside)?;
        plain(&mut links, &server.edge)
    })??;
    inside.enter(|| {
        let mut links = Links::open()?;
        links.set_mac(server.uplink, server.mac.0)?;
        plain(&mut links, server.uplink)
    })??;
    if plan.is_bridged() {
        return Ok(bridge::make(plan, server, &inside)?);
    }
    for tenant in &server.tenants {
        let namespace = Namespace::create(&tenant.namespace)?;
        let device = format!("t{}", tenant.vm);
        let veth = Veth { switch: &inside, switch_device: &device, tenant: &namespace, tenant_device: TENANT_DEVICE };
        veth.create(tenant.mac.0, plan.tenant_mtu)?;
        namespace.enter(|| {
            let mut links = Links::open()?;
            links.add_address(TENANT_DEVICE, IpAddr::V4(tenant.address), Plan::OVERLAY_PREFIX)?;
            Ok::<_, KernelError>(())
        })??;
    }
    Ok(())
}

/// A tenant's end of its link.
pub(super) const TENANT_DEVICE: &str = "eth0";

//! A running testbed: its namespaces and programs, and their removal.

use super::files::{self, CONTROL, CONTROLLER, Made, TestbedDir};
use super::guest::supervisor::{ALL_UP, BOOT_TIME, ONE_UP, Supervisor};
use super::guest::{self, Contents, Needs};
use super::namespaces::plain;
use super::{Origin, Plan, Program, Server, bridge};
use rustix::process::Signal;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::{self, Namespace};
use sluicenet_dataplane::kernel::veth::Veth;
use sluicenet_vswitchd::control::{Answer, Request, ask};
use sluicenet_vswitchd::status::Status;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a program may take to start, and to end.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Programs of a testbed that belong to no server.
const FABRIC: &str = "fabric";
const GUESTS: &str = "guests";
/// The command that starts a tenant's application in a guest.
pub(super) const TENANT_PROGRAM: &str = "/usr/bin/sluicenet-tenant";
/// The command that prints the frames dropped by the guest's kernel.
pub(super) const EDGES_PROGRAM: &str = "/usr/bin/sluicenet-edges";

/// The connection to the user who waits for a testbed to start: progress, and interruption.
#[derive(Clone, Copy)]
pub struct Progress<'a> {
    /// Called with the progress.
    pub say: &'a dyn Fn(&str),
    /// Interrupts the start: everything that was created so far is removed.
    pub stop: &'a AtomicBool,
}

/// A running testbed; it goes on running when this value is dropped.
#[derive(Debug)]
pub struct Live {
    dir: TestbedDir,
    programs: Vec<Program>,
    /// The programs that this process started, and for whose end it has to wait.
    children: Vec<std::process::Child>,
}

/// Whether a testbed runs on this machine.
pub fn is_up(dir: &TestbedDir) -> bool {
    dir.programs().exists()
}

impl Live {
    /// Starts a testbed; `origin` is the source of its scenario.
    ///
    /// # Errors
    /// The system refuses a step; everything that was created so far is removed.
    pub fn up(plan: &Plan, origin: &Origin, progress: Progress<'_>) -> io::Result<Live> {
        let dir = TestbedDir::of_the_machine();
        netns::may_make_namespaces()?;
        if is_up(&dir) {
            let folder = dir.folder().display();
            let why = format!(
                "a testbed is up already, in {folder}: one that runs a scenario takes it down at its end; \
                 `sluicenet testbed down` ends it now, whoever uses it"
            );
            return Err(io::Error::new(ErrorKind::AlreadyExists, why));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(dir.folder())?;
        File::create(dir.programs())?;
        let names: Vec<&str> = plan.namespaces().chain([CONTROL]).collect();
        std::fs::write(dir.namespaces(), names.join("\n"))?;
        let mut live = Live { dir, programs: Vec::new(), children: Vec::new() };
        let up = live.bring_up(plan, origin, progress).and_then(|()| match progress.stop.load(Ordering::Relaxed) {
            true => Err(io::Error::new(ErrorKind::Interrupted, "stopped before it was up")),
            false => Ok(()),
        });
        match up {
            Ok(()) => Ok(live),
            Err(e) => {
                let logs = live.last_words();
                // The first error is the one to report.
                let _ = live.down();
                Err(io::Error::new(e.kind(), format!("{e}{logs}")))
            }
        }
    }

    /// The running testbed of this machine.
    ///
    /// # Errors
    /// No testbed is running.
    pub fn find() -> io::Result<Live> {
        let dir = TestbedDir::of_the_machine();
        if !is_up(&dir) {
            return Err(io::Error::new(ErrorKind::NotFound, "no testbed is up"));
        }
        let programs = Program::read_all(&dir);
        Ok(Live { dir, programs, children: Vec::new() })
    }

    /// The parts of the testbed.
    ///
    /// # Errors
    /// The files of the testbed cannot be read.
    pub fn made(&self) -> io::Result<Made> {
        Made::read(&self.dir)
    }

    /// The supervisor of the testbed's guests.
    pub fn supervisor(&self) -> Supervisor {
        Supervisor::of(&self.dir)
    }

    fn bring_up(&mut self, plan: &Plan, origin: &Origin, progress: Progress<'_>) -> io::Result<()> {
        if plan.has_guests() {
            // Before anything else: these requirements are missing most often.
            Needs::find(plan.tenants().count(), &contents(origin)?, &self.dir.image()).map_err(io::Error::other)?;
        }
        if !plan.is_bridged() {
            make_control_network(plan)?;
        }
        let fabric = Namespace::create(&plan.fabric)?;
        for server in &plan.servers {
            make_server(plan, server, &fabric)?;
        }
        files::write(plan, &self.dir)?;
        if !plan.is_bridged() {
            self.start("controller", &["controller".into(), self.dir.controller().display().to_string()])?;
        }
        let told =
            |what: &str| -> Vec<String> { ["testbed".into(), what.into()].into_iter().chain(origin.words()).collect() };
        self.start(FABRIC, &told("fabric"))?;
        self.wait_for_log(FABRIC, "fabric runs")?;
        if plan.is_bridged() {
            return Ok(());
        }
        self.wait_for_log("controller", "controller runs")?;
        for server in &plan.servers {
            let words = ["switch".into(), "run".into(), self.dir.switch(server).display().to_string()];
            self.start(&format!("s{}", server.host), &words)?;
        }
        if plan.has_guests() {
            for server in &plan.servers {
                let control = self.dir.control(server);
                self.wait(&format!("s{}", server.host), || status_of(&control).is_ok())?;
            }
            self.start(GUESTS, &told("guests"))?;
            self.wait_for_guests(plan.tenants().count(), progress)?;
        }
        for server in &plan.servers {
            self.wait_for_switch(server)?;
        }
        Ok(())
    }

    /// Waits until all guests have started, and reports each one.
    fn wait_for_guests(&mut self, guests: usize, progress: Progress<'_>) -> io::Result<()> {
        let (log, mut said) = (self.dir.log(GUESTS), 0);
        let until = Instant::now() + BOOT_TIME * guests as u32;
        loop {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let up: Vec<&str> = text.lines().filter(|line| line.starts_with(ONE_UP)).collect();
            up.iter().skip(said).for_each(|line| (progress.say)(line));
            said = up.len();
            if text.lines().any(|line| line == ALL_UP) {
                return Ok(());
            }
            if progress.stop.load(Ordering::Relaxed) {
                return Err(io::Error::new(ErrorKind::Interrupted, "stopped before all guests were up"));
            }
            self.wait_a_little(GUESTS, until)?;
        }
    }

    fn start(&mut self, name: &str, words: &[String]) -> io::Result<()> {
        let own = std::env::current_exe()?;
        let out = File::create(self.dir.result(name))?;
        let log = File::create(self.dir.log(name))?;
        let child = Command::new(own)
            .args(words)
            .arg("--json")
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(log)
            // Ctrl-C must reach only the command that runs the testbed, which then removes it.
            .process_group(0)
            .spawn()?;
        let program = Program::new(name, i32::try_from(child.id()).map_err(io::Error::other)?);
        program.record(&self.dir)?;
        self.children.push(child);
        self.programs.push(program);
        Ok(())
    }

    /// Waits until `so` holds; an error if the program `name` has ended or takes too long.
    fn wait(&mut self, name: &str, so: impl Fn() -> bool) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        while !so() {
            self.wait_a_little(name, until)?;
        }
        Ok(())
    }

    /// Waits a moment for a program; an error if the program has ended, or `until` has passed.
    fn wait_a_little(&mut self, name: &str, until: Instant) -> io::Result<()> {
        let at = self.programs.iter().position(|p| p.name == name);
        let ended = match at.and_then(|at| self.children.get_mut(at)) {
            Some(child) => child.try_wait()?.is_some(),
            None => false,
        };
        if ended || Instant::now() > until {
            return Err(io::Error::other(format!("{name} did not start")));
        }
        std::thread::sleep(Duration::from_millis(5));
        Ok(())
    }

    fn wait_for_log(&mut self, name: &str, words: &str) -> io::Result<()> {
        let log = self.dir.log(name);
        self.wait(name, || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(words)))
    }

    fn wait_for_switch(&mut self, server: &Server) -> io::Result<()> {
        let control = self.dir.control(server);
        // A port in shared memory appears with its program.
        let ports = server.tenants.iter().filter(|t| t.has_kernel()).count() + 1;
        let is_there = |status: &Status| status.ports.iter().filter(|p| p.number.is_some()).count() == ports;
        // A port that could not be opened will not appear.
        let absent = |status: &Status| status.ports.iter().any(|p| p.absent.is_some());
        self.wait(&format!("s{}", server.host), || status_of(&control).is_ok_and(|s| is_there(&s) || absent(&s)))?;
        match status_of(&control)?.ports.iter().find_map(|p| p.absent.as_ref().map(|why| (&p.name, why))) {
            Some((port, why)) => Err(io::Error::other(format!("port {port} of server {}: {why}", server.host))),
            None => Ok(()),
        }
    }

    /// The last messages of programs that have ended.
    fn last_words(&self) -> String {
        let said = |p: &Program| {
            let text = std::fs::read_to_string(self.dir.log(&p.name)).ok()?;
            let panicked = text.lines().position(|l| l.contains("panicked at"));
            let first = panicked.unwrap_or_else(|| text.lines().count().saturating_sub(1));
            let last: Vec<&str> = text.lines().skip(first).take(2).collect();
            let last = last.join(" ");
            (!p.is_running()).then(|| format!("\n{} ended and said last: {last}", p.name))
        };
        self.programs.iter().filter_map(said).collect()
    }

    /// The status of the switches; bridges have none.
    ///
    /// # Errors
    /// A switch does not answer.
    pub fn statuses(&self) -> io::Result<Vec<Status>> {
        let made = self.made()?;
        made.servers.iter().filter(|_| !made.bridged).map(|server| status_of(&server.control)).collect()
    }

    /// The report of the running fabric, in its printed form.
    ///
    /// # Errors
    /// There is no fabric, or it does not answer.
    pub fn fabric_now(&mut self) -> io::Result<String> {
        let program = self.programs.iter().find(|p| p.name == FABRIC).cloned();
        let program = program.ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no fabric"))?;
        let file = self.dir.fabric_now();
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => program.signal(Signal::USR1),
        }
        self.wait(FABRIC, || file.exists() || !program.is_running())?;
        std::fs::read_to_string(&file)
    }

    /// Ends a program and returns its output.
    ///
    /// # Errors
    /// There is no program of that name, or it does not end.
    pub fn end(&mut self, name: &str) -> io::Result<String> {
        let program = self.programs.iter().find(|p| p.name == name).cloned();
        let program = program.ok_or_else(|| io::Error::new(ErrorKind::NotFound, format!("no program {name}")))?;
        program.signal(Signal::TERM);
        self.await_end(&program)?;
        std::fs::read_to_string(self.dir.result(name))
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

    /// Removes the testbed: programs, namespaces, files. Returns the names of the namespaces.
    ///
    /// # Errors
    /// A part could not be removed.
    pub fn down(mut self) -> io::Result<Vec<String>> {
        // The supervisor has recorded the guests.
        let programs = Program::read_all(&self.dir);
        for program in &programs {
            program.signal(Signal::TERM);
        }
        let mut outcome = Ok(());
        for program in &programs {
            outcome = outcome.and(self.await_end(program));
        }
        let names = std::fs::read_to_string(self.dir.namespaces())?;
        let mut gone = Vec::new();
        for name in names.lines() {
            // A namespace that was not created before the failure does not exist.
            if Namespace::delete(name).is_ok() {
                gone.push(name.to_owned());
            }
        }
        std::fs::remove_dir_all(self.dir.folder())?;
        outcome.map(|()| gone)
    }
}

/// Ends the programs of a testbed, whichever process started it. Returns the programs that were running.
pub(super) fn end_programs(dir: &TestbedDir) -> Vec<String> {
    let mut gone = Vec::new();
    let running: Vec<Program> = Program::read_all(dir).into_iter().filter(Program::is_running).collect();
    // All at once: the supervisor ends the guests with itself.
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

/// The files in the guests of a testbed: this program, the source of the scenario, and iperf3 if it is installed.
fn contents(origin: &Origin) -> io::Result<Contents> {
    let own = std::env::current_exe()?;
    let mut files = origin.guest_files();
    let name = own.file_name().unwrap_or_default().to_string_lossy();
    files.push((TENANT_PROGRAM.into(), script(&name, "tenant", &origin.guest_words())));
    files.push((EDGES_PROGRAM.into(), script(&name, "edges", &[])));
    let programs = [own.clone()].into_iter().chain(guest::program("iperf3").ok()).collect();
    Ok(Contents { programs, files })
}

/// A script that runs a hidden verb of the testbed.
fn script(program: &str, verb: &str, words: &[String]) -> Arc<[u8]> {
    let quoted: Vec<String> = words.iter().map(|w| format!("'{}'", w.replace('\'', "'\\''"))).collect();
    let line = format!("#!/bin/sh\nexec '/usr/bin/{program}' testbed {verb} {} \"$@\"\n", quoted.join(" "));
    line.into_bytes().into()
}

/// The status of a program of ours.
pub(super) fn status_of(control: &Path) -> io::Result<Status> {
    match ask(control, &Request::Show)? {
        Answer::Status(status) => Ok(*status),
        Answer::Error(why) => Err(io::Error::other(why)),
        other => Err(io::Error::new(ErrorKind::InvalidData, format!("{other:?}"))),
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

/// Makes a server: its namespace, its uplink and its tenants.
fn make_server(plan: &Plan, server: &Server, fabric: &Namespace) -> io::Result<()> {
    let inside = Namespace::create(&server.namespace)?;
    fabric.enter(|| {
        let mut links = Links::open()?;
        links.create_veth(&server.edge, server.uplink, &inside)?;
        plain(&mut links, &server.edge, plan.mtu)
    })??;
    inside.enter(|| {
        let mut links = Links::open()?;
        links.set_mac(server.uplink, server.mac.0)?;
        plain(&mut links, server.uplink, plan.mtu)
    })??;
    if plan.is_bridged() {
        return Ok(bridge::make(plan, server, &inside)?);
    }
    if plan.has_guests() {
        return Ok(());
    }
    for tenant in server.tenants.iter().filter(|t| t.has_kernel()) {
        let namespace = match plan.makes_namespace(tenant) {
            true => Namespace::create(&tenant.namespace)?,
            false => Namespace::open(&tenant.namespace)?,
        };
        let switch_device = &format!("t{}", tenant.vm);
        let veth = Veth { switch: &inside, switch_device, tenant: &namespace, tenant_device: tenant.device };
        let prefix = match tenant.lossy {
            true => {
                // No sender waits at this device: frames that the switch does not fetch in time are lost.
                veth.create_plain(tenant.mac.0, true)?;
                inside.enter(|| Links::open()?.set_mtu(switch_device, plan.tenant_mtu))??;
                namespace.enter(|| Links::open()?.set_mtu(tenant.device, plan.tenant_mtu))??;
                Plan::LOSSY_PREFIX
            }
            false => {
                veth.create(tenant.mac.0, plan.tenant_mtu)?;
                Plan::OVERLAY_PREFIX
            }
        };
        namespace.enter(|| {
            let mut links = Links::open()?;
            links.add_address(tenant.device, IpAddr::V4(tenant.address), prefix)?;
            Ok::<_, KernelError>(())
        })??;
    }
    Ok(())
}

/// The network device at a tenant's end of its link.
pub(super) const TENANT_DEVICE: &str = "eth0";

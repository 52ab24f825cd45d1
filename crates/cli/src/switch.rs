//! `switch`: the lossless switch beside guests, containers and processes, and the requests to it.

use super::failure::Failure;
use super::switch_show::{frames, show, show_macs};
use super::{Global, interrupt, output};
use sluicenet_vswitchd::attach::{self, Attach, AttachError, Prefix, Route};
use sluicenet_vswitchd::capture::{Wanted, record};
use sluicenet_vswitchd::config::{Config, default_control};
use sluicenet_vswitchd::control::{Answer, Request, ask, running, stop};
use sluicenet_vswitchd::daemon::Daemon;
use sluicenet_vswitchd::helper;
use sluicenet_vswitchd::here::{self, Findings};
use sluicenet_vswitchd::log;
use sluicenet_vswitchd::mtu;
use sluicenet_vswitchd::status::{PortStatus, counted, mac_text};
use std::ffi::CStr;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = SWITCH_HELP)]
pub(super) struct Switch {
    #[command(subcommand)]
    what: What,
}

const SWITCH_HELP: &str = "\
Coming from Open vSwitch:
    ovs-vswitchd                    sluicenet switch run [FILE]
    ovs-vsctl show, list-ports      sluicenet switch show
    ovs-vsctl add-port BR NAME      sluicenet switch add-port NAME kind=...
    ovs-vsctl del-port BR NAME      sluicenet switch del-port NAME
    ip link add ... type veth ...   sluicenet switch attach NETNS --ip ADDRESS/BITS
    ovs-appctl fdb/show BR          sluicenet switch show --macs
    ovs-appctl exit                 sluicenet switch stop
    ovs-tcpdump -i NAME -w FILE     sluicenet switch capture NAME -w FILE
    ovs-appctl dpctl/show -s        sluicenet top
There are no flows to install: frames go where their MAC address is, learned or given.
What differs: a frame for a receiver that is not ready waits, and so does its sender.";

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Run a switch in the foreground: from its configuration file, or an empty one that takes ports by commands
    Run(RunSwitch),
    /// Show a running switch and the counters of its ports
    Show(Show),
    /// Add a port while traffic runs
    AddPort(AddPort),
    /// Remove a port while traffic runs
    DelPort(DelPort),
    /// Attach a network namespace: its veth pair, addresses, routes and port, all of it or nothing
    Attach(AttachArgs),
    /// Undo an attachment, also if the namespace has gone or the switch does not run
    Detach(DetachArgs),
    /// Capture the frames at a port, as pcapng
    Capture(CaptureArgs),
    /// Reload the configuration file
    Reload(Which),
    /// Stop it
    Stop(Which),
    /// Open devices for the switch that starts this process
    #[command(hide = true)]
    Helper(HelperArgs),
}

#[derive(Debug, clap::Args)]
struct RunSwitch {
    #[command(flatten)]
    run: Run,
    /// The socket at which a service manager starts the helper, which opens devices; default a child, if started as root
    #[arg(long, value_name = "PATH", conflicts_with = "check")]
    helper: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Run {
    #[command(flatten)]
    source: Source,
    /// Check the file only
    #[arg(long, requires = "file")]
    check: bool,
    /// With --check: look also for users, namespaces, devices and paths on this machine; nothing is started or changed
    #[arg(long, requires = "check")]
    here: bool,
}

/// Where the settings of a switch come from.
#[derive(Debug, clap::Args)]
struct Source {
    /// The switch's configuration file, TOML; without one, the switch has no ports until commands add them
    file: Option<PathBuf>,
    /// The name of a switch without a file
    #[arg(long, value_name = "NAME", default_value = "sluicenet", conflicts_with = "file")]
    name: String,
    /// The control socket of a switch without a file; default NAME.sock in /run/sluicenet or in the user's run folder
    #[arg(long, value_name = "PATH", conflicts_with = "file")]
    control: Option<PathBuf>,
    /// A folder in which guests' ports of a switch without a file may have their sockets; repeat for several
    #[arg(long = "socket-folder", value_name = "PATH", conflicts_with = "file")]
    socket_folders: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct HelperArgs {
    #[command(flatten)]
    source: Source,
    /// Open them in this process
    #[arg(long)]
    worker: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = ATTACH_HELP)]
struct AttachArgs {
    /// The namespace, by name or path
    netns: String,
    /// An address of its device; repeat for several
    #[arg(long, value_name = "ADDRESS/BITS", value_parser = address)]
    ip: Vec<Prefix>,
    /// Make the namespace if it does not exist
    #[arg(long)]
    create: bool,
    /// The port's name; default the namespace's
    #[arg(long, value_name = "PORT")]
    name: Option<String>,
    /// The next hop of the default route; one for IPv4 and one for IPv6
    #[arg(long, value_name = "ADDRESS")]
    gateway: Vec<IpAddr>,
    /// A route, on the link or by a next hop: 192.168.0.0/16 or 192.168.0.0/16,10.0.0.254
    #[arg(long, value_name = "NETWORK/BITS[,ADDRESS]")]
    route: Vec<Route>,
    /// The MAC address of its device; default one of the kernel's
    #[arg(long, value_parser = mac)]
    mac: Option<[u8; 6]>,
    /// The MTU; default that of the switch's overlay, or 1500
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// The name of its device
    #[arg(long, value_name = "DEVICE", default_value = "eth0")]
    device: String,
    /// The broadcast domain of the port; default each frame's VLAN
    #[arg(long, value_name = "NUMBER")]
    tenant: Option<u16>,
    /// Let the namespace send from other addresses than its own, as a router or a bridge does
    #[arg(long)]
    unlocked: bool,
    /// The namespace of the switch's end; default one without addresses that is made for the switch
    #[arg(long, value_name = "NETNS")]
    switch_netns: Option<String>,
    /// Further settings of the port, as in the file
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    which: WhichSwitch,
}

const ATTACH_HELP: &str = "\
Two namespaces that reach each other:
    sluicenet switch run &
    sluicenet switch attach red1 --create --ip 10.0.0.1/24
    sluicenet switch attach red2 --create --ip 10.0.0.2/24
    ip netns exec red1 ping 10.0.0.2";

#[derive(Debug, clap::Args)]
struct DetachArgs {
    /// The namespace, or the port
    #[arg(value_name = "NETNS|PORT")]
    what: String,
    #[command(flatten)]
    which: WhichSwitch,
}

/// Which of the switches that run, where `--name` is the port's.
#[derive(Clone, Debug, clap::Args)]
struct WhichSwitch {
    /// The switch's control socket; default that of the only one that runs
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// The switch's name
    #[arg(long, value_name = "NAME", conflicts_with = "control")]
    switch: Option<String>,
}

/// The folder of control sockets, and the names and sockets of the switches that run there.
fn those_that_run() -> (PathBuf, Vec<(String, PathBuf)>) {
    let place = default_control("any");
    let folder = place.parent().unwrap_or(&place).to_owned();
    let found = running(&folder);
    (folder, found)
}

/// The control socket at a path, of a switch by its name, or of the only one that runs; `option` is the one for a name.
fn control(path: Option<&PathBuf>, name: Option<&str>, option: &str) -> Result<PathBuf, Failure> {
    if let Some(path) = path.cloned().or_else(|| name.map(default_control)) {
        return Ok(path);
    }
    let (folder, found) = those_that_run();
    match &found[..] {
        [(_, path)] => Ok(path.clone()),
        [] => Err(Failure::Input(format!("no switch runs in {}; say where with --control", folder.display()))),
        several => {
            let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
            Err(Failure::Input(format!("several run: say which with {option}: {}", names.join(", "))))
        }
    }
}

/// How long `attach` waits for a switch that was started a moment ago.
const STARTS_WITHIN: Duration = Duration::from_secs(3);

impl WhichSwitch {
    /// The control socket, once a switch answers there.
    fn started(&self) -> Result<PathBuf, Failure> {
        let until = Instant::now() + STARTS_WITHIN;
        loop {
            let control = self.control();
            let answers = control.as_ref().is_ok_and(|path| UnixStream::connect(path).is_ok());
            if answers || Instant::now() >= until {
                return control;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn control(&self) -> Result<PathBuf, Failure> {
        control(self.control.as_ref(), self.switch.as_deref(), "--switch")
    }
}

fn address(text: &str) -> Result<Prefix, String> {
    text.parse::<Prefix>().and_then(Prefix::of_a_device)
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("{text} is no MAC address of one device; expected: as 02:00:00:00:00:01");
    let bytes = text.split(':').map(|part| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten());
    let bytes: Vec<u8> = bytes.collect::<Option<_>>().ok_or_else(wrong)?;
    bytes.try_into().ok().filter(|mac: &[u8; 6]| mac[0] & 1 == 0 && mac != &[0; 6]).ok_or_else(wrong)
}

/// Which of the switches that run.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Which {
    /// Its control socket; default that of the only one that runs
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Its name
    #[arg(long, value_name = "NAME", conflicts_with = "control")]
    name: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Show {
    /// Show the forwarding table instead: each address, its port, and the time since its last frame
    #[arg(long)]
    macs: bool,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
struct AddPort {
    /// The port's name
    port: String,
    /// Its settings, as in the file: kind=shm mac=02:00:00:00:00:01
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
struct DelPort {
    /// The port's name
    port: String,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "To look on: sluicenet switch capture PORT -w - | wireshark -k -i -")]
pub(super) struct CaptureArgs {
    /// The port's name
    port: String,
    /// The file to write, or - for stdout
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// End after this number of frames
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this number of seconds
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Bytes to keep of each frame; default all
    #[arg(long, short, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    snaplen: Option<u32>,
    #[command(flatten)]
    which: Which,
}

/// A file that is made when there is something to be written: a refused capture leaves an old one alone.
struct Wanting {
    path: PathBuf,
    file: Option<std::fs::File>,
}

impl std::io::Write for Wanting {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.file.is_none() {
            let at = |e: std::io::Error| std::io::Error::new(e.kind(), format!("{}: {e}", self.path.display()));
            self.file = Some(std::fs::File::create(&self.path).map_err(at)?);
        }
        self.file.as_mut().map_or(Ok(0), |file| file.write(bytes))
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.file.as_mut().map_or(Ok(()), std::io::Write::flush)
    }
}

impl CaptureArgs {
    pub(super) fn main(self, global: Global) -> Result<(), Failure> {
        let to_stdout = self.write.as_os_str() == "-";
        if to_stdout && global.json {
            return Err(Failure::Input("the capture goes to stdout, and so would --json".into()));
        }
        let time = match self.seconds {
            None => None,
            Some(s) if s > 0.0 && s <= 1e6 => Some(std::time::Duration::from_secs_f64(s)),
            Some(s) => return Err(Failure::Input(format!("--seconds {s}: from more than 0 to 1000000"))),
        };
        let control = self.which.control()?;
        let place = self.write.display().to_string();
        let mut out: Box<dyn std::io::Write> = match to_stdout {
            true => Box::new(std::io::stdout().lock()),
            false => Box::new(Wanting { path: self.write.clone(), file: None }),
        };
        let wanted = Wanted { port: self.port, snaplen: self.snaplen, count: self.count, time };
        interrupt::flag();
        let summary = record(&control, &wanted, &mut out, interrupt::raised).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidInput => Failure::Input(e.to_string()),
            _ => Failure::Failed(e.to_string()),
        })?;
        if global.json {
            output::json(&serde_json::json!({ "captured": summary.captured, "capture_lost": summary.lost }));
        } else if !global.quiet {
            let captured = frames(summary.captured);
            output::note(&format!("{place}: {captured} captured"));
        }
        match summary.lost {
            Some(0) => {}
            Some(lost) => {
                output::note(&format!("capture_lost: {} came faster than they could be written", frames(lost)))
            }
            None if to_stdout => {}
            None => output::note("the switch went away before the end of the capture"),
        }
        Ok(())
    }
}

impl Which {
    pub(super) fn control(&self) -> Result<PathBuf, Failure> {
        control(self.control.as_ref(), self.name.as_deref(), "--name")
    }

    pub(super) fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        match ask(&self.control()?, request).map_err(Failure::input)? {
            Answer::Error(text) | Answer::Refused { error: text, .. } => Err(Failure::Input(text)),
            answer => Ok(answer),
        }
    }

    pub(super) fn tell(&self, request: &Request, global: Global) -> Result<(), Failure> {
        self.said(self.ask(request)?, global)
    }

    pub(super) fn said(&self, answer: Answer, global: Global) -> Result<(), Failure> {
        match answer {
            Answer::Ok(text) if global.json => output::json(&serde_json::json!({ "ok": text })),
            Answer::Ok(text) => output::print(&(text + "\n")),
            Answer::Status(status) => show(&status, global),
            Answer::About(about) => output::json(&about),
            Answer::Macs(table) => show_macs(&table, global),
            Answer::Error(text) | Answer::Refused { error: text, .. } => return Err(Failure::Input(text)),
        }
        Ok(())
    }
}

impl Switch {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        match self.what {
            What::Run(RunSwitch { run, helper }) => run.main(helper.as_deref(), global),
            What::Helper(args) => args.main(global),
            What::Show(show) if show.macs => show.which.tell(&Request::Macs, global),
            What::Show(show) => show.which.tell(&Request::Show, global),
            What::AddPort(add) => {
                let added = attach::add_port(&add.which.control()?, &add.port, &add.settings).map_err(failure)?;
                add.which.said(Answer::Ok(added), global)
            }
            What::DelPort(del) => {
                let removed = attach::remove_port(&del.which.control()?, &del.port).map_err(failure)?;
                del.which.said(Answer::Ok(removed), global)
            }
            What::Attach(attach) => attach.main(global),
            What::Detach(detach) => detach.main(global),
            What::Capture(capture) => capture.main(global),
            What::Reload(which) => which.tell(&Request::Reload, global),
            What::Stop(which) => which.said(stop(&which.control()?).map_err(Failure::input)?, global),
        }
    }
}

impl AttachArgs {
    fn main(self, global: Global) -> Result<(), Failure> {
        let control = self.which.started()?;
        let tenant = self.tenant.map(|tenant| format!("tenant={tenant}"));
        let wanted = Attach {
            netns: self.netns,
            create: self.create,
            port: self.name,
            device: Some(self.device),
            addresses: self.ip,
            gateways: self.gateway,
            routes: self.route,
            mac: self.mac,
            mtu: self.mtu,
            switch_netns: self.switch_netns,
            unlocked: self.unlocked,
            settings: tenant.into_iter().chain(self.settings).collect(),
            note: None,
        };
        let attached = attach::attach(&control, &wanted).map_err(failure)?;
        let mac = mac_text(attached.device.mac);
        if global.json {
            output::json(&serde_json::json!({
                "port": attached.port, "device": attached.device.name, "mac": mac, "mtu": attached.device.mtu,
                "switch_netns": attached.switch_netns, "switch_device": attached.switch_device.name,
            }));
        } else if !global.quiet {
            let device = attached.device.name;
            output::note(&format!("{} of {} is at port {}, {mac}", device, wanted.netns, attached.port));
            let says = wanted.settings.iter().any(|setting| setting.starts_with("ip="));
            if wanted.addresses.is_empty() && !wanted.unlocked && !says {
                output::note("warning: it may send from any IP address: --ip or --set ip=... locks it");
            }
            if lacks_a_tenant(&control, &attached.port) {
                output::note(
                    "warning: it has no tenant, and other ports have one: it may send into any by a tag, and receives what \
                     they flood; --tenant keeps it in one",
                );
            }
        }
        Ok(())
    }
}

/// Whether a port is the exception at a switch that keeps tenants apart.
fn lacks_a_tenant(control: &Path, port: &str) -> bool {
    let Ok(Answer::Status(status)) = ask(control, &Request::Show) else { return false };
    let (own, others): (Vec<&PortStatus>, Vec<&PortStatus>) = status.ports.iter().partition(|p| p.name == port);
    own.iter().any(|p| p.tenant.is_none()) && others.iter().any(|p| p.tenant.is_some())
}

impl DetachArgs {
    fn main(self, global: Global) -> Result<(), Failure> {
        // The switch need not run.
        let control = match (&self.which.control, &self.which.switch) {
            (None, None) if those_that_run().1.is_empty() => default_control("sluicenet"),
            _ => self.which.control()?,
        };
        match attach::detach(&control, &self.what).map_err(failure)? {
            None => Err(Failure::Input(format!(
                "neither a namespace nor a port {} is attached to the switch at {}; --control or --switch names another one",
                self.what,
                control.display()
            ))),
            Some(_) if global.quiet || global.json => Ok(()),
            Some(record) => {
                output::note(&format!("port {} is detached", record.port));
                Ok(())
            }
        }
    }
}

/// What failed, and whose fault it is.
fn failure(e: AttachError) -> Failure {
    match e {
        AttachError::Kernel(_) | AttachError::Record(_) | AttachError::Left { .. } => Failure::Failed(e.to_string()),
        _ => Failure::Input(e.to_string()),
    }
}

impl Source {
    fn config(&self, load: fn(&Path) -> sluicenet_scenario::Result<Config>) -> Result<Config, Failure> {
        let Some(file) = &self.file else {
            let named = Config::without_file(&self.name);
            let named = named.map_err(|e| Failure::Input(format!("--name {}: {}", self.name, e.sentence())))?;
            let config = Config { socket_folders: self.socket_folders.clone(), ..named };
            return Ok(match &self.control {
                Some(control) => Config { control: control.clone(), ..config },
                None => config,
            });
        };
        Ok(load(file)?)
    }

    /// The command that starts the helper: the same program, also if its file has been replaced meanwhile.
    fn helper(&self, worker: bool, global: Global) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(HELPER);
        if global.quiet {
            command.arg("--quiet");
        }
        command.args(["switch", "helper"]).args(worker.then_some("--worker"));
        match (&self.file, &self.control) {
            (Some(file), _) => command.arg(file),
            (None, Some(control)) => command.args(["--name", &self.name, "--control"]).arg(control),
            (None, None) => command.args(["--name", &self.name]),
        };
        command
    }
}

/// The helper's name in a list of processes.
const HELPER: &str = "sluicenet-helper";
/// The same in the 15 bytes that the kernel keeps.
const HELPER_SHORT: &CStr = c"sluice-helper";

impl Run {
    fn main(self, helper: Option<&Path>, global: Global) -> Result<(), Failure> {
        let config = self.source.config(Config::load)?;
        if self.check {
            let warnings = mtu::warnings(&config).into_iter().chain(config.warnings());
            warnings.for_each(|warning| output::note(&format!("warning: {warning}")));
            let found = if self.here { here::look(&config) } else { Findings::default() };
            return check(&config.file, config.ports.len() as u64, &found, global);
        }
        log::start(config.log, global.quiet);
        let mut command = self.source.helper(false, global);
        let helper = helper.map_or_else(|| helper::From::Command(&mut command), helper::From::Socket);
        let status = Daemon::run(config, helper).map_err(|e| Failure::Failed(e.to_string()))?;
        show(&status, global);
        Ok(())
    }
}

impl HelperArgs {
    /// Opens devices for the switch at the other end of the standard input.
    fn main(self, global: Global) -> Result<(), Failure> {
        // A process that was started by `/proc/self/exe` is called `exe`.
        let named = rustix::thread::set_name(HELPER_SHORT);
        named.map_err(|e| Failure::Failed(format!("the name of the helper: {e}")))?;
        let config = self.source.config(if self.worker { helper::load } else { Config::load_without_keys })?;
        log::start(config.log, global.quiet);
        let socket = std::io::stdin().as_fd().try_clone_to_owned();
        let served = socket.and_then(|socket| match self.worker {
            true => helper::serve(config, socket),
            false => helper::supervise(&config, socket, &mut self.source.helper(true, global)),
        });
        served.map_err(|e| Failure::Failed(format!("the helper: {e}")))
    }
}

/// Says what a check found.
fn check(file: &Path, ports: u64, found: &Findings, global: Global) -> Result<(), Failure> {
    let file = file.display();
    let would = (!found.absent.is_empty()).then(|| format!(", {} of them absent here", found.absent.len()));
    let valid = format!("{file}: valid, {}{}", counted(ports, "port", "ports"), would.unwrap_or_default());
    if global.json {
        output::json(&serde_json::json!({ "ports": ports, "errors": found.errors, "absent": found.absent }));
    } else {
        found.errors.iter().for_each(|why| output::note(&format!("error: {why}")));
        found.absent.iter().for_each(|why| output::note(&format!("warning: {why}")));
    }
    match &found.errors[..] {
        [] if global.quiet || global.json => Ok(()),
        [] => {
            output::note(&valid);
            Ok(())
        }
        _ => Err(Failure::Told),
    }
}

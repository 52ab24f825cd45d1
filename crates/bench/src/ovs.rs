//! Open vSwitch in a namespace, its datapath in user space, for comparison.

use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::process::Program;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Why it does not run.
#[derive(Debug)]
pub struct OvsError(String);

impl fmt::Display for OvsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Open vSwitch: {}", self.0)
    }
}
impl std::error::Error for OvsError {}

/// A running switch; it ends with this.
#[derive(Debug)]
pub struct Ovs {
    // In this order: the switch ends first.
    switch: Option<Program>,
    _database: Program,
}

impl Ovs {
    /// Starts a switch whose ports are the devices in that namespace.
    pub fn start(namespace: &Namespace, scratch: &Path, devices: &[String]) -> Result<Ovs, OvsError> {
        if !Path::new(SCHEMA).exists() {
            return Err(OvsError(format!("{SCHEMA} is missing: the package openvswitch-switch is not installed")));
        }
        let file = |name: &str| scratch.join(name);
        let socket = file("db.sock");
        run(tool("ovsdb-tool", scratch).arg("create").arg(file("conf.db")).arg(SCHEMA))?;
        let mut server = tool("ovsdb-server", scratch);
        server.arg(file("conf.db")).arg(argument("--remote=punix:", &socket));
        server.arg(argument("--unixctl=", &file("db.ctl"))).arg(argument("--pidfile=", &file("db.pid")));
        let mut ovs = Ovs { switch: None, _database: spawn(namespace, server)? };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !socket.exists() {
            if Instant::now() > deadline {
                return Err(OvsError("its database did not start within 60 s".into()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let vsctl = || {
            let mut command = tool("ovs-vsctl", scratch);
            command.arg(argument("--db=unix:", &socket)).arg("--timeout=60");
            command
        };
        run(vsctl().args(["--no-wait", "init"]))?;
        let mut switch = tool("ovs-vswitchd", scratch);
        switch.arg(argument("unix:", &socket));
        switch.arg(argument("--unixctl=", &file("vs.ctl"))).arg(argument("--pidfile=", &file("vs.pid")));
        ovs.switch = Some(spawn(namespace, switch)?);
        run(vsctl().args([
            "add-br",
            "br0",
            "--",
            "set",
            "bridge",
            "br0",
            "datapath_type=netdev",
            "fail-mode=standalone",
        ]))?;
        for device in devices {
            run(vsctl().args(["add-port", "br0"]).arg(device))?;
        }
        Ok(ovs)
    }
}

fn argument(option: &str, path: &Path) -> String {
    format!("{option}{}", path.display())
}

/// A program of it that keeps its files where it is told.
fn tool(name: &str, scratch: &Path) -> Command {
    let installed = ["/usr/sbin", "/usr/bin"].iter().map(|dir| PathBuf::from(dir).join(name)).find(|p| p.exists());
    let mut command = Command::new(installed.unwrap_or_else(|| name.into()));
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, scratch);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn failed(command: &Command, why: impl fmt::Display) -> OvsError {
    OvsError(format!("{}: {why}", command.get_program().to_string_lossy()))
}

fn run(command: &mut Command) -> Result<(), OvsError> {
    let output = command.stderr(Stdio::piped()).output().map_err(|e| failed(command, e))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(command, String::from_utf8_lossy(&output.stderr).trim()))
}

/// Starts a program inside the namespace.
fn spawn(namespace: &Namespace, command: Command) -> Result<Program, OvsError> {
    let program = command.get_program().to_string_lossy().into_owned();
    Program::spawn(command, Some(namespace)).map_err(|e| OvsError(format!("{program}: {e}")))
}

//! One switch: Open vSwitch with a database, files and a process of its own.
//!
//! The ports of a process share one socket for sending, so that frames waiting at one port take room of the other
//! ports. With a process for each switch, no switch takes another's room, and each can be killed alone.

use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::process::Program;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The schema of the database in Open vSwitch's package.
pub const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The programs of Open vSwitch.
pub const PROGRAMS: [&str; 5] = ["ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"];
/// Time for a program to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// The settings of a switch.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The name of the switch as a bridge.
    pub name: String,
    /// The datapath id that the switch tells the controller.
    pub datapath_id: u64,
    /// The devices of the switch, port 1 first.
    pub devices: Vec<String>,
    /// The socket at which the controller listens.
    pub controller: PathBuf,
    /// The shortest interval between updates of the switch's counters, in milliseconds.
    pub refresh_ms: u32,
}

/// A switch that runs, or that ran before.
#[derive(Debug)]
pub struct Switch {
    plan: Plan,
    folder: PathBuf,
    // The order of the fields matters: the switch ends first.
    program: Option<Program>,
    _database: Program,
}

/// The path of an installed program. The system programs are not in every user's search path.
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(places);
    places.find_map(|place| Some(place.join(name)).filter(|file| file.is_file()))
}

/// A command for a program of Open vSwitch with its files in `folder`.
fn tool(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(installed(name).unwrap_or_else(|| name.into()));
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, folder);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn run(mut command: Command) -> io::Result<String> {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let name = command.get_program().to_string_lossy().into_owned();
    Err(io::Error::other(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Makes the empty database from which every switch starts.
pub fn make_database(file: &Path) -> io::Result<()> {
    let mut command = tool("ovsdb-tool", file.parent().unwrap_or(Path::new("/")));
    command.arg("create").arg(file).arg(SCHEMA);
    run(command).map(drop)
}

fn wait_for(socket: &Path, program: &mut Program) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !socket.exists() {
        if let Some(status) = program.try_wait()? {
            return Err(io::Error::other(format!("Open vSwitch ended at once: {status}")));
        }
        if Instant::now() > until {
            return Err(io::Error::new(ErrorKind::TimedOut, format!("Open vSwitch made no {}", socket.display())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Switch {
    /// Starts a switch from a copy of `database`, with its files in a new `folder`.
    pub fn start(plan: Plan, folder: PathBuf, database: &Path, namespace: &Namespace) -> io::Result<Switch> {
        std::fs::create_dir(&folder)?;
        // The switch lets its database name only this socket of a controller.
        std::os::unix::fs::symlink(&plan.controller, folder.join(format!("{}.controller", plan.name)))?;
        let own = folder.join("conf.db");
        std::fs::copy(database, &own)?;
        let socket = folder.join("db.sock");
        let mut server = tool("ovsdb-server", &folder);
        server.arg(&own).arg(format!("--remote=punix:{}", socket.display()));
        server.arg(format!("--unixctl={}", folder.join("db.ctl").display()));
        let mut server = Program::spawn(server, Some(namespace))?;
        wait_for(&socket, &mut server)?;
        let mut switch = Switch { plan, folder, program: None, _database: server };
        switch.configure()?;
        switch.revive(namespace)?;
        Ok(switch)
    }

    /// Writes the switch's settings into its database.
    fn configure(&self) -> io::Result<()> {
        let Plan { name, datapath_id, devices, refresh_ms, .. } = &self.plan;
        let controller = format!("unix:{}/{name}.controller", self.folder.display());
        let mut command = self.vsctl();
        command.args(["--no-wait", "set", "Open_vSwitch", "."]);
        command.arg(format!("other_config:max-revalidator={refresh_ms}"));
        command.args(["other_config:n-handler-threads=1", "other_config:n-revalidator-threads=1"]);
        command.args(["--", "add-br", name, "--", "set", "Bridge", name]);
        command.args(["datapath_type=netdev", "protocols=OpenFlow13", "fail_mode=secure"]);
        command.arg(format!("other_config:datapath-id={datapath_id:016x}"));
        // A table for the switch's own counters of flows; when the table is full, the oldest entries go.
        command.args(["flow_tables:1=@counted", "--", "--id=@counted", "create", "Flow_Table"]);
        command.args(["flow_limit=4096", "overflow_policy=evict", "--", "set-controller", name, &controller]);
        command.args(["--", "set", "Controller", name, "connection_mode=out-of-band", "max_backoff=1000"]);
        command.arg("inactivity_probe=2000");
        for (number, device) in (1..).zip(devices) {
            command.args(["--", "add-port", name, device, "--", "set", "Interface", device]);
            command.arg(format!("ofport_request={number}"));
            // Without this, the switch removes the queues of its devices.
            command.args(["--", "set", "Port", device, "qos=@shaped"]);
        }
        command.args(["--", "--id=@shaped", "create", "QoS", "type=linux-noop"]);
        run(command).map(drop)
    }

    /// Starts a switch that was killed; its tables are empty.
    pub fn revive(&mut self, namespace: &Namespace) -> io::Result<()> {
        let mut command = tool("ovs-vswitchd", &self.folder);
        command.arg(format!("unix:{}", self.folder.join("db.sock").display()));
        let control = self.folder.join("vs.ctl");
        command.arg(format!("--unixctl={}", control.display()));
        match std::fs::remove_file(&control) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut program = Program::spawn(command, Some(namespace))?;
        wait_for(&control, &mut program)?;
        self.program = Some(program);
        Ok(())
    }

    /// Kills the switch.
    pub fn kill(&mut self) {
        self.program = None;
    }

    /// Whether the switch is running.
    pub fn is_running(&mut self) -> bool {
        self.program.as_mut().is_some_and(|program| matches!(program.try_wait(), Ok(None)))
    }

    /// Deletes all entries of the switch's tables.
    pub fn flush(&self) -> io::Result<()> {
        let mut command = self.ofctl();
        command.args(["del-flows", &self.plan.name]);
        run(command).map(drop)
    }

    fn vsctl(&self) -> Command {
        let mut command = tool("ovs-vsctl", &self.folder);
        command.arg(format!("--db=unix:{}", self.folder.join("db.sock").display()));
        // The socket's file exists a moment before the switch listens.
        command.args(["--timeout=60", "--retry"]);
        command
    }

    fn ofctl(&self) -> Command {
        let mut command = tool("ovs-ofctl", &self.folder);
        command.args(["-O", "OpenFlow13"]);
        command
    }
}

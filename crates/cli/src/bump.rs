//! `bump`: a bump in the wire, and the requests to it.

use super::failure::Failure;
use super::switch::{CaptureArgs, Which};
use super::switch_show::show;
use super::table::{Table, count, short};
use super::{Global, output, supervised};
use sluicenet_proto::units::Rate;
use sluicenet_vswitchd::bump::learn::{self, Source};
use sluicenet_vswitchd::bump::program::serve;
use sluicenet_vswitchd::bump::status::BumpStatus;
use sluicenet_vswitchd::bump::{AppFile, Config, Daemon};
use sluicenet_vswitchd::control::{Answer, Request, stop};
use sluicenet_vswitchd::log;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct BumpVerb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Run a bump in the foreground from its configuration file, and start it again if it dies
    Run(Run),
    /// Serve a program in this process: for a bump, which shares memory with it
    #[command(hide = true)]
    Program(ProgramArgs),
    /// Show a running bump: its ports and its virtual queues
    Status(Which),
    /// Show only the virtual queues
    Queues(Which),
    /// Ask a switch for the stations behind its ports, and write them as a map
    Map(MapArgs),
    /// Capture the frames at a port, as pcapng
    Capture(CaptureArgs),
    /// Reload the map in the configuration file
    Reload(Which),
    /// Stop it
    Stop(Which),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// The bump's configuration file, TOML
    file: PathBuf,
    /// Check the file only
    #[arg(long)]
    check: bool,
    /// Do not start it again if it dies
    #[arg(long)]
    once: bool,
    /// A program for its frames: a shared library with the interface of netbump.h
    #[arg(long, value_name = "FILE.so")]
    app: Option<PathBuf>,
    /// The program's arguments, with spaces between them
    #[arg(long, value_name = "TEXT", requires = "app", allow_hyphen_values = true)]
    args: Option<String>,
    /// Call the program in the bump's own process: faster, but a fault of the program ends the bump
    #[arg(long)]
    in_process: bool,
}

#[derive(Debug, clap::Args)]
struct ProgramArgs {
    seed: u64,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").required(true))]
struct MapArgs {
    /// The switch's SNMP agent, as snmpbulkwalk takes it
    #[arg(long, value_name = "ADDRESS", group = "source")]
    snmp: Option<String>,
    /// Its community; default that of snmp.conf
    #[arg(long, value_name = "TEXT", requires = "snmp")]
    community: Option<String>,
    /// The switch by OpenFlow, as ovs-ofctl takes it: a bridge, or tcp:ADDRESS:PORT
    #[arg(long, value_name = "SWITCH", group = "source")]
    openflow: Option<String>,
    /// The speed of ports whose speed the switch does not say, in Mb/s
    #[arg(long, value_name = "MBPS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// The file to write; default stdout
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
}

impl MapArgs {
    fn main(self, global: Global) -> Result<(), Failure> {
        let source = match (self.snmp, self.openflow) {
            (Some(agent), _) => Source::Snmp { agent, community: self.community },
            (None, Some(switch)) => Source::OpenFlow(switch),
            (None, None) => return Err(Failure::Input("say where: --snmp or --openflow".into())),
        };
        let learned = learn::ask(&source).map_err(Failure::input)?;
        let text = learn::toml(&learned, self.rate.map(Rate::mbps)).map_err(Failure::Input)?;
        match &self.write {
            Some(path) => std::fs::write(path, text).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?,
            None => output::print(&text),
        }
        if !global.quiet {
            let stations: usize = learned.values().map(|port| port.macs.len()).sum();
            output::note(&format!("{} ports, {stations} stations", learned.len()));
        }
        Ok(())
    }
}

impl BumpVerb {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        match self.what {
            What::Run(run) => run.main(global),
            What::Program(program) => {
                let arguments: Vec<&str> = program.arguments.iter().map(String::as_str).collect();
                serve(&arguments, program.seed).map_err(|e| Failure::Failed(format!("the program: {e}")))
            }
            What::Status(which) => which.tell(&Request::Show, global),
            What::Queues(which) => match which.ask(&Request::Show)? {
                Answer::Status(status) => match status.bump {
                    Some(bump) if global.json => {
                        output::json(&bump.queues);
                        Ok(())
                    }
                    Some(bump) => {
                        output::print(&queues(&bump));
                        Ok(())
                    }
                    None => Err(Failure::Input(format!("{} is a switch: it has no virtual queues", status.name))),
                },
                other => which.said(other, global),
            },
            What::Map(map) => map.main(global),
            What::Capture(capture) => capture.main(global),
            What::Reload(which) => which.tell(&Request::Reload, global),
            What::Stop(which) => which.said(stop(&which.control()?).map_err(Failure::input)?, global),
        }
    }
}

impl Run {
    fn main(self, global: Global) -> Result<(), Failure> {
        let in_process = self.in_process;
        let app_file = (self.app.is_some() || in_process).then(|| AppFile {
            file: self.app.clone(),
            arguments: self.args.clone().unwrap_or_default(),
            in_process,
        });
        let config = Config::load_with(&self.file, app_file.as_ref())?;
        if self.check {
            if !global.quiet {
                output::note(&format!("{}: valid, {} links", self.file.display(), config.link_count()));
            }
            return Ok(());
        }
        log::start(config.log, global.quiet);
        if self.once {
            let status = Daemon::run(config).map_err(|e| Failure::Failed(e.to_string()))?;
            show(&status, global);
            return Ok(());
        }
        let mut args: Vec<OsString> = ["bump", "run", "--once"].map(OsString::from).into();
        args.push(self.file.into());
        if let Some(app) = self.app {
            args.extend(["--app".into(), app.into()]);
        }
        args.extend(self.args.map(|arguments| format!("--args={arguments}").into()));
        args.extend(self.in_process.then(|| "--in-process".into()));
        supervised::run("bump", args, global)
    }
}

/// The state of a bump beside its ports.
pub(super) fn text(bump: &BumpStatus) -> String {
    let links: Vec<String> = bump.links.iter().map(|[a, b]| format!("{a} - {b}")).collect();
    let mut text = format!(
        "\nlinks {}; loops {}, {}; when it is dead, links {}\n",
        links.join(", "),
        bump.loops,
        if bump.sleeps { "which sleep when idle" } else { "which never sleep" },
        bump.when_dead
    );
    text += &format!(
        "{} frames for itself, {} of its own, {} of these without room, {} to destinations without a virtual queue\n",
        count(bump.consumed),
        count(bump.own),
        count(bump.own_lost),
        count(bump.unmapped)
    );
    for (port, n) in &bump.neighbours {
        let speed = n.mbps.map_or("at an unknown speed".into(), |mbps| format!("at {} Mb/s", count(mbps.into())));
        text += &format!("the neighbour at {port}: {}, port {}, {speed}\n", n.system, n.port);
    }
    if let Some(u) = &bump.updates {
        text += &format!(
            "updates: {} sent, {} forged, {} damaged, {} of strangers\n",
            count(u.sent),
            count(u.forged),
            count(u.damaged),
            count(u.strangers)
        );
        for (neighbour, [merged, lost, stale, unknown, estimated]) in &u.neighbours {
            text += &format!(
                "  of bump {neighbour}: {} merged, {} lost ({} bytes estimated), {} stale, {} packets for unknown ports\n",
                count(*merged),
                count(*lost),
                count(*estimated),
                count(*stale),
                count(*unknown)
            );
        }
    }
    if let Some(program) = &bump.program {
        text += &format!("program {program}\n");
    }
    for lane in &bump.lanes {
        let state = if lane.runs { "runs" } else { "does not run" };
        let counters: Vec<String> =
            lane.counters.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {}", count(*n))).collect();
        text += &format!("  for {}: {state}, {} frames in it; {}\n", lane.port, lane.inside, counters.join(", "));
    }
    text + &queues(bump)
}

/// The virtual queues.
fn queues(bump: &BumpStatus) -> String {
    let columns = ["downstream", "b/s", "bytes", "limit", "packets", "marked", "dropped", "notices", "reported", ""];
    let mut t = Table::new(1, columns);
    for q in &bump.queues {
        let gauges: Vec<String> = q.gauges.iter().map(|(name, value)| format!("{name} {}", short(*value))).collect();
        t.row([
            q.port.as_str(),
            &short(q.rate_bps as f64),
            &count(q.bytes),
            &q.limit_bytes.map_or("-".into(), count),
            &count(q.packets),
            &count(q.marked),
            &count(q.dropped),
            &count(q.notices),
            &count(q.reported),
            &gauges.join(", "),
        ]);
    }
    t.text()
}

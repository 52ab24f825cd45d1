//! `xco`: the controller of XCo, and the requests to it.

use super::failure::Failure;
use super::switch::Which;
use super::switch_show::show;
use super::table::{Table, count};
use super::{Global, output, supervised};
use sluicenet_vswitchd::control::{Request, stop};
use sluicenet_vswitchd::log;
use sluicenet_vswitchd::status::Status;
use sluicenet_vswitchd::xco::status::XcoStatus;
use sluicenet_vswitchd::xco::{AgentFile, Config, run_agent, run_controller};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct XcoVerb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Run a controller in the foreground from its configuration file
    Run(Run),
    /// Run the agent of a host without our switch in the foreground, and start it again if it dies
    Agent(Agent),
    /// Show a running controller or agent: its hosts, flows and refused messages
    Status(Which),
    /// Reload the weights in the configuration file
    Reload(Which),
    /// Stop it
    Stop(Which),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// The controller's configuration file, TOML
    file: PathBuf,
    /// Check the file only
    #[arg(long)]
    check: bool,
}

#[derive(Debug, clap::Args)]
struct Agent {
    /// The agent's configuration file, TOML
    file: PathBuf,
    /// Check the file only
    #[arg(long)]
    check: bool,
    /// Do not start it again if it dies
    #[arg(long)]
    once: bool,
}

impl XcoVerb {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        match self.what {
            What::Run(run) => run.main(global),
            What::Agent(agent) => agent.main(global),
            What::Status(which) => which.tell(&Request::Show, global),
            What::Reload(which) => which.tell(&Request::Reload, global),
            What::Stop(which) => which.said(stop(&which.control()?).map_err(Failure::input)?, global),
        }
    }
}

impl Run {
    fn main(self, global: Global) -> Result<(), Failure> {
        let config = Config::load(&self.file)?;
        if self.check {
            if !global.quiet {
                let (hosts, links) = config.size();
                output::note(&format!("{}: valid, {hosts} hosts, {links} links", self.file.display()));
            }
            return Ok(());
        }
        log::start(config.log, global.quiet);
        let status = run_controller(config).map_err(|e| Failure::Failed(e.to_string()))?;
        show(&status, global);
        Ok(())
    }
}

impl Agent {
    fn main(self, global: Global) -> Result<(), Failure> {
        let file = AgentFile::load(&self.file)?;
        if self.check {
            if !global.quiet {
                output::note(&format!("{}: valid, {} destinations", self.file.display(), file.destinations()));
            }
            return Ok(());
        }
        log::start(file.log, global.quiet);
        if self.once {
            let status = run_agent(file).map_err(|e| Failure::Failed(e.to_string()))?;
            show(&status, global);
            return Ok(());
        }
        // The queues of a dead agent may be shut: its successor makes them anew.
        let verb = ["xco", "agent", "--once"].map(OsString::from);
        supervised::run("agent", verb.into_iter().chain([self.file.into()]), global)
    }
}

/// The state of a controller or an agent.
pub(super) fn text(status: &Status, xco: &XcoStatus) -> String {
    let XcoStatus { role, kind, epoch, hosts, members, flows, congested, waiting_bytes, events, messages } = xco;
    let mut text = format!("{} (process {}, up {:.0} s): {role}, {kind}", status.name, status.pid, status.uptime_s);
    text += &match role.as_str() {
        "agent" if *members > 0 => format!("; it has joined a controller, {flows} of {hosts} destinations wait"),
        "agent" => format!("; it has joined no controller, {flows} of {hosts} destinations wait"),
        _ => format!(", epoch {epoch}; {members} of {hosts} hosts joined, {flows} flows wait"),
    };
    if let Some(bytes) = waiting_bytes {
        text += &format!(" with {} bytes", count(*bytes));
    }
    if let Some(congested) = congested {
        text += &format!(", {congested} links are congested");
    }
    text += "\n";
    let mut t = Table::new(1, ["event", "", "messages", ""]);
    let rows = events.len().max(messages.len());
    let cell = |pair: Option<(&String, &u64)>| {
        pair.map_or((String::new(), String::new()), |(name, n)| (name.clone(), count(*n)))
    };
    for at in 0..rows {
        let ((event, n), (message, m)) = (cell(events.iter().nth(at)), cell(messages.iter().nth(at)));
        t.row([event.as_str(), &n, &message, &m]);
    }
    text + &t.text()
}

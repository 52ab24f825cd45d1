//! `xco`: the controller of XCo, and the requests to it.

use super::failure::Failure;
use super::switch::{Which, show};
use super::table::{Table, count};
use super::{Global, output};
use sluicenet_vswitchd::control::{Request, stop};
use sluicenet_vswitchd::log;
use sluicenet_vswitchd::status::Status;
use sluicenet_vswitchd::xco::status::XcoStatus;
use sluicenet_vswitchd::xco::{Config, Daemon};
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
    /// Show a running controller: its hosts, flows and refused messages
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

impl XcoVerb {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        match self.what {
            What::Run(run) => run.main(global),
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
        let status = Daemon::run(config).map_err(|e| Failure::Failed(e.to_string()))?;
        show(&status, global);
        Ok(())
    }
}

/// The state of a controller or an agent.
pub(super) fn text(status: &Status, xco: &XcoStatus) -> String {
    let XcoStatus { role, kind, epoch, hosts, members, flows, congested, events, messages } = xco;
    let mut text = format!(
        "controller {} (process {}, up {:.0} s): {role}, {kind}, epoch {epoch}; {members} of {hosts} hosts joined, \
         {flows} flows wait",
        status.name, status.pid, status.uptime_s
    );
    if let Some(congested) = congested {
        text += &format!(", {congested} links are congested");
    }
    text += "\n";
    let mut t = Table::new(1, ["event", "", "messages", ""]);
    let rows = events.len().max(messages.len());
    let cell = |pair: Option<(&String, &u64)>| pair.map_or((String::new(), String::new()), |(name, n)| (name.clone(), count(*n)));
    for at in 0..rows {
        let ((event, n), (message, m)) = (cell(events.iter().nth(at)), cell(messages.iter().nth(at)));
        t.row([event.as_str(), &n, &message, &m]);
    }
    text + &t.text()
}

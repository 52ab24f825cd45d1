//! The command line, with one file for each verb. A line belongs here when it knows a verb, an option or a table on the
//! terminal.
//!
//! Results go to stdout: a table, or the same as JSON with `--json` and nothing else. Progress, warnings and errors go to
//! stderr. Each kind of `Failure` has its exit code.
#![forbid(unsafe_code)]

mod agent;
mod bench;
mod bump;
mod cells;
mod controller;
mod demo;
mod diff;
mod doctor;
mod estimate;
mod export;
mod fabric;
mod failure;
mod faults;
mod figures;
mod files;
mod headroom;
mod hedera;
mod interrupt;
mod output;
mod overload;
mod profile;
mod progress;
mod report;
mod rerun;
mod results;
mod run;
mod schema;
mod slurm;
mod sonic;
mod supervised;
mod sweep;
mod switch;
mod switch_show;
mod table;
mod tables;
mod tenant;
mod testbed;
mod top;
mod validate;
mod values;
mod xco;
mod xco_program;

use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;

/// Simulates datacenters that hold packets back instead of dropping them, packet by packet.
#[derive(Debug, Parser)]
#[command(name = "sluicenet", version, max_term_width = 100, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// The meaning of the exit codes; the README has the same table.
const EXIT_CODES: &str = "\
Exit codes:
    0  done; of diff: the results are the same
    1  a run failed (a loss where none may be, a deadlock, a full disk); of diff: the results differ
    2  nothing was run: bad usage or input, a place that cannot take results, results that cannot be read or compared
  130  stopped by Ctrl-C; what was recorded is readable";

/// Options of every verb.
#[derive(Clone, Copy, Debug, Args)]
struct Global {
    /// Print the result as JSON on stdout, and nothing else there
    #[arg(long, global = true)]
    json: bool,
    /// No progress, warnings or remarks; the result and errors are still printed
    #[arg(long, short, global = true)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// The main result in a minute or two: 256 servers, lossy and lossless, three TCPs
    Demo(demo::Demo),
    /// Run one scenario
    Run(run::Run),
    /// Check a scenario without running it
    Validate(validate::Validate),
    /// Run every variant of a scenario
    Sweep(sweep::Sweep),
    /// Write the HTML page of a result again
    Report(report::Report),
    /// Compare two results row by row
    Diff(diff::Diff),
    /// Write a result in the formats of HPCC's simulator, htsim or Perfetto
    Export(export::Export),
    /// Measure the switch, beside others, and the simulator
    Bench(bench::Bench),
    /// The lossless switch for guests, containers and processes
    Switch(switch::Switch),
    /// A bump in the wire: congestion control for switches that have none
    Bump(bump::BumpVerb),
    /// XCo: a central controller that tells hosts when they may send, and its agent for hosts without the switch
    Xco(xco_program::XcoVerb),
    /// The controller of an overlay, which knows the server of each endpoint
    Controller(controller::Controller),
    /// Inside a guest: reports the room of its sockets to the switch
    Agent(agent::AgentVerb),
    /// The traffic of the running switches, their waiting senders, and the ports that these wait for
    Top(top::Top),
    /// Run a scenario between real tenants on this machine, with its fabric in real time
    Testbed(testbed::Testbed),
    /// A fat-tree from k alone: counts, tables, cost, cables, exports
    Fabric(fabric::Fabric),
    /// The headroom of a lossless priority by rate and cable, term by term, beside SONiC's
    Headroom(headroom::HeadroomArgs),
    /// SONiC's config_db.json: its QoS part as sections of a scenario, and back
    Sonic(sonic::SonicVerb),
    /// Remove the leftovers of a killed testbed or test: processes, namespaces, files
    Clean,
    /// Show which optional tools and kernel features this machine has
    Doctor,
    /// Print the JSON schema of scenarios
    Schema,
}

/// The options of every verb that reads a scenario.
#[derive(Clone, Debug, Default, Args)]
struct Overrides {
    /// Override a key, as tcp.congestion=cubic or workload.0.queries=20
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Override the seed
    #[arg(long, value_name = "S", value_parser = seed, allow_negative_numbers = true)]
    seed: Option<u64>,
}

/// The value of `--seed`.
fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a seed is a whole number from 0 to {}", u64::MAX))
}

impl Overrides {
    /// All overrides, in the loader's form.
    fn all(&self) -> Vec<String> {
        self.set.iter().cloned().chain(self.seed.map(|s| format!("scenario.seed={s}"))).collect()
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let global = cli.global;
    let outcome = match cli.verb {
        Verb::Demo(v) => v.main(global),
        Verb::Run(v) => v.main(global),
        Verb::Validate(v) => v.main(global),
        Verb::Sweep(v) => v.main(global),
        Verb::Report(v) => v.main(global),
        Verb::Diff(v) => v.main(global),
        Verb::Export(v) => v.main(global),
        Verb::Bench(v) => v.main(global),
        Verb::Switch(v) => v.main(global),
        Verb::Bump(v) => v.main(global),
        Verb::Xco(v) => v.main(global),
        Verb::Controller(v) => v.main(global),
        Verb::Agent(v) => v.main(global),
        Verb::Top(v) => v.main(global),
        Verb::Testbed(v) => v.main(global),
        Verb::Fabric(v) => v.main(global),
        Verb::Headroom(v) => v.main(global),
        Verb::Sonic(v) => v.main(global),
        Verb::Clean => testbed::clean_up(global),
        Verb::Doctor => doctor::main(global),
        Verb::Schema => schema::main(),
    };
    match outcome.and_then(|()| output::outcome()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::warnings(failure.warnings(), global);
            if let Some(message) = failure.message() {
                output::note(&message);
            }
            failure.code()
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
    }
}

//! `testbed`: a scenario between real tenants on this machine, joined by its fabric in real time.

mod bump;
mod fattree;
mod flows;
mod iperf;
mod pa;
mod programs;
mod variants;
mod xco;

use super::failure::Failure;
use super::table::Table;
use super::{Global, Overrides, interrupt, output};
use sluicenet_scenario::{Loaded, Scenario};
use sluicenet_testbed::files::TestbedDir;
use sluicenet_testbed::leftovers::clean;
use sluicenet_testbed::live::{Live, Progress};
use sluicenet_testbed::{Application, Origin, PREFIX, Plan, Tenant};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(after_help = TESTBED_HELP)]
pub(super) struct Testbed {
    #[command(subcommand)]
    what: What,
}

const TESTBED_HELP: &str = "\
Root is needed. Tenants are network namespaces called sluice-sN-tM, or QEMU guests (testbed.tenants), behind a switch of each
server; all traffic stays in them. `sluicenet clean` removes what a killed run left.";

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Build a testbed and leave it up
    Up(Up),
    /// Partition/Aggregate between the tenants' sockets, for every variant of the scenario; builds and removes the testbed
    Pa(pa::Pa),
    /// Endless flows between the tenants' sockets, for every variant; builds and removes the testbed
    Flows(flows::Flows),
    /// Real bumps in the links of a scenario, between hosts with the kernel's TCP, for every variant; builds and removes the testbed
    Bump(bump::Bump),
    /// The benchmark suite on a fat-tree of Open vSwitches with an OpenFlow controller; builds and removes the testbed
    Fattree(fattree::Fattree),
    /// Hosts behind the scenario's network with XCo's controller and agents, for every variant; builds and removes the testbed
    Xco(xco::Xco),
    /// iperf3 between two tenants of the running testbed
    Iperf(iperf::Iperf),
    /// Remove the running testbed
    Down,
    /// Run a shell command in a guest of the running testbed
    Sh(Sh),
    /// The fabric of a testbed, as `up` starts it
    #[command(hide = true)]
    Fabric(programs::Fabric),
    /// The supervisor of a testbed's guests, as `up` starts it
    #[command(hide = true)]
    Guests(programs::Guests),
    /// Inside a guest: its part of the applications
    #[command(hide = true)]
    Tenant(programs::Part),
    /// Inside a guest: the frames that its kernel dropped
    #[command(hide = true)]
    Edges,
}

#[derive(Debug, clap::Args)]
struct Sh {
    /// The guest, as s0-t1
    guest: String,
    /// The command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    line: Vec<String>,
    /// How long the command may take
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
}

impl Sh {
    fn main(self) -> Result<(), Failure> {
        let live = Live::find().map_err(failed)?;
        if !live.made().map_err(failed)?.guests {
            return Err(Failure::Input(
                "the tenants of this testbed are namespaces: `ip netns exec` enters them".into(),
            ));
        }
        let name = if self.guest.starts_with(PREFIX) { self.guest } else { format!("{PREFIX}{}", self.guest) };
        let patience = Duration::from_secs(self.seconds.into());
        let outcome = live.supervisor().run(&name, &self.line.join(" "), patience).map_err(failed)?;
        output::print(outcome.text.strip_suffix('\n').unwrap_or(&outcome.text));
        match outcome.code {
            0 => Ok(()),
            code => Err(Failure::Failed(format!("exit code {code}"))),
        }
    }
}

#[derive(Debug, clap::Args)]
struct Up {
    /// The scenario
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// The variant, if the scenario has several, as flow_control=ZZ
    #[arg(long, value_name = "LABEL")]
    variant: Option<String>,
}

impl Testbed {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        match self.what {
            What::Up(up) => up.main(global),
            What::Pa(pa) => pa.main(global),
            What::Flows(flows) => flows.main(global),
            What::Bump(bump) => bump.main(global),
            What::Fattree(fattree) => fattree.main(global),
            What::Xco(xco) => xco.main(global),
            What::Iperf(iperf) => iperf.main(global),
            What::Down => down(global),
            What::Sh(sh) => sh.main(),
            What::Fabric(fabric) => fabric.main(global),
            What::Guests(guests) => guests.main(),
            What::Tenant(part) => part.main(),
            What::Edges => programs::edges(),
        }
    }
}

/// Runs the base of a scenario on a testbed, without its sweep.
pub(super) fn run_base(file: &Path, loaded: &Loaded, global: Global) -> Result<(), Failure> {
    let cells = variants::cells(file, loaded, false)?;
    match cells[0].plan.application {
        Application::Queries => pa::queries(&cells, false, global),
        Application::Flows => flows::flows(&cells, false, None, global),
    }
}

fn failed(e: std::io::Error) -> Failure {
    Failure::Failed(e.to_string())
}

/// Prints a message beside the result, unless with `--quiet`.
fn if_loud(global: Global, what: &str) {
    if !global.quiet {
        output::note(what);
    }
}

impl Up {
    fn main(self, global: Global) -> Result<(), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        let variants = loaded.expand_sweep()?;
        let number = match (&self.variant, variants.len()) {
            (None, 1) => 0,
            (wanted, _) => {
                let wanted = wanted.as_deref().unwrap_or("");
                let found = variants.iter().position(|v| v.label == wanted);
                found.ok_or_else(|| {
                    if let [_] = variants[..] {
                        let file = self.file.display();
                        return Failure::Input(format!("{file} has no variant {wanted:?}: it has no [sweep]"));
                    }
                    let labels: Vec<String> = variants.iter().map(|v| format!("  --variant {:?}", v.label)).collect();
                    let file = self.file.display();
                    Failure::Input(format!("{file} has {} variants: choose one\n{}", labels.len(), labels.join("\n")))
                })?
            }
        };
        let variant = &variants[number];
        let plan = Plan::new(&variant.scenario)?;
        let origin = Origin::new(&self.file, &loaded, Some(number));
        let say = |what: &str| if_loud(global, what);
        variants::warn(std::iter::once(&plan), global);
        let live = Live::up(&plan, &origin, Progress { say: &say, stop: interrupt::flag() });
        live.map_err(|e| match e.kind() {
            ErrorKind::Interrupted => Failure::Interrupted(e.to_string()),
            _ => failed(e),
        })?;
        let tenants: Vec<&Tenant> = plan.tenants().collect();
        if global.json {
            let list: Vec<_> = tenants
                .iter()
                .flat_map(|t| {
                    let kind = if plan.has_guests() { "guest" } else { "namespace" };
                    let server = t.host;
                    let kernel = t
                        .has_kernel()
                        .then(|| serde_json::json!({ kind: t.namespace, "address": t.address, "server": server }));
                    let light = t.light().map(
                        |light| serde_json::json!({ "port": light.name, "address": light.address, "server": server }),
                    );
                    kernel.into_iter().chain(light)
                })
                .collect();
            output::json(&serde_json::json!({ "servers": plan.servers.len(), "tenants": list }));
            return Ok(());
        }
        let mut t = Table::new(2, ["tenant", "address"]);
        for tenant in &tenants {
            if tenant.has_kernel() {
                t.row([tenant.namespace.clone(), tenant.address.to_string()]);
            }
            if let Some(light) = tenant.light() {
                t.row([
                    format!("port {} of server {}, for light sockets", light.name, tenant.host),
                    light.address.to_string(),
                ]);
            }
        }
        let hint = tenants.iter().find(|t| t.has_kernel()).map_or(String::new(), |t| {
            let enter = match plan.has_guests() {
                true => format!("to have one do this: sluicenet testbed sh {} ip addr\n", t.namespace),
                false => format!("to be one of them:  ip netns exec {} bash\n", t.namespace),
            };
            format!(
                "\n{enter}a server's switch:  sluicenet switch show --control {}\n\
                 to remove it:       sluicenet testbed down\n",
                TestbedDir::of_the_machine().folder().join("s0.sock").display()
            )
        });
        output::print(&(t.text() + &hint));
        Ok(())
    }
}

fn down(global: Global) -> Result<(), Failure> {
    let gone = Live::find().and_then(Live::down).map_err(failed)?;
    said(&gone, global);
    Ok(())
}

/// `clean`: removes leftovers of any run.
pub(super) fn clean_up(global: Global) -> Result<(), Failure> {
    let cleaned = clean().map_err(failed)?;
    if global.json {
        output::json(&serde_json::json!({ "removed": cleaned.gone, "kept": cleaned.kept, "failed": cleaned.failed }));
    } else {
        said(&cleaned.gone, global);
        if !global.quiet && !cleaned.kept.is_empty() {
            output::print(&format!("kept {} things\n", cleaned.kept.len()));
            cleaned.kept.iter().for_each(|what| output::print(&format!("  {what}\n")));
        }
    }
    match &cleaned.failed[..] {
        [] => Ok(()),
        all => Err(Failure::Failed(all.join("\n"))),
    }
}

fn said(gone: &[String], global: Global) {
    if global.json {
        output::json(&serde_json::json!({ "removed": gone }));
    } else if !global.quiet {
        output::print(&format!("removed {} things\n", gone.len()));
        gone.iter().for_each(|name| output::print(&format!("  {name}\n")));
    }
}

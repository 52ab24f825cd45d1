//! `testbed`: a scenario between real tenants on this machine, joined by its fabric in real time.

use super::failure::Failure;
use super::table::{Table, count};
use super::{Global, Overrides, interrupt, output};
use crate::scenario::{Loaded, Scenario};
use crate::testbed::files::Place;
use crate::testbed::live::Live;
use crate::testbed::measure::{Cell, FabricFigures, measure};
use crate::testbed::remains::clean;
use crate::testbed::{PREFIX, Plan, Tenant, fabric};
use serde::Serialize;
use sluicenet_dataplane::fabric::{Fabric, Runner};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::PacketDevice;
use sluicenet_dataplane::process::Program;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Debug, clap::Args)]
#[command(after_help = TESTBED_HELP)]
pub(super) struct Testbed {
    #[command(subcommand)]
    what: What,
}

const TESTBED_HELP: &str = "\
Root is needed. Tenants are network namespaces called sluice-sN-tM, behind a switch of each server; all traffic stays in
them. `sluicenet clean` removes what a killed run left.";

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Build it and leave it up
    Up(Up),
    /// Partition/Aggregate between the tenants' sockets, for every variant of the scenario; builds and removes the testbed
    Pa(Pa),
    /// iperf3 between two tenants of the testbed that is up
    Iperf(Iperf),
    /// Remove the testbed that is up
    Down,
    /// The fabric of a testbed, as `up` starts it
    #[command(hide = true)]
    Fabric(FabricArgs),
}

#[derive(Debug, clap::Args)]
struct Up {
    /// The scenario
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Which variant of a scenario that has several, as flow_control=ZZ
    #[arg(long, value_name = "LABEL")]
    variant: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Pa {
    /// The scenario
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Simulate every variant, too, and print that beside
    #[arg(long)]
    simulate: bool,
}

#[derive(Debug, clap::Args)]
struct Iperf {
    /// Who sends, as s0-t1
    from: String,
    /// Who receives
    to: String,
    /// For how long
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
    /// UDP, as fast as it goes, instead of TCP
    #[arg(long)]
    udp: bool,
}

#[derive(Debug, clap::Args)]
struct FabricArgs {
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// The number of the variant
    #[arg(long, default_value_t = 0)]
    number: usize,
}

impl Testbed {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        match self.what {
            What::Up(up) => up.main(global),
            What::Pa(pa) => pa.main(global),
            What::Iperf(iperf) => iperf.main(global),
            What::Down => down(global),
            What::Fabric(fabric) => fabric.main(global),
        }
    }
}

fn failed(e: std::io::Error) -> Failure {
    Failure::Failed(e.to_string())
}

/// A variant of a scenario as the fabric's program is told it: the file, the overrides, the number.
fn words_of(file: &Path, loaded: &Loaded, number: usize) -> Vec<String> {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned()).display().to_string();
    let overrides = loaded.overrides.iter().flat_map(|o| ["--set".to_owned(), o.clone()]);
    [file].into_iter().chain(overrides).chain(["--number".into(), number.to_string()]).collect()
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
        let words = words_of(&self.file, &loaded, number);
        Live::up(&plan, &words).map_err(failed)?;
        let tenants: Vec<&Tenant> = plan.servers.iter().flat_map(|s| &s.tenants).collect();
        if global.json {
            let list: Vec<_> = tenants
                .iter()
                .map(|t| serde_json::json!({ "namespace": t.namespace, "address": t.address, "server": t.host }))
                .collect();
            output::json(&serde_json::json!({ "servers": plan.servers.len(), "tenants": list }));
            return Ok(());
        }
        let mut t = Table::new(2, ["tenant", "address"]);
        for tenant in &tenants {
            t.row([tenant.namespace.clone(), tenant.address.to_string()]);
        }
        let hint = tenants.first().map_or(String::new(), |t| {
            format!(
                "\nto be one of them:  ip netns exec {} bash\na server's switch:  sluicenet switch show --control {}\n\
                 to remove it:       sluicenet testbed down\n",
                t.namespace,
                Place::of_the_machine().folder().join("s0.sock").display()
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

/// `clean`: what any run left behind.
pub(super) fn clean_up(global: Global) -> Result<(), Failure> {
    let cleaned = clean().map_err(failed)?;
    if global.json {
        output::json(&serde_json::json!({ "removed": cleaned.gone, "kept": cleaned.kept }));
        return Ok(());
    }
    said(&cleaned.gone, global);
    if !global.quiet && !cleaned.kept.is_empty() {
        output::print(&format!("kept {} things\n", cleaned.kept.len()));
        cleaned.kept.iter().for_each(|what| output::print(&format!("  {what}\n")));
    }
    Ok(())
}

fn said(gone: &[String], global: Global) {
    if global.json {
        output::json(&serde_json::json!({ "removed": gone }));
    } else if !global.quiet {
        output::print(&format!("removed {} things\n", gone.len()));
        gone.iter().for_each(|name| output::print(&format!("  {name}\n")));
    }
}

/// What `pa` prints.
#[derive(Serialize)]
struct Printed {
    scenario: String,
    servers: usize,
    tenants: usize,
    link_bps: u64,
    cells: Vec<Cell>,
}

impl Pa {
    fn main(self, global: Global) -> Result<(), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        let variants = loaded.expand_sweep()?;
        let mut printed: Option<Printed> = None;
        for (i, variant) in variants.iter().enumerate() {
            let plan = Plan::new(&variant.scenario)?;
            if !global.quiet {
                let label = if variant.label.is_empty() { &variant.scenario.name } else { &variant.label };
                output::note(&format!("{} of {}: {label}", i + 1, variants.len()));
            }
            let words = words_of(&self.file, &loaded, i);
            let cell = measure(variant, &words, self.simulate, interrupt::flag()).map_err(failed)?;
            let printed = printed.get_or_insert_with(|| Printed {
                scenario: variant.scenario.name.clone(),
                servers: plan.servers.len(),
                tenants: plan.servers.iter().map(|s| s.tenants.len()).sum(),
                link_bps: plan.servers.first().map_or(0, |s| s.rate.as_bps()),
                cells: Vec::new(),
            });
            printed.cells.push(cell);
            if interrupt::raised() {
                break;
            }
        }
        let Some(printed) = printed else { return Ok(()) };
        if global.json {
            output::json(&printed);
        } else {
            output::print(&table(&printed, self.simulate));
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        let lossless = printed.cells.iter().filter(|c| c.flow_control == "ZZ");
        let lost: u64 = lossless.map(|c| c.lost.virtual_network + c.lost.physical_network + c.lost.edges).sum();
        if lost > 0 {
            return Err(Failure::Failed(format!("{lost} frames were lost where none may be (ZZ)")));
        }
        Ok(())
    }
}

fn table(printed: &Printed, simulate: bool) -> String {
    let mut head = vec![
        "variant",
        "mean",
        "95 %",
        "median",
        "without timeouts",
        "99 %",
        "timeouts",
        "lost virtual",
        "physical",
        "edges",
        "against LL",
    ];
    if simulate {
        head.extend(["simulated mean", "lost virtual", "physical"]);
    }
    let mut t = Table::new(1, head);
    let ms = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.2} ms"));
    for cell in &printed.cells {
        let f = &cell.figures;
        // The one that differs in flow control alone.
        let strip = |c: &Cell| c.variant.replace(&c.flow_control, "");
        let base = printed.cells.iter().find(|c| c.flow_control == "LL" && strip(c) == strip(cell));
        let gain = match (base.and_then(|b| b.figures.mean_ms), f.mean_ms) {
            (Some(base), Some(mean)) => format!("{:.2}x", base / mean),
            _ => "-".into(),
        };
        let mut row = vec![
            if cell.variant.is_empty() { cell.flow_control.clone() } else { cell.variant.clone() },
            ms(f.mean_ms),
            f.mean_ci95_ms.map_or("-".into(), |v| format!("± {v:.2}")),
            ms(f.median_ms),
            ms(f.timeout_free_median_ms),
            ms(f.p99_ms),
            f.timeouts.map_or_else(|| format!("{} (whole run)", count(f.run_timeouts)), count),
            count(cell.lost.virtual_network),
            count(cell.lost.physical_network),
            count(cell.lost.edges),
            gain,
        ];
        if let Some(s) = &cell.simulated {
            row.extend([ms(s.mean_ms), count(s.lost_virtual), count(s.lost_physical)]);
        }
        t.row(row);
    }
    let late = printed.cells.iter().map(|c| c.fabric.late_share).fold(0.0, f64::max);
    format!(
        "\n  {}: {} servers, {} tenants, links of {:.0} Mb/s; queries between the sockets of the kernel's own TCP\n\n{}\n  \
         at most {:.2} % of the fabric's events were later than the time of a frame\n",
        printed.scenario,
        printed.servers,
        printed.tenants,
        printed.link_bps as f64 / 1e6,
        t.text(),
        late * 100.0
    )
}

impl FabricArgs {
    fn main(self, global: Global) -> Result<(), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        let variants = loaded.expand_sweep()?;
        let variant = variants.get(self.number).ok_or_else(|| Failure::Input("there is no such variant".into()))?;
        let plan = Plan::new(&variant.scenario)?;
        let mut spec = fabric::spec(&plan.scenario, &plan.stations())?;
        // In slow motion pauses are longer, and so is what makes one suspect.
        let slowdown = variant.scenario.testbed.slowdown;
        for edge in &mut spec.edges {
            for time in [&mut edge.config.detection_time, &mut edge.config.restoration_time] {
                *time = time.saturating_mul(slowdown);
            }
        }
        let fabric = Fabric::new(&spec).map_err(Failure::input)?;
        let inside = Namespace::open(&plan.fabric).map_err(|e| Failure::Failed(e.to_string()))?;
        let devices: Result<Vec<_>, _> =
            plan.servers.iter().map(|s| PacketDevice::open(&inside, &s.edge, EDGE_BUFFERS)).collect();
        let mut runner = Runner::new(fabric, devices.map_err(|e| Failure::Failed(e.to_string()))?);
        output::note("fabric runs");
        runner.run(interrupt::flag()).map_err(failed)?;
        let figures = FabricFigures::of(&runner.report());
        if global.json {
            output::json(&figures);
        }
        Ok(())
    }
}

/// Frames that an edge's device has room for in each direction.
const EDGE_BUFFERS: u32 = 8192;

impl Iperf {
    fn main(self, global: Global) -> Result<(), Failure> {
        let tenants = Live::find().and_then(|live| live.tenants()).map_err(failed)?;
        let namespace = |name: &str| {
            let full = if name.starts_with(PREFIX) { name.to_owned() } else { format!("{PREFIX}{name}") };
            if !tenants.contains(&full) {
                let some: Vec<&str> = tenants.iter().take(4).filter_map(|t| t.strip_prefix(PREFIX)).collect();
                let more = if tenants.len() > some.len() { ", ..." } else { "" };
                return Err(Failure::Input(format!("no tenant {name}; there are {}{more}", some.join(", "))));
            }
            Namespace::open(&full).map_err(|e| Failure::Input(e.to_string()))
        };
        let (from, to) = (namespace(&self.from)?, namespace(&self.to)?);
        let io = |e: sluicenet_dataplane::kernel::KernelError| Failure::Failed(e.to_string());
        let missing = |e: std::io::Error| Failure::Failed(format!("iperf3: {e}; it is in the package iperf3"));
        let address = to
            .enter(|| Command::new("ip").args(["-4", "-o", "addr", "show", "dev", "eth0"]).output())
            .map_err(io)?
            .map_err(|e| Failure::Failed(format!("ip: {e}")))?;
        let address = String::from_utf8_lossy(&address.stdout);
        let address = address.split_whitespace().nth(3).and_then(|a| a.split('/').next()).unwrap_or("").to_owned();
        let mut server = Command::new("iperf3");
        server.args(["-s", "-1"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Program::spawn(server, Some(&to)).map_err(missing)?;
        let mut words = vec!["-c".to_owned(), address, "-t".into(), self.seconds.to_string()];
        if self.udp {
            words.extend(["-u".into(), "-b".into(), "0".into()]);
        }
        if global.json {
            words.push("-J".into());
        }
        // The server needs a moment before it listens: who comes too early is told so, and comes again.
        let until = Instant::now() + Duration::from_secs(5);
        let output = loop {
            let output = from
                .enter(|| Command::new("iperf3").args(&words).stdin(Stdio::null()).output())
                .map_err(io)?
                .map_err(missing)?;
            if output.status.success() || Instant::now() > until {
                break output;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        drop(server);
        output::print(&String::from_utf8_lossy(&output.stdout));
        if !output.status.success() {
            return Err(Failure::Failed(format!("iperf3: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        Ok(())
    }
}

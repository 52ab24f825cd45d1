//! `validate`: a scenario read, built and looked over, but not run.

use super::cells::cores;
use super::estimate::{Expected, RUN, UNKNOWN, of_runs};
use super::failure::Failure;
use super::table::{Table, count, counted};
use super::{Global, Overrides, output};
use serde::Serialize;
use sluicenet_experiment::build::{self, Demand, LinkKind};
use sluicenet_experiment::run::{load, topology_file};
use sluicenet_scenario::{self as scenario, Loaded, Routing, Scenario, Topology, Warning, Workload};
use sluicenet_sim::Engine;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Validate {
    /// The scenario
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
}

/// Findings about a scenario.
#[derive(Serialize)]
struct Findings {
    file: String,
    scenario: String,
    variants: usize,
    /// The combinations of a sweep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cells: Vec<Variant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topology_file: Option<String>,
    hosts: u32,
    external_hosts: u32,
    virtual_machines: u32,
    switches: u32,
    links: u64,
    flow_control: String,
    lossless_priorities: Vec<u8>,
    paths: String,
    links_by_kind: Vec<LinkKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_bytes: Option<u64>,
    buffer_cycle: &'static str,
    /// Memory that the world takes before its first frame.
    world_bytes: u64,
    /// Memory of the rows of all ports at the end of a recorded run.
    rows_bytes: u64,
    window_ns: f64,
    workloads: Vec<&'static str>,
    /// Those of workloads that have one, with the bytes that they count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    loads: Vec<String>,
    /// The expected work and time of its base, with records; none where the scenario does not bound it.
    expected: Option<Expected>,
    /// Those of all variants of a sweep, of which as many run at a time as there are cores; without those that are not bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_sweep: Option<Expected>,
    /// Variants that the scenario does not bound.
    #[serde(skip)]
    unknown: usize,
    warnings: Vec<String>,
}

/// One combination of a sweep.
#[derive(Serialize)]
struct Variant {
    label: String,
    folder: String,
    hosts: u32,
    switches: u32,
    flow_control: String,
    routing: &'static str,
    /// Those that the base does not have.
    warnings: Vec<String>,
}

impl Variant {
    fn of(variant: &scenario::Variant, of_network: &[Warning]) -> Variant {
        let s = &variant.scenario;
        let counts = s.topology.counts();
        Variant {
            label: variant.label.clone(),
            folder: variant.folder.clone(),
            hosts: counts.hosts,
            switches: counts.switches,
            flow_control: s.flow_control().name().to_owned(),
            routing: s.topology.routing.name(),
            warnings: variant.warnings.iter().chain(of_network).map(Warning::to_string).collect(),
        }
    }
}

impl Validate {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        let findings = self.findings(&loaded).map_err(|e| e.after(loaded.warnings.clone()))?;
        if global.json {
            output::json(&findings);
        } else {
            if !global.quiet {
                findings.warnings.iter().for_each(|w| output::note(w));
                for cell in &findings.cells {
                    cell.warnings.iter().for_each(|w| output::note(&format!("{}: {w}", cell.label)));
                }
            }
            output::print(&findings.text());
        }
        Ok(())
    }

    fn findings(&self, loaded: &Loaded) -> scenario::Result<Findings> {
        let variants = loaded.expand_sweep()?;
        let s = &loaded.scenario;
        build::check_memory(s, Demand::LEAST)?;
        let kinds = build::link_kinds(s)?;
        // Every variant has to be buildable, not the base alone.
        let mut cells = Vec::new();
        for v in variants.iter().filter(|v| !v.label.is_empty()) {
            let outline = build::outline(&v.scenario).map_err(|e| e.in_variant(&v.label))?;
            cells.push(Variant::of(v, &outline.warnings));
        }
        let built = build::build(s)?;
        let expected = Expected::of(s, 1, true);
        let (mut expected_sweep, mut unknown) = (None, 0);
        if variants.len() > 1 {
            (expected_sweep, unknown) = Expected::of_all(variants.iter().map(|v| &v.scenario), cores());
        }
        let (is_tree, counts) = (built.plan.tree().is_some(), s.topology.counts());
        let mut warnings: Vec<&Warning> = loaded.warnings.iter().chain(&built.warnings).collect();
        warnings.extend(variants.iter().flat_map(|v| &v.warnings).filter(|w| !loaded.warnings.contains(w)));
        let mut warnings: Vec<String> = warnings.into_iter().map(Warning::to_string).collect();
        warnings.extend(expected.as_ref().and_then(|e| e.warning(RUN)));
        let of_sweep = |e: &Expected| e.warning(&of_runs(variants.len(), cores()));
        warnings.extend(expected_sweep.as_ref().and_then(of_sweep));
        let cycle = match (s.pfc.enabled, is_tree) {
            (false, _) => "none possible: no lossless class",
            (true, true) => "none: up and then down a tree",
            (true, false) if warnings.iter().any(|w| w.contains("can deadlock")) => "found: see the warning",
            (true, false) => "none: all routes checked",
        };
        let engine = Engine::new(built.world, &[], 1).map_err(|e| build::refused(s, &e))?;
        let loads = s.workloads.iter().filter_map(|w| if let Workload::Poisson(w) = w { Some(load(w)) } else { None });
        let mut findings = Findings {
            file: self.file.display().to_string(),
            scenario: s.name.clone(),
            variants: variants.len(),
            cells,
            topology_file: topology_file(s),
            hosts: counts.hosts,
            external_hosts: counts.external,
            virtual_machines: if s.server.virtual_network { counts.hosts * s.server.vms } else { 0 },
            switches: counts.switches,
            links: kinds.iter().map(|k| k.directions).sum::<u64>() / 2,
            flow_control: s.flow_control().name().to_owned(),
            lossless_priorities: (0..8).filter(|p| s.pfc.enabled && s.pfc.lossless >> p & 1 == 1).collect(),
            paths: paths(&s.topology),
            links_by_kind: kinds,
            memory_bytes: s.buffer.size.map(|size| size.as_bytes()),
            shared_bytes: s.buffer.shared.map(|size| size.as_bytes()),
            buffer_cycle: cycle,
            world_bytes: build::needed_bytes(s),
            rows_bytes: build::rows_bytes(s),
            window_ns: engine.window().as_ps() as f64 / 1e3,
            workloads: s.workloads.iter().map(|w| w.kind()).collect(),
            loads: loads.collect(),
            expected,
            expected_sweep,
            unknown,
            warnings,
        };
        findings.cells.iter_mut().for_each(|cell| cell.warnings.retain(|w| !findings.warnings.contains(w)));
        Ok(findings)
    }
}

/// How frames choose among paths, and how many runs show it.
fn paths(topology: &Topology) -> String {
    let name = topology.routing.name();
    match topology.routing {
        Routing::Hash | Routing::HashDestination if topology.has_a_choice() => {
            format!(
                "{name}: they depend on the seed; several seeds show the spread (--set 'sweep.scenario.seed=[1,2,3,4,5]')"
            )
        }
        _ => name.to_owned(),
    }
}

impl Findings {
    /// A line for each combination of a sweep.
    fn sweep_text(&self) -> String {
        if self.cells.is_empty() {
            return String::new();
        }
        let mut t = Table::new(3, ["run of the sweep", "flow control", "routing", "hosts", "switches", "warnings"]);
        for cell in &self.cells {
            t.row([
                cell.label.clone(),
                cell.flow_control.clone(),
                cell.routing.to_owned(),
                count(cell.hosts.into()),
                count(cell.switches.into()),
                count(cell.warnings.len() as u64),
            ]);
        }
        format!("\n{}", t.text())
    }

    fn text(&self) -> String {
        let mut t = Table::new(2, ["", ""]);
        let external = match self.external_hosts {
            0 => String::new(),
            n => format!(" and {n} external"),
        };
        let vms = match self.virtual_machines {
            0 => String::new(),
            n => format!(", {} virtual machines", count(n.into())),
        };
        if let Some(file) = &self.topology_file {
            t.row(["topology", file]);
        }
        t.row(["hosts", &format!("{}{external}{vms}", count(self.hosts.into()))]);
        t.row(["switches", &count(self.switches.into())]);
        t.row(["links", &count(self.links)]);
        t.row(["flow control", &self.flow_control]);
        let classes = match self.lossless_priorities.len() {
            0 => "none".into(),
            8 => "all eight priorities".into(),
            _ => format!("priorities {:?}", self.lossless_priorities),
        };
        t.row(["lossless classes", &classes]);
        t.row(["paths", &self.paths]);
        t.row(["buffer cycles", self.buffer_cycle]);
        t.row(["window", &format!("{} ns: what threads simulate between two meetings", self.window_ns)]);
        let rows = match self.rows_bytes {
            // What fits into any machine beside its network needs no words.
            rows if rows < self.world_bytes / 10 => String::new(),
            rows => format!(", {} with the rows of all ports (-o)", build::rounded_bytes(self.world_bytes + rows)),
        };
        t.row(["memory", &format!("{} before the first frame{rows}", build::rounded_bytes(self.world_bytes))]);
        t.row(["workloads", &self.workloads.join(", ")]);
        if !self.loads.is_empty() {
            t.row(["load", &self.loads.join(", ")]);
        }
        let takes = |expected: &Option<Expected>| expected.as_ref().map_or_else(|| UNKNOWN.into(), Expected::text);
        if self.variants > 1 {
            t.row(["its base takes", &takes(&self.expected)]);
            let variants = counted(self.variants as u64, "variant", "variants");
            let unknown = match self.unknown {
                0 => String::new(),
                n if n == self.variants => String::new(),
                n => format!("; {n} of them take a time that is unknown"),
            };
            let at_a_time = cores().min(self.variants);
            t.row(["sweep", &format!("{variants}, {at_a_time} at a time: {}{unknown}", takes(&self.expected_sweep))]);
        } else {
            t.row(["takes", &takes(&self.expected)]);
        }
        let mut k = Table::new(1, ["link", "number", "Gb/s", "delay ns", "XOFF", "headroom", "buffer a priority"]);
        for l in &self.links_by_kind {
            let bytes = |b: Option<u64>| b.map_or("-".into(), |b| format!("{} B", count(b)));
            k.row([
                l.name.clone(),
                count(l.directions / if l.both { 2 } else { 1 }),
                l.gbps.to_string(),
                l.delay_ns.to_string(),
                bytes(l.xoff_bytes),
                bytes(l.headroom_bytes),
                bytes(l.xoff_bytes.zip(l.headroom_bytes).map(|(x, h)| x + h)),
            ]);
        }
        // Else a reader looks for pfc.xoff and finds another number.
        let mut source = String::new();
        if let Some(memory) = self.memory_bytes.or(self.shared_bytes) {
            let shared = if self.memory_bytes.is_some() { "" } else { "shared " };
            source = format!(
                "\n  Switches have {} B of {shared}memory each for all ports ([buffer]): a pause depends on the free bytes. Links to a host\n  \
                 pause by the receive buffer of its adapter (adapter.buffer).\n",
                count(memory)
            );
        } else if self.links_by_kind.iter().any(|l| l.xoff_bytes.is_some() && l.name.ends_with("to host")) {
            source = "\n  XOFF of links to a switch is pfc.xoff. That of links to a host is the receive buffer of its adapter\n  \
                      (adapter.buffer), which pauses the switch when the host does not take its frames.\n"
                .into();
        }
        let verdict = match self.warnings.len() + self.cells.iter().map(|cell| cell.warnings.len()).sum::<usize>() {
            0 => "valid".to_string(),
            n => format!("valid, with {}", counted(n as u64, "warning", "warnings")),
        };
        format!("\n  {}: {verdict}\n\n{}\n{}{source}{}", self.scenario, t.text(), k.text(), self.sweep_text())
    }
}

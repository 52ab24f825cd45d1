//! Variants of a scenario, one after the other on a testbed.

use super::{failed, if_loud};
use crate::cli::failure::Failure;
use crate::cli::{Global, Overrides, interrupt, output};
use crate::scenario::{Loaded, Scenario};
use crate::testbed::live::Progress;
use crate::testbed::{Application, Origin, Plan};
use serde::Serialize;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A variant, and where it comes from.
pub struct OnTestbed {
    pub label: String,
    pub plan: Plan,
    pub origin: Origin,
}

/// All variants of a scenario, or what they are made from alone.
pub fn cells(file: &Path, loaded: &Loaded, all: bool) -> Result<Vec<OnTestbed>, Failure> {
    if !all {
        let plan = Plan::new(&loaded.scenario)?;
        return Ok(vec![OnTestbed { label: String::new(), plan, origin: Origin::new(file, loaded, None) }]);
    }
    let variants = loaded.expand_sweep()?;
    let one = |(i, v): (usize, &crate::scenario::Variant)| {
        Ok(OnTestbed {
            label: v.label.clone(),
            plan: Plan::new(&v.scenario)?,
            origin: Origin::new(file, loaded, Some(i)),
        })
    };
    variants.iter().enumerate().map(one).collect()
}

/// What `pa` and `flows` are told.
#[derive(Debug, clap::Args)]
pub struct Told {
    /// The scenario
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Simulate every variant, too, and print that beside
    #[arg(long)]
    simulate: bool,
}

impl Told {
    /// All variants, and whether they are simulated, too.
    pub fn variants(self) -> Result<(Vec<OnTestbed>, bool), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        Ok((cells(&self.file, &loaded, true)?, self.simulate))
    }
}

/// What `pa` and `flows` print.
#[derive(Serialize)]
pub struct Printed<C> {
    pub scenario: String,
    pub servers: usize,
    pub tenants: usize,
    /// Whether tenants are guests.
    pub guests: bool,
    pub link_bps: u64,
    pub cells: Vec<C>,
}

/// Measures variants one after the other, until somebody wants to stop, and prints what they came to.
pub fn measure<C: Serialize>(
    variants: &[OnTestbed],
    application: Application,
    global: Global,
    mut measure: impl FnMut(&OnTestbed, Progress<'_>) -> io::Result<C>,
    table: impl FnOnce(&Printed<C>) -> String,
) -> Result<Vec<C>, Failure> {
    if let Some(other) = variants.iter().find(|v| v.plan.application != application) {
        let (what, with) = match application {
            Application::Queries => ("flows without an end, and no queries", "flows"),
            Application::Flows => ("queries, and no flows without an end", "pa"),
        };
        let name = &other.plan.scenario.name;
        return Err(Failure::Input(format!("{name}: it has {what}: `sluicenet testbed {with}` runs it")));
    }
    let say = |what: &str| if_loud(global, what);
    let mut done = Vec::new();
    for (i, variant) in variants.iter().enumerate() {
        let label = if variant.label.is_empty() { &variant.plan.scenario.name } else { &variant.label };
        say(&format!("{} of {}: {label}", i + 1, variants.len()));
        match measure(variant, Progress { say: &say, stop: interrupt::flag() }) {
            Err(e) if e.kind() == ErrorKind::Interrupted => break,
            cell => done.push(cell.map_err(failed)?),
        }
        if interrupt::raised() {
            break;
        }
    }
    let (Some(first), false) = (variants.first(), done.is_empty()) else {
        return Err(Failure::Interrupted("nothing was measured".into()));
    };
    let plan = &first.plan;
    let printed = Printed {
        scenario: plan.scenario.name.clone(),
        servers: plan.servers.len(),
        tenants: plan.machines().count(),
        guests: plan.has_guests(),
        link_bps: plan.servers.first().map_or(0, |s| s.rate.as_bps()),
        cells: done,
    };
    if global.json {
        output::json(&printed);
    } else {
        output::print(&table(&printed));
    }
    Ok(printed.cells)
}

/// Fails when it was stopped, or something was lost where nothing may be: by flow control, frames lost.
pub fn verdict<'a>(lost: impl Iterator<Item = (&'a str, u64)>) -> Result<(), Failure> {
    if interrupt::raised() {
        return Err(Failure::Interrupted("the figures are of the part that was run".into()));
    }
    match lost.filter(|(flow_control, _)| *flow_control == "ZZ").map(|(_, lost)| lost).sum() {
        0u64 => Ok(()),
        lost => Err(Failure::Failed(format!("{lost} frames were lost where none may be (ZZ)"))),
    }
}

//! Variants of a scenario, one after the other on a testbed.

use super::{failed, if_loud};
use crate::failure::Failure;
use crate::{Global, Overrides, interrupt, output};
use serde::Serialize;
use sluicenet_scenario::{Loaded, Scenario, Warning};
use sluicenet_testbed::live::Progress;
use sluicenet_testbed::measure::{FabricFigures, LATE_MOST};
use sluicenet_testbed::{Application, Origin, Plan};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A variant, and where it comes from.
pub struct OnTestbed {
    pub label: String,
    /// Whether it runs alone (`run`): then its figures are at the top level of the JSON output, as the simulator's are.
    pub alone: bool,
    pub plan: Plan,
    pub origin: Origin,
}

/// All variants of a scenario, or its base alone.
pub fn cells(file: &Path, loaded: &Loaded, all: bool) -> Result<Vec<OnTestbed>, Failure> {
    if !all {
        let plan = Plan::new(&loaded.scenario)?;
        return Ok(vec![OnTestbed {
            label: String::new(),
            alone: true,
            plan,
            origin: Origin::new(file, loaded, None),
        }]);
    }
    let variants = loaded.expand_sweep()?;
    let one = |(i, v): (usize, &sluicenet_scenario::Variant)| {
        Ok(OnTestbed {
            label: v.label.clone(),
            alone: false,
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
    /// Also simulate every variant, and print both
    #[arg(long)]
    simulate: bool,
}

impl Told {
    /// All variants, and whether they are also simulated.
    pub fn variants(self) -> Result<(Vec<OnTestbed>, bool), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        Ok((cells(&self.file, &loaded, true)?, self.simulate))
    }
}

/// Output of `pa` and `flows`.
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

/// Output of `run` for its one cell.
struct Alone<'a, C> {
    of: &'a Printed<C>,
    one: &'a C,
}

impl<C: Serialize> Serialize for Alone<'_, C> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a, C> {
            scenario: &'a str,
            servers: usize,
            tenants: usize,
            guests: bool,
            link_bps: u64,
            #[serde(flatten)]
            one: &'a C,
        }
        let Printed { scenario, servers, tenants, guests, link_bps, .. } = self.of;
        let (servers, tenants, guests, link_bps) = (*servers, *tenants, *guests, *link_bps);
        Flat { scenario, servers, tenants, guests, link_bps, one: self.one }.serialize(serializer)
    }
}

/// Warns of settings of the scenario that real machines do not have, once each.
pub fn warn<'a>(plans: impl Iterator<Item = &'a Plan>, global: Global) {
    let mut said: Vec<&Warning> = Vec::new();
    for warning in plans.flat_map(|plan| &plan.warnings) {
        if !said.contains(&warning) {
            if_loud(global, &warning.to_string());
            said.push(warning);
        }
    }
}

/// Measures variants one after the other until an interrupt, and prints their results.
pub fn measure<C: Serialize>(
    variants: &[OnTestbed],
    application: Application,
    global: Global,
    measure: impl FnMut(&OnTestbed, Progress<'_>) -> io::Result<C>,
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
    warn(variants.iter().map(|v| &v.plan), global);
    let name = |v: &OnTestbed| if v.label.is_empty() { v.plan.scenario.name.clone() } else { v.label.clone() };
    let done = one_by_one(variants, name, global, measure)?;
    let plan = &variants[0].plan;
    let printed = Printed {
        scenario: plan.scenario.name.clone(),
        servers: plan.servers.len(),
        tenants: plan.machines().count(),
        guests: plan.has_guests(),
        link_bps: plan.servers.first().map_or(0, |s| s.rate.as_bps()),
        cells: done,
    };
    match &printed.cells[..] {
        [one] if global.json && variants[0].alone => output::json(&Alone { of: &printed, one }),
        _ if global.json => output::json(&printed),
        _ => output::print(&table(&printed)),
    }
    Ok(printed.cells)
}

/// Measures variants one after the other until an interrupt, and says which one it is at. There is at least one result.
pub fn one_by_one<V, C>(
    variants: &[V],
    name: impl Fn(&V) -> String,
    global: Global,
    mut measure: impl FnMut(&V, Progress<'_>) -> io::Result<C>,
) -> Result<Vec<C>, Failure> {
    let say = |what: &str| if_loud(global, what);
    let mut done = Vec::new();
    for (i, variant) in variants.iter().enumerate() {
        say(&format!("{} of {}: {}", i + 1, variants.len(), name(variant)));
        match measure(variant, Progress { say: &say, stop: interrupt::flag() }) {
            Err(e) if e.kind() == ErrorKind::Interrupted => break,
            cell => done.push(cell.map_err(failed)?),
        }
        if interrupt::raised() {
            break;
        }
    }
    if done.is_empty() {
        return Err(Failure::Interrupted("nothing was measured; the testbed is removed".into()));
    }
    Ok(done)
}

/// The error of a command that was interrupted after it had measured something.
pub fn interrupted() -> Result<(), Failure> {
    match interrupt::raised() {
        true => Err(Failure::Interrupted("the figures are of the part that was run".into())),
        false => Ok(()),
    }
}

/// Text below a table: the largest share of the fabric's events that were late. Cells whose figures are not those of
/// the network follow, by name and figure.
pub fn lateness<'a>(cells: impl Iterator<Item = (&'a str, &'a str, &'a FabricFigures)> + Clone) -> String {
    let most = cells.clone().map(|(.., fabric)| fabric.late_share).fold(0.0, f64::max);
    let mut said =
        format!("  at most {:.2} % of the fabric's events were later than the time of a frame\n", most * 100.0);
    for (name, stack, fabric) in cells.filter(|(.., fabric)| fabric.is_late()) {
        said += &format!(
            "  {name} ({stack}): {:.1} % were, more than {:.0} %: THESE ARE THE MACHINE'S FIGURES AND NOT THE NETWORK'S; lower \
             rates, a larger testbed.slowdown where there is one, or `chrt -f 10` before the command helps\n",
            fabric.late_share * 100.0,
            LATE_MOST * 100.0
        );
    }
    said
}

/// Fails when it was stopped, or something was lost where nothing may be: by flow control, frames lost.
pub fn verdict<'a>(lost: impl Iterator<Item = (&'a str, u64)>) -> Result<(), Failure> {
    interrupted()?;
    match lost.filter(|(flow_control, _)| *flow_control == "ZZ").map(|(_, lost)| lost).sum() {
        0u64 => Ok(()),
        lost => Err(Failure::Failed(format!("{lost} frames were lost where none may be (ZZ)"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_late_is_said_of_those_that_did() {
        let fabric = |late_share| FabricFigures { late_share, ..FabricFigures::default() };
        let (quiet, busy) = (fabric(0.049), fabric(0.21));
        let said = lateness([("a", "UDP + PFC", &quiet), ("b", "TCP + zFabric", &busy)].into_iter());
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said}");
        assert!(lines[0].contains("at most 21.00 %"), "{said}");
        assert!(
            lines[1].contains("b (TCP + zFabric): 21.0 % were") && lines[1].contains("MACHINE'S FIGURES"),
            "{said}"
        );
    }
}

//! Variants of a scenario, one after the other on a testbed.

use super::{failed, if_loud};
use crate::cli::failure::Failure;
use crate::cli::{Global, interrupt};
use crate::scenario::Loaded;
use crate::testbed::live::Progress;
use crate::testbed::{Application, Origin, Plan};
use std::io::{self, ErrorKind};
use std::path::Path;

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

/// Measures one after the other, until somebody wants to stop.
pub fn measured<T>(
    variants: &[OnTestbed],
    application: Application,
    global: Global,
    mut measure: impl FnMut(&OnTestbed, Progress<'_>) -> io::Result<T>,
) -> Result<Vec<T>, Failure> {
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
    if done.is_empty() { Err(Failure::Interrupted("nothing was measured".into())) } else { Ok(done) }
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

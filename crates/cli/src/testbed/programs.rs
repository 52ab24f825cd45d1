//! The programs of a testbed, which `up` and `pa` start on this machine and in its guests.

use super::failed;
use crate::failure::Failure;
use crate::{Global, Overrides, interrupt, output};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use sluicenet_dataplane::fabric::{self, Runner};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::{PacketDevice, Pieces};
use sluicenet_scenario::Scenario;
use sluicenet_testbed::Plan;
use sluicenet_testbed::files::TestbedDir;
use sluicenet_testbed::guest::GUEST_DEVICE;
use sluicenet_testbed::guest::supervisor;
use sluicenet_testbed::measure::FabricFigures;
use sluicenet_testbed::pa::{self, Cues};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which variant of which scenario.
#[derive(Debug, clap::Args)]
struct Of {
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// The number of the variant; default the base of all variants
    #[arg(long)]
    number: Option<usize>,
}

impl Of {
    fn plan(&self) -> Result<Plan, Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        let Some(number) = self.number else { return Ok(Plan::new(&loaded.scenario)?) };
        let variants = loaded.expand_sweep()?;
        let variant = variants.get(number).ok_or_else(|| Failure::Input("there is no such variant".into()))?;
        Ok(Plan::new(&variant.scenario)?)
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Fabric {
    #[command(flatten)]
    of: Of,
}

impl Fabric {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let plan = self.of.plan()?;
        let mut spec = sluicenet_testbed::fabric::spec(&plan.scenario, &plan.stations())?;
        for edge in &mut spec.edges {
            [edge.config.detection_time, edge.config.restoration_time] = plan.watchdog;
        }
        let fabric = fabric::Fabric::new(&spec).map_err(Failure::input)?;
        let inside = Namespace::open(&plan.fabric).map_err(|e| Failure::Failed(e.to_string()))?;
        let edge = |name| PacketDevice::open_for(&inside, name, EDGE_BUFFERS, Pieces::Runs { sends: true });
        let devices: Result<Vec<_>, _> = plan.servers.iter().map(|s| edge(&s.edge)).collect();
        let mut runner = Runner::new(fabric, devices.map_err(|e| Failure::Failed(e.to_string()))?);
        // A word on the way interrupts it for a moment.
        let (wake, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let stop = Arc::new(AtomicBool::new(false));
        let signals = [(SIGTERM, &stop), (SIGINT, &stop), (SIGUSR1, &asked)];
        for (signal, flag) in signals {
            for flag in [flag, &wake] {
                signal_hook::flag::register(signal, flag.clone()).map_err(failed)?;
            }
        }
        output::note("fabric runs");
        let dir = TestbedDir::of_the_machine();
        while !stop.load(Ordering::SeqCst) {
            runner.run(&wake).map_err(failed)?;
            wake.store(false, Ordering::SeqCst);
            if asked.swap(false, Ordering::SeqCst) {
                let figures = FabricFigures::of(&runner.report());
                let text = serde_json::to_string(&figures).map_err(|e| Failure::Failed(e.to_string()))?;
                // Whole, or not there.
                let (file, new) = (dir.fabric_now(), dir.folder().join("fabric-now.new"));
                std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &file)).map_err(failed)?;
            }
        }
        let figures = FabricFigures::of(&runner.report());
        if global.json {
            output::json(&figures);
        }
        Ok(())
    }
}

/// Frames that an edge's device has room for in each direction.
const EDGE_BUFFERS: u32 = 8192;

#[derive(Debug, clap::Args)]
pub(super) struct Guests {
    #[command(flatten)]
    of: Of,
}

impl Guests {
    pub fn main(self) -> Result<(), Failure> {
        let plan = self.of.plan()?;
        let held = supervisor::run(&plan, &TestbedDir::of_the_machine(), &output::note, interrupt::flag());
        // A line, for the log.
        held.map_err(|e| Failure::Failed(e.to_string().replace(['\r', '\n'], " ")))
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Part {
    #[command(flatten)]
    of: Of,
    /// The server
    #[arg(long)]
    server: u32,
    /// The number of this VM on it
    #[arg(long)]
    vm: u8,
    /// The folder by which the parts synchronise
    #[arg(long)]
    cues: PathBuf,
}

impl Part {
    pub fn main(self) -> Result<(), Failure> {
        let plan = self.of.plan()?;
        let cues = Cues::new(&self.cues, GUEST_DEVICE);
        let part = pa::run_part(&plan.scenario, &pa::endpoints(&plan), (self.server, self.vm), &cues);
        part.map(drop).map_err(|e| Failure::Failed(e.to_string()))
    }
}

/// Prints the drops of this machine's kernel as an object.
pub(super) fn edges() -> Result<(), Failure> {
    output::json(&pa::own_edges(GUEST_DEVICE).map_err(|e| Failure::Failed(e.to_string()))?);
    Ok(())
}

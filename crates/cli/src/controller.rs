//! `controller`: the program that says which machine of an overlay is on which server.

use super::failure::Failure;
use super::table::{Table, count};
use super::{Global, interrupt, output};
use serde::Serialize;
use sluicenet_vswitchd::controller::ControllerFile;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Controller {
    /// The controller's configuration file, TOML
    file: PathBuf,
    /// Check the file only
    #[arg(long)]
    check: bool,
}

/// Counts of the controller's work.
#[derive(Serialize)]
struct Did {
    stations: usize,
    known: u64,
    unknown: u64,
    registered: u64,
    moved: u64,
    refused: u64,
    unsent: u64,
}

impl Controller {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let file = ControllerFile::load(&self.file)?;
        if self.check {
            return Ok(());
        }
        let mut daemon = file.open().map_err(|e| Failure::Failed(e.to_string()))?;
        if !global.quiet {
            let address = daemon.address().map_err(|e| Failure::Failed(e.to_string()))?;
            output::note(&format!("controller runs at {address}"));
        }
        daemon.run(interrupt::flag()).map_err(|e| Failure::Failed(e.to_string()))?;
        let stations = daemon.stations();
        let (c, unsent) = daemon.counters();
        let did = Did {
            stations,
            known: c.known,
            unknown: c.unknown,
            registered: c.registered,
            moved: c.moved,
            refused: c.refused,
            unsent,
        };
        if global.json {
            output::json(&did);
            return Ok(());
        }
        let mut t = Table::new(2, ["", ""]);
        t.row(["machines", &count(did.stations as u64)]);
        t.row(["questions answered", &count(did.known)]);
        t.row(["questions about nobody", &count(did.unknown)]);
        t.row(["registered", &count(did.registered)]);
        t.row(["moved", &count(did.moved)]);
        t.row(["refused", &count(did.refused)]);
        output::print(&t.text());
        Ok(())
    }
}

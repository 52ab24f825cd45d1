//! The compiled half of the Python package: scenarios in, runs done, records summed up, and the fat-trees of a controller.
//!
//! What Python sees is in `sluicenet/`; this crate only crosses the border. Its stub is `sluicenet/_native.pyi`.

mod error;
mod export;
mod fat_tree;
mod records;
mod run;
mod scenario;
mod summary;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::export::{export_hpcc, export_htsim, export_perfetto};
    #[pymodule_export]
    use super::fat_tree::{
        Classifier, Detour, Entry, Failures, FatTree, HierarchicalTree, Peer, Placement, Scheduler, Switch,
        estimate_demands,
    };
    #[pymodule_export]
    use super::records::{
        check_format, diff, is_result, paused_over_time, payload_over_time, report, schema, slowdown_by_size, tables,
    };
    #[pymodule_export]
    use super::run::{Job, Stop, longest_first};
    #[pymodule_export]
    use super::scenario::Scenario;
    #[pymodule_export]
    use super::summary::{Claimed, claim_sweep, summary, sweep_summary, typed};
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

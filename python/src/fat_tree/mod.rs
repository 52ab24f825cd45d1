//! Fat-trees for a controller of real switches.
//!
//! | file | has |
//! |---|---|
//! | `tree` | the k-ary fat-tree: addresses, peers, two-level tables |
//! | `hierarchical` | the tree beside it |
//! | `failures` | what is down, and detours round it |
//! | `classifier` | the flow classifier of one switch |
//! | `scheduler` | who is placed where |
//! | `reserving` | the flow scheduler of 3.1.7, asked by edge switches |
//! | `demand` | what flows would take |

mod classifier;
mod demand;
mod failures;
mod hierarchical;
mod reserving;
mod scheduler;
mod tree;

pub use classifier::Classifier;
pub use demand::estimate_demands;
pub use failures::{Detour, Failures};
pub use hierarchical::HierarchicalTree;
pub use scheduler::{Placement, Scheduler};
pub use tree::{Entry, FatTree, Peer, Switch};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sluicenet_proto::time::{Duration, Instant};

/// Longest time that is counted here, from the caller's beginning: picoseconds are 64 bits.
const SECONDS_MAX: f64 = 1e7;

fn wrong(what: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(what.to_string())
}

fn duration(what: &str, seconds: f64) -> PyResult<Duration> {
    if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
        return Err(wrong(format!("{what} is a number of seconds above 0 and up to {SECONDS_MAX:e}, not {seconds}")));
    }
    Ok(Duration(((seconds * 1e12) as u64).max(1)))
}

fn instant(now: f64) -> PyResult<Instant> {
    if !(0.0..=SECONDS_MAX).contains(&now) {
        return Err(wrong(format!("now is a number of seconds from 0 to {SECONDS_MAX:e}, not {now}")));
    }
    Ok(Instant((now * 1e12) as u64))
}

/// Refuses a flow that is none of two different hosts, of so many.
fn check_ends(hosts: u32, src: u32, dst: u32) -> PyResult<()> {
    if src < hosts && dst < hosts && src != dst {
        return Ok(());
    }
    Err(wrong(format!("no flow goes from host {src} to host {dst}")))
}

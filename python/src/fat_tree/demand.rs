//! What flows would take.

use super::{check_ends, wrong};
use pyo3::prelude::*;
use sluicenet_proto::hedera::LINK;
use sluicenet_proto::hedera::demand::Estimator;
use sluicenet_proto::hedera::tree::HOSTS_MAX;

/// What each flow would take of its hosts' links if nothing but these limited it (Al-Fares 2012, figure 4.4): from 0 to 1.
#[pyfunction]
pub fn estimate_demands(hosts: u32, flows: Vec<(u32, u32)>) -> PyResult<Vec<f64>> {
    if u64::from(hosts) > HOSTS_MAX {
        return Err(wrong(format!("at most {HOSTS_MAX} hosts")));
    }
    flows.iter().try_for_each(|&(src, dst)| check_ends(hosts, src, dst))?;
    let mut estimator = Estimator::new(hosts, 1);
    estimator.estimate(&flows);
    let mut demands = Vec::new();
    estimator.demands(&mut demands);
    Ok(demands.into_iter().map(|demand| f64::from(demand) / f64::from(LINK)).collect())
}

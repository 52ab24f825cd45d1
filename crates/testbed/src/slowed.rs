//! A scenario in slow motion, so that a machine can keep up with it.

use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{BumpApp, DURATION_MAX, Link, Scenario, Shape, Workload};
use std::sync::Arc;

/// Divides every link's rate by `testbed.slowdown`, and multiplies delays of the network and times of workloads by it:
/// the bytes in flight and the load stay the same. So do the rates and times of rate limiters and bumps. Buffers and thresholds
/// stay, and so do TCP's timers, which in a testbed are the kernel's. The result has a slowdown of 1.
pub fn slowed(scenario: &Scenario) -> Scenario {
    let by = scenario.testbed.slowdown;
    let mut s = scenario.clone();
    s.testbed.slowdown = 1;
    let longer = |d: Duration| d.saturating_mul(by).min(DURATION_MAX);
    let link = |l: &mut Link| {
        l.rate = Rate(l.rate.as_bps() / by);
        l.delay = longer(l.delay);
    };
    link(&mut s.topology.link);
    s.topology.levels.iter_mut().for_each(link);
    if let Shape::Hpcc { file } = &mut s.topology.shape {
        let topology = Arc::make_mut(&mut file.content);
        for link in &mut topology.links {
            link.rate = Rate(link.rate.as_bps() / by);
            link.delay = longer(link.delay);
        }
    }
    // A rate of zero would mean a program that never reads, not a slow one.
    s.vswitch.slow.iter_mut().for_each(|slow| slow.rate = Rate((slow.rate.as_bps() / by).max(1)));
    s.vswitch.vm_rate = Rate((s.vswitch.vm_rate.as_bps() / by).max(1));
    let times = [&mut s.switch.delay, &mut s.adapter.delay, &mut s.pfc.response, &mut s.general.warmup];
    if let Some(qcn) = &mut s.qcn {
        qcn.path_timeout = longer(qcn.path_timeout);
        qcn.time_reset = qcn.time_reset.map(longer);
        for rate in [&mut qcn.min_rate, &mut qcn.ai_rate, &mut qcn.hai_rate] {
            *rate = Rate((rate.as_bps() / by).max(1));
        }
    }
    let options = [s.general.duration.as_mut(), s.pfc.peer_response.as_mut()];
    for time in times.into_iter().chain(options.into_iter().flatten()) {
        *time = longer(*time);
    }
    for bump in &mut s.bumps {
        for time in [&mut bump.latency, &mut bump.update_interval, &mut bump.update_delay] {
            *time = longer(*time);
        }
        for app in &mut bump.app {
            match app {
                BumpApp::L4s(app) => (app.minimum, app.range) = (longer(app.minimum), longer(app.range)),
                BumpApp::QcnReactionPoint(app) => {
                    for rate in [&mut app.min_rate, &mut app.ai_rate] {
                        *rate = Rate((rate.as_bps() / by).max(1));
                    }
                }
                // Their thresholds are in bytes.
                BumpApp::Red(_) | BumpApp::Dctcp(_) | BumpApp::QcnCongestionPoint(_) | BumpApp::Program(_) => {}
            }
        }
    }
    for workload in &mut s.workloads {
        match workload {
            Workload::PartitionAggregate(w) => w.inter_arrival = w.inter_arrival.times(by),
            Workload::PartitionAggregate2(w) => w.inter_arrival = w.inter_arrival.as_ref().map(|d| d.times(by)),
            Workload::Background(w) => w.inter_arrival = w.inter_arrival.times(by),
            Workload::Permutation(w) => w.rate = w.rate.map(|rate| Rate((rate.as_bps() / by).max(1))),
            Workload::Flow(w) => {
                w.rate = w.rate.map(|rate| Rate((rate.as_bps() / by).max(1)));
                w.start = longer(w.start);
            }
            // The times of other workloads are in files and phases; a plan refuses these workloads.
            _ => {}
        }
    }
    s
}

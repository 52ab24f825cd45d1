//! Experiment 2: how much a switch carries before it loses. The rate of both senders rises step by step.

use super::load::Load;
use super::{Figures, OverloadError, Rig, Setup, Switch};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// Results over one switch.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// The switch under test.
    pub switch: Switch,
    /// The most that the sink received, in Mb/s.
    pub peak_mbps: f64,
    /// Target rate of both senders together at the peak.
    pub peak_at_mbps: f64,
    /// Rate of the sink at the highest target rate.
    pub last_mbps: f64,
    /// The lowest rate at which something was lost.
    pub first_loss_at_mbps: Option<f64>,
    /// The largest share lost, in percent.
    pub lost_percent_max: f64,
    /// Rate by rate.
    pub points: Vec<Figures>,
}

/// Measures over one switch at each of `rates` (Mb/s of each sender), telling each point when it is there; it ends early when
/// `stop` is raised.
pub fn run(
    setup: &Setup,
    load: &Load,
    rates: &[f64],
    stop: &AtomicBool,
    mut tell: impl FnMut(&Figures),
) -> Result<Curve, OverloadError> {
    let mut rig = Rig::start(setup)?;
    let mut points = Vec::new();
    for &rate in rates {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let figures = rig.measure(&Load { rate: Some(rate), ..*load }, stop)?;
        tell(&figures);
        points.push(figures);
    }
    Ok(Curve::new(setup.switch, points))
}

impl Curve {
    fn new(switch: Switch, points: Vec<Figures>) -> Curve {
        let target = |f: &Figures| f.target_mbps.unwrap_or(0.0);
        let peak = points.iter().max_by(|a, b| a.received_mbps.total_cmp(&b.received_mbps));
        Curve {
            switch,
            peak_mbps: peak.map_or(0.0, |f| f.received_mbps),
            peak_at_mbps: peak.map_or(0.0, target),
            last_mbps: points.last().map_or(0.0, |f| f.received_mbps),
            first_loss_at_mbps: points.iter().find(|f| f.lost > 0).map(target),
            lost_percent_max: points.iter().map(|f| f.lost_percent).fold(0.0, f64::max),
            points,
        }
    }
}

//! `testbed iperf`: iperf3 between two tenants of the testbed that is up, and the losses meanwhile.

use super::failed;
use crate::failure::Failure;
use crate::table::count;
use crate::{Global, output};
use sluicenet_proto::loss::DropReason;
use sluicenet_testbed::PREFIX;
use sluicenet_testbed::iperf::{self, Iperf as Between};
use sluicenet_testbed::live::Live;
use sluicenet_testbed::measure::Lost;

#[derive(Debug, clap::Args)]
pub(super) struct Iperf {
    /// The sender, as s0-t1
    from: String,
    /// The receiver
    to: String,
    /// Duration in seconds
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600))]
    seconds: u16,
    /// UDP at full speed instead of TCP
    #[arg(long)]
    udp: bool,
}

impl Iperf {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let mut live = Live::find().map_err(failed)?;
        let made = live.made().map_err(failed)?;
        let tenants: Vec<&str> = made.tenants().filter(|t| t.kernel).map(|t| t.name.as_str()).collect();
        let whole = |name: &str| {
            let full = if name.starts_with(PREFIX) { name.to_owned() } else { format!("{PREFIX}{name}") };
            if tenants.contains(&full.as_str()) {
                return Ok(full);
            }
            let some: Vec<&str> = tenants.iter().take(4).filter_map(|t| t.strip_prefix(PREFIX)).collect();
            let more = if tenants.len() > some.len() { ", ..." } else { "" };
            Err(Failure::Input(format!("no tenant {name}; there are {}{more}", some.join(", "))))
        };
        let (from, to) = (whole(&self.from)?, whole(&self.to)?);
        let between = Between { from, to, seconds: self.seconds, udp: self.udp, json: global.json };
        let came = iperf::run(&mut live, &between).map_err(failed)?;
        if global.json {
            let mut printed: serde_json::Value =
                serde_json::from_str(&came.text).map_err(|e| Failure::Failed(format!("iperf3's JSON: {e}")))?;
            printed["lost"] = serde_json::to_value(&came.lost).map_err(|e| Failure::Failed(e.to_string()))?;
            output::json(&printed);
        } else {
            output::print(&(came.text + &said(&came.lost)));
        }
        match came.lost.total() {
            lost if lost > 0 && made.lossless => {
                let late = "; `headroom_exceeded` says that this machine was too busy to obey a pause within `testbed.response`";
                let late = if came.lost.by_reason.keys().any(|k| k.contains("headroom_exceeded")) { late } else { "" };
                Err(Failure::Failed(format!("{lost} frames were lost where none may be (ZZ){late}")))
            }
            _ => Ok(()),
        }
    }
}

/// Lines about losses: one for all of them, then one for each place. Drops that are no losses of the network follow.
fn said(lost: &Lost) -> String {
    let all = [("virtual", lost.virtual_network), ("physical", lost.physical_network), ("edges", lost.edges)];
    let all: Vec<String> = all.iter().map(|(name, n)| format!("{name} {}", count(*n))).collect();
    let lines = |places: &[(&String, &u64)]| -> String {
        places.iter().map(|(place, n)| format!("  {place}: {}\n", count(**n))).collect()
    };
    let (losses, others): (Vec<_>, Vec<_>) = lost.by_reason.iter().partition(|(place, _)| is_loss(place));
    let losses: Vec<_> = losses.into_iter().chain(&lost.edges_by_place).collect();
    let mut said = format!("\nframes lost meanwhile: {}\n{}", all.join(", "), lines(&losses));
    if !others.is_empty() {
        said += "dropped for what they are, not for want of room:\n";
        said += &lines(&others);
    }
    if others.iter().any(|(place, _)| place.ends_with(NO_ROUTE)) {
        said += "no_route: broadcasts and multicasts of the tenants' kernels (IPv6 neighbour discovery and the like), which no tunnel carries\n";
    }
    said
}

const NO_ROUTE: &str = DropReason::NoRoute.name();

/// Whether frames at such a place were lost for want of room. Frames lost at bridges were: bridges give no reason.
fn is_loss(place: &str) -> bool {
    let reason = place.rsplit(' ').next().unwrap_or(place);
    DropReason::ALL.iter().find(|r| r.name() == reason).is_none_or(|r| r.is_congestion())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_tunnel_carries_is_no_loss_and_is_explained() {
        let mut lost = Lost { virtual_network: 3, otherwise: 24, ..Lost::default() };
        assert_eq!(said(&lost), "\nframes lost meanwhile: virtual 3, physical 0, edges 0\n");
        lost.by_reason.insert("veth dropped vswitch_vm".into(), 3);
        lost.by_reason.insert("bridge qdisc".into(), 2);
        assert!(!said(&lost).contains("not for want of room"), "{}", said(&lost));
        lost.by_reason.insert("uplink dropped no_route".into(), 24);
        let said = said(&lost);
        let (losses, others) = said.split_once("dropped for what they are, not for want of room:\n").expect("both");
        assert!(losses.contains("veth dropped vswitch_vm: 3\n") && losses.contains("bridge qdisc: 2\n"), "{said}");
        assert!(others.starts_with("  uplink dropped no_route: 24\nno_route: broadcasts and multicasts"), "{said}");
    }
}

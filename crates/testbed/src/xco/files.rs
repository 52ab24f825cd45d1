//! The files of XCo's programs on a testbed, for `sluicenet xco run` and `sluicenet xco agent`.

use super::plan::{Host, Plan};
use crate::files::mac;
use crate::namespaces::{HOST_DEVICE, counted};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::SMALL_PERCENT;
use sluicenet_scenario::Xco;
use std::fmt::Write as _;
use std::path::Path;

/// How often an agent looks at its queues: the shortest and the longest time of its file.
const POLL_MIN: Duration = Duration::from_us(50);
const POLL_MAX: Duration = Duration::from_ms(10);
/// Looks of an agent in a slice that nobody gives back.
const LOOKS: u64 = 10;

fn ps(time: Duration) -> String {
    format!("\"{} ps\"", time.0)
}

fn bps(rate: Rate) -> String {
    format!("\"{} b/s\"", rate.as_bps())
}

/// The file of the controller. Writing to a string cannot fail, here and below.
pub fn controller(plan: &Plan, xco: &Xco, control: &Path) -> String {
    let host = &plan.hosts[xco.controller as usize];
    let mut text = format!(
        "# The controller of a testbed; made by `sluicenet testbed xco`.\n\
         [xco]\ncontrol = \"{}\"\ndevice = \"{HOST_DEVICE}\"\nnetns = \"{}\"\nkind = \"{}\"\nslice = {}\nlease = {}\n\
         on_demand = {}\npriority = {}\n",
        control.display(),
        host.namespace,
        xco.kind.name(),
        ps(xco.slice),
        ps(xco.lease),
        xco.on_demand,
        xco.priority,
    );
    if xco.min_run != Duration(xco.slice.0 / 4) {
        let _ = writeln!(text, "min_run = {}", ps(xco.min_run));
    }
    for weight in &xco.weight {
        let to = weight.to.map_or(String::new(), |to| format!("to = {to}\n"));
        let _ = write!(text, "[[xco.weight]]\nhost = {}\n{to}weight = {}\n", weight.host, weight.weight);
    }
    let hosts = plan.hosts.len();
    let _ = write!(text, "[topology]\nkind = \"links\"\nhosts = {hosts}\nswitches = {}\n", plan.switches);
    // A host without an agent has no slices. It may have a faster link than the others: timeslices need not fit it.
    let fastest = plan.agents().map(|(_, host)| host.rate).max();
    for &(a, b, rate) in &plan.links {
        // Hosts come first: of a host and its switch, `a` is the host.
        let is_idle = (a as usize) < hosts && !plan.has_agent(a);
        let rate = if is_idle { fastest.map_or(rate, |fastest| rate.min(fastest)) } else { rate };
        let _ = write!(text, "[[topology.link]]\na = {a}\nb = {b}\nrate = {}\n", bps(counted(&plan.scenario, rate)));
    }
    for (number, host) in plan.hosts.iter().enumerate() {
        let _ = write!(text, "[[host]]\nhost = {number}\nmac = \"{}\"\n", mac(host.mac));
    }
    text
}

/// The file of a host's agent.
pub fn agent(plan: &Plan, xco: &Xco, (number, host): (HostId, &Host), control: &Path) -> String {
    let rate = counted(&plan.scenario, host.rate);
    let small = xco.small_flow.unwrap_or(Rate(rate.as_bps() * SMALL_PERCENT / 100));
    let poll = xco.hysteresis.unwrap_or(Duration(xco.slice.0 / LOOKS)).clamp(POLL_MIN, POLL_MAX);
    let hysteresis = xco.hysteresis.map_or("\"off\"".into(), |time| ps(time.max(poll)));
    let mut text = format!(
        "# The agent of a host of a testbed; made by `sluicenet testbed xco`.\n\
         [xco]\ncontrol = \"{}\"\ndevice = \"{HOST_DEVICE}\"\nnetns = \"{}\"\nhost = {number}\nrate = {}\ncontroller = \"{}\"\n\
         lease = {}\nsmall_flow = {}\npriority = {}\npoll = {}\nhysteresis = {hysteresis}\n",
        control.display(),
        host.namespace,
        bps(rate),
        mac(plan.hosts[xco.controller as usize].mac),
        ps(xco.lease),
        bps(small),
        xco.priority,
        ps(poll),
    );
    for &peer in &host.peers {
        let address = plan.hosts[peer as usize].address;
        let _ = write!(text, "[[host]]\nhost = {peer}\naddresses = [\"{address}\"]\n");
    }
    text
}

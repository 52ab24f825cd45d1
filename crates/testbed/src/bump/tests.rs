//! Plans without a network: where links are cut, and what is refused.

use super::config::text;
use super::network::Names;
use super::{Bump, Plan};
use sluicenet_dataplane::fabric::{Departure, Fabric, Outside};
use sluicenet_node::link::NodeId;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Result, Scenario};
use sluicenet_testkit::Dir;
use sluicenet_vswitchd::bump::Config;
use sluicenet_wire::ethernet::MacAddress;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/alfares2012");
const TWO_RACKS: &str = r#"
[scenario]
name = "two"
duration = "1 s"
[topology]
kind = "hpcc"
file = "two-racks.txt"
[switch]
buffer = "100 KB"
[[bump]]
links = ["switch 0 port 12"]
buffer = "100 KB"
app = [{ kind = "qcn-reaction-point", only = { source = [1, 5], protocol = "udp" } }]
[[bump]]
links = ["switch 0 port 12"]
buffer = "100 KB"
app = [{ kind = "qcn-congestion-point" }, { kind = "red", max_probability = 0.01 }]
[[workload]]
kind = "flow"
src = 0
dst = 12
start = "10 ms"
[testbed]
slowdown = 20
"#;

fn plan(text: &str) -> Result<Plan> {
    static PLANS: AtomicU32 = AtomicU32::new(0);
    let folder = Dir::new(&format!("bumps-{}", PLANS.fetch_add(1, Ordering::Relaxed)));
    let file = folder.0.join("t.toml");
    std::fs::write(&file, text.replace("two-racks.txt", &format!("{SCENARIOS}/two-racks.txt"))).unwrap();
    Plan::new(&Scenario::load(&file)?.scenario)
}

#[test]
fn a_plan_has_the_network_in_slow_motion() {
    let plan = plan(TWO_RACKS).unwrap();
    assert_eq!((plan.hosts.len(), plan.bumps.len(), plan.cables.len(), plan.slowdown), (24, 2, 1, 20));
    assert_eq!((plan.hosts[12].rate, plan.hosts[12].address.to_string()), (Rate::mbps(50), "10.0.0.13".into()));
    assert_eq!(plan.compared, [((25, 0), "switch 1 port 0".into())]);
    let Bump { downstream, links, .. } = &plan.bumps[0];
    // Every host is behind a port of its own.
    assert_eq!((*links, downstream.len()), (1, 24));
    assert!(downstream.iter().all(|port| port.hosts.len() == 1 && port.rate == Rate::mbps(50)));
    let flows = crate::flows::flows(plan.flows.as_ref().unwrap()).unwrap();
    assert_eq!(flows[0].start, std::time::Duration::from_millis(200));
    assert!(plan.queries.is_none());
}

#[test]
fn the_file_of_a_bump_is_one_that_a_bump_takes() {
    let plan = plan(TWO_RACKS).unwrap();
    let names = Names(7);
    for i in 0..2 {
        let text = text(&plan, i, &names, Path::new("/run/x"));
        let config = Config::parse(Path::new("b.toml"), &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(config.link_count(), 1);
        // 1.5 Mb/s at a twentieth of the speed.
        let slowed = text.contains("ai_rate = \"75000 b/s\"") || text.contains("ai_rate = \"75 kb/s\"");
        assert_eq!(slowed, i == 0, "{text}");
        assert_eq!(text.contains("max_probability = 0.01"), i == 1, "{text}");
    }
}

/// Frames that leave the fabric, by edge.
#[derive(Default)]
struct Seen(Vec<(NodeId, Vec<u8>)>);

impl Outside for Seen {
    fn send(&mut self, _: Instant, edge: NodeId, frame: &[u8]) -> bool {
        self.0.push((edge, frame.to_vec()));
        true
    }
    fn departs(&mut self, _: &Departure<'_>) {}
}

#[test]
fn a_frame_between_racks_passes_the_bumps_link() {
    let plan = plan(TWO_RACKS).unwrap();
    let mut fabric = Fabric::new(&plan.fabric).unwrap();
    let frame = |from: MacAddress, to: MacAddress| [&to.0[..], &from.0, &[0x08, 0x00], &[0; 50]].concat();
    let mut at = Instant::ZERO;
    let mut pass = |fabric: &mut Fabric, edge: NodeId, frame: &[u8]| {
        let mut seen = Seen::default();
        at += Duration::from_ms(10);
        fabric.advance(at, &mut seen);
        fabric.receive(at, edge, frame, &mut seen);
        at += Duration::from_ms(10);
        fabric.advance(at, &mut seen);
        seen.0
    };
    let across = frame(plan.hosts[0].mac, plan.hosts[12].mac);
    assert_eq!(pass(&mut fabric, 0, &across), [(24, across.clone())], "to the near end of the link");
    assert_eq!(pass(&mut fabric, 25, &across), [(12, across.clone())], "from its far end to the host");
    let back = frame(plan.hosts[13].mac, plan.hosts[3].mac);
    assert_eq!(pass(&mut fabric, 13, &back), [(25, back.clone())]);
    assert_eq!(pass(&mut fabric, 24, &back), [(3, back)]);
    let inside = frame(plan.hosts[1].mac, plan.hosts[2].mac);
    assert_eq!(pass(&mut fabric, 1, &inside), [(2, inside)], "a frame within a rack does not");
    // A host cannot send in the name of another one; a bump's link carries every station's frames, and no stranger's.
    assert_eq!(pass(&mut fabric, 1, &across), []);
    assert_eq!(pass(&mut fabric, 25, &frame(MacAddress([6; 6]), plan.hosts[12].mac)), []);
    fabric.ledger();
}

#[test]
fn bumps_that_share_a_switch_tell_each_other() {
    let loaded = Scenario::load(Path::new(&format!("{SCENARIOS}/fig-5-11.toml"))).unwrap();
    let plan = Plan::new(&loaded.scenario).unwrap();
    assert_eq!((plan.cables.len(), plan.bumps[0].links), (2, 2));
    assert_eq!(
        plan.bumps.iter().map(|bump| bump.neighbours.clone()).collect::<Vec<_>>(),
        [vec![], vec![(2, true)], vec![(1, true)]]
    );
    let of = |bump: usize| plan.fabric.stations.host_of(plan.bumps[bump].mac);
    assert_eq!((of(1), of(2)), (Some(0), Some(1)), "updates for a bump go where it is");
}

#[test]
fn what_cannot_be_run_is_refused_with_its_place() {
    for (from, to, why) in [
        ("[[bump]]", "[[bumps]]", "bumps"),
        (
            "kind = \"flow\"\nsrc = 0\ndst = 12\nstart = \"10 ms\"",
            "kind = \"incast\"\nsenders = 3\nreceiver = 3\nbytes = \"1 KB\"\nrounds = 1",
            "no real application",
        ),
        ("slowdown = 20", "slowdown = 20\n[record]\nqueue_ports = [\"switch 0 port 12\"]", "estimate 0 of these ports"),
        ("duration = \"1 s\"", "", "duration"),
        ("slowdown = 20", "slowdown = 1000000", "slowdown"),
        (
            "buffer = \"100 KB\"\n[[bump]]",
            "buffer = \"100 KB\"\n[server]\nvirtual_network = true\n[[bump]]",
            "no virtual switch",
        ),
    ] {
        assert!(TWO_RACKS.contains(from), "{from}");
        let error = plan(&TWO_RACKS.replacen(from, to, 1)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
    let nothing = TWO_RACKS.split("[[bump]]").next().unwrap().to_owned()
        + "[[workload]]"
        + TWO_RACKS.split("[[workload]]").nth(1).unwrap();
    let error = plan(&nothing).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("there is no bump"), "{error}");
}

//! Flows without an end between real sockets of a testbed, with and without credits.

use serde_json::Value;
use sluicenet_testkit::netns::missing;
use std::process::Command;

/// One of two senders over a shared link has a receiver that takes frames slowly.
const SLOW: &str = r#"
[scenario]
name = "slow"
parameters = "crisan2014-ch3"
flow_control = "ZZ"
duration = "60 ms"
warmup = "30 ms"
[topology]
kind = "hpcc"
file = "TOPOLOGY"
[server]
vms = 1
[[vswitch.slow]]
host = 3
rate = "100 Mb/s"
[[workload]]
kind = "permutation"
pattern = "file"
file = "FLOWS"
[zcredit]
rx_queue = 64
[testbed]
slowdown = 100
response = "200 ms"
[sweep]
"workload.0.transport" = ["udp", "tcplight"]
"zcredit.enabled" = [false, true]
"#;

/// Whether this machine can run a testbed; prints a missing requirement.
fn possible() -> bool {
    let what = missing();
    what.iter().for_each(|what| println!("SKIPPED: flows between real sockets: {what}"));
    what.is_none()
}

/// Runs the flows of a scenario between real sockets.
fn flows(name: &str, text: &str) -> Value {
    let _alone = crate::testbed_lock();
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/crisan2014");
    let text = text.replace("TOPOLOGY", &format!("{scenarios}/two-switches.txt"));
    let text = text.replace("FLOWS", &format!("{scenarios}/fig-5-9-flows.txt"));
    let file = std::env::temp_dir().join(format!("sluicenet-testbed-{name}-{}.toml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let mut sluicenet = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    let run = sluicenet.args(["--quiet", "--json", "testbed", "flows"]).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

fn nothing_is_lost(cell: &Value) {
    for place in ["virtual_network", "physical_network", "edges"] {
        assert_eq!(cell["lost"][place], 0, "{cell}");
    }
}

/// Figure 5.9 between real sockets. Without credits the flow beside a slow receiver falls to the slow flow's level,
/// with credits it does not. The slow receiver's queue is never longer than allowed. The test covers datagrams of the
/// kernel and streams of light sockets.
#[test]
fn a_slow_receiver_loses_nothing_and_its_receive_queue_is_bounded_by_credits() {
    if possible() {
        a_slow_receiver(false);
    }
}

/// The same, with its rates: the flow beside falls to the level of the slow one without credits, and does not with them.
#[test]
#[ignore = "long: rates, on a machine that does nothing else"]
fn long_a_slow_receiver_costs_the_flow_beside_nothing_where_there_are_credits() {
    if possible() {
        a_slow_receiver(true);
    }
}

fn a_slow_receiver(with_rates: bool) {
    let printed = flows("slow", SLOW);
    for (transport, cells) in [("udp", [0, 1]), ("tcplight", [2, 3])] {
        let [without, with] = cells.map(|cell: usize| &printed["cells"][cell]);
        let rate = |cell: &Value, flow: usize| cell["streams"]["each"][flow]["mbps"].as_f64().unwrap();
        let rates = [without, with].map(|cell| [rate(cell, 0), rate(cell, 1)]);
        println!("victim and culprit, without and with credits, Mb/s, {transport}: {rates:?}");
        let [[alone, slow], [beside, _]] = rates;
        assert!(slow > 0.0 && beside > 0.0, "{transport}: {rates:?}");
        // 1 Mb/s of frames, and the backlog of a loop that was late.
        assert!(slow < 1.2, "{transport}: {rates:?}");
        if with_rates {
            assert!(alone > 0.0 && alone < 10.0 * slow && beside > 5.0 * alone && slow > 0.1, "{transport}: {rates:?}");
        }
        for (cell, credits) in [(without, false), (with, true)] {
            nothing_is_lost(cell);
            assert_eq!(cell["credits"], credits);
            assert_eq!(cell["streams"]["each"][0]["transport"], transport);
            assert_eq!(cell["datagrams"][1].as_u64() > Some(0), transport == "udp");
        }
        let stops = [without, with].map(|cell| cell["fabric"]["stops"].as_u64().unwrap());
        println!("times PFC stopped somebody, without and with credits: {stops:?}");
        assert!(stops[0] > 0 && (!with_rates || stops[0] > 4 * stops[1]), "{stops:?}");
        let longest = with["received_max_frames"].as_u64().unwrap();
        assert!((1..=64).contains(&longest), "a receive queue of {longest} frames");
    }
}

/// Over PFC alone the stream beside the slow one stands still for most of 14 s. That is longer than light sockets
/// elsewhere take to give each other up.
#[test]
fn streams_that_stand_still_for_long_go_on() {
    if !possible() {
        return;
    }
    let long = SLOW.replace("60 ms", "140 ms").replace("\"udp\", ", "").replace("[false, true]", "[false]");
    let printed = flows("still", &long);
    let [cell] = &printed["cells"].as_array().unwrap()[..] else { panic!("{printed}") };
    nothing_is_lost(cell);
    assert_eq!(
        (&cell["streams"]["count"], cell["streams"]["min_mbps"].as_f64() > Some(0.0)),
        (&2.into(), true),
        "{cell}"
    );
}

/// A flow of each, from one machine to another.
const MIXED: &str = r#"
[scenario]
name = "mixed"
parameters = "crisan2014-ch3"
flow_control = "ZZ"
duration = "30 ms"
warmup = "10 ms"
[topology]
kind = "single-switch"
hosts = 2
[server]
vms = 1
[[workload]]
kind = "permutation"
pattern = "stride"
transport = "tcp"
[[workload]]
kind = "permutation"
pattern = "stride"
transport = "tcplight"
[testbed]
slowdown = 100
response = "200 ms"
"#;

#[test]
fn tcp_and_tcplight_of_one_machine_have_a_port_each() {
    if !possible() {
        return;
    }
    let cell = &flows("mixed", MIXED)["cells"][0];
    nothing_is_lost(cell);
    let each: Vec<(&str, bool)> = cell["streams"]["each"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| (s["transport"].as_str().unwrap(), s["mbps"].as_f64().unwrap() > 0.0))
        .collect();
    assert_eq!(each, [("tcp", true), ("tcp", true), ("tcplight", true), ("tcplight", true)], "{cell}");
}

/// Figure 5.3 between real sockets: under tunnels of TCP between servers, the datagrams beside a slow receiver do not
/// fall to its level. Under PFC alone they do.
#[test]
fn in_tunnels_of_tcp_nothing_is_lost_beside_a_slow_receiver() {
    if possible() {
        in_tunnels(false);
    }
}

#[test]
#[ignore = "long: rates, on a machine that does nothing else"]
fn long_in_tunnels_of_tcp_datagrams_do_not_fall_to_the_level_of_a_slow_receiver() {
    if possible() {
        in_tunnels(true);
    }
}

fn in_tunnels(with_rates: bool) {
    let text = SLOW.replace("flow_control = \"ZZ\"", "hypervisor = \"pfc\"").replace("[zcredit]\nrx_queue = 64\n", "");
    let text = text.replace("\"workload.0.transport\" = [\"udp\", \"tcplight\"]\n", "");
    let text = text.replace("\"zcredit.enabled\" = [false, true]", "\"scenario.hypervisor\" = [\"pfc\", \"tcp\"]");
    let printed = flows("tunnel", &text.replace("file = \"FLOWS\"", "file = \"FLOWS\"\ntransport = \"udp\""));
    let rate = |cell: usize, flow: usize| printed["cells"][cell]["streams"]["each"][flow]["mbps"].as_f64().unwrap();
    let rates = [[rate(0, 0), rate(0, 1)], [rate(1, 0), rate(1, 1)]];
    println!("victim and culprit, under PFC and in tunnels, Mb/s: {rates:?}");
    let [[pfc, slow], [tunnel, _]] = rates;
    // Under PFC the victim may get nothing for as long as this takes.
    assert!(slow > 0.0 && tunnel > 0.0, "{rates:?}");
    assert!(!with_rates || pfc < 10.0 * slow && tunnel > 5.0 * pfc, "{rates:?}");
    [0, 1].into_iter().for_each(|cell: usize| nothing_is_lost(&printed["cells"][cell]));
}

/// Table 5.2 between real sockets, short. A remote host and a server send more to the second vNIC of a machine than its
/// link carries. Meanwhile its first vNIC has a stream of TCPlight, and datagrams of another tenant are for it.
#[test]
fn neither_vnic_of_a_machine_stops_the_other_and_policy_holds() {
    if !possible() {
        return;
    }
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/crisan2014/table-5-2.toml"));
    let text = text.unwrap().replace("\"300 ms\"", "\"60 ms\"").replace("\"100 ms\"", "\"20 ms\"");
    for hypervisor in ["zfabric", "tcp"] {
        let text = text.replace("\"zfabric\"", &format!("\"{hypervisor}\""));
        let printed = flows("two-vnics", &format!("{text}[testbed]\nslowdown = 100\nresponse = \"200 ms\"\n"));
        let cell = &printed["cells"][0];
        let each = cell["streams"]["each"].as_array().unwrap();
        let rates: Vec<f64> = each.iter().map(|s| s["mbps"].as_f64().unwrap()).collect();
        println!("{hypervisor}: {rates:?}, {}", cell["lost"]);
        nothing_is_lost(cell);
        let ends = |n: usize| ["src_vm", "dst_vm"].map(|key| each[n][key].as_u64().unwrap());
        assert_eq!((ends(0), ends(2), ends(4)), ([0, 0], [2, 2], [0, 2]));
        // A stream of the lossless stack, and the datagrams of three vNICs that found room, beside none of the other
        // tenant.
        assert!(rates[0] > 0.0 && rates[2] + rates[3] + rates[4] > 0.0, "{rates:?}");
        assert_eq!(rates[1], 0.0, "{rates:?}");
        assert!(cell["lost"]["denied"].as_u64() > Some(100), "{cell}");
        assert!(cell["lost"]["lossy_vnics"].as_u64() > Some(100), "{cell}");
    }
}

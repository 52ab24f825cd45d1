//! Cost of a byte: `bench sockets`.

use super::*;

/// Each pair moves bytes, loses none where nothing may be lost, and reports its cost beside TCP.
#[test]
fn what_a_byte_costs() {
    if let Some(what) = netns::missing() {
        println!("SKIPPED: {what}");
        return;
    }
    let bench = |words: &[&str]| {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
        let done = bench.args(["bench", "sockets", "--turns", "1", "--json"]).args(words).output().unwrap();
        (done.status.code(), serde_json::from_slice(&done.stdout), String::from_utf8(done.stderr).unwrap())
    };
    let (code, figures, said): (_, serde_json::Result<serde_json::Value>, _) =
        bench(&["--seconds", "0.2", "--streams", "2"]);
    assert_eq!(code, Some(0), "{said}");
    let figures = figures.unwrap();
    let pairs = figures["pairs"].as_array().unwrap();
    let word = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let names: Vec<_> =
        pairs.iter().map(|p| [&p["placement"], &p["guest"], &p["hypervisor"]].map(word).join(" ")).collect();
    let mut expected = Vec::new();
    for placement in ["servers", "hairpin"] {
        for hypervisor in ["lossy", "pfc", "tcp", "zfabric"] {
            for guest in ["tcp", "tcp-offload", "udp", "tcplight"] {
                if (guest, hypervisor) != ("tcplight", "lossy") {
                    expected.push(format!("{placement} {guest} {hypervisor}"));
                }
            }
        }
    }
    assert_eq!(names, expected);
    for pair in pairs {
        let median = |figure: &serde_json::Value| figure["median"].as_f64().unwrap();
        let [gbps, cpu, switch, machine] =
            ["gbps", "cpu_s_per_gb", "switch_s_per_gb", "machine_s_per_gb"].map(|name| median(&pair[name]));
        assert!(gbps > 0.0 && switch > 0.0 && cpu > switch && machine > 0.0, "{pair}");
        assert!(pair["hypervisor"] == "lossy" || pair["lost"] == 0, "{pair}");
        for (base, name) in [("tcp", "over_tcp"), ("tcp-offload", "over_tcp_offload")] {
            let same = |other: &&serde_json::Value| {
                other["placement"] == pair["placement"] && other["guest"] == base && other["hypervisor"] == "lossy"
            };
            let base = pairs.iter().find(same).unwrap();
            let throughput = median(&pair[name]["throughput"]) * median(&base["gbps"]) / gbps;
            let cpu = median(&pair[name]["less_cpu"]) * cpu / median(&base["cpu_s_per_gb"]);
            assert!((throughput - 1.0).abs() < 1e-6 && (cpu - 1.0).abs() < 1e-6, "{pair} beside {base}");
        }
    }
    // A receiver that sleeps 20 ms after every hundred frames gets some 5,000 of them in a second, from any sender.
    let slow = ["--placement", "servers", "--hypervisor", "zfabric", "--guest", "tcplight,tcp", "--delay", "20000"];
    let (code, figures, said) = bench(&[&slow[..], &["--seconds", "1"]].concat());
    assert_eq!(code, Some(0), "{said}");
    for pair in figures.unwrap()["pairs"].as_array().unwrap() {
        let gbps = pair["gbps"]["median"].as_f64().unwrap();
        assert!(gbps > 0.0 && gbps < 0.07 && pair["lost"] == 0 && pair["over_tcp"].is_null(), "{pair}");
    }
    let (code, _, said) = bench(&["--guest", "tcplight", "--hypervisor", "lossy"]);
    assert!(code == Some(2) && said.contains("nothing against loss"), "{said}");
}

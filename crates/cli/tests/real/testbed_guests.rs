//! The testbed with QEMU guests as tenants: brought up, used, measured, killed; gone without a trace.
//!
//! Needs root and the requirements of `sluicenet_testbed::guest`. The test reports a missing one, and is skipped.

use serde_json::Value;
use sluicenet_testbed::guest::{GuestError, Nic, Parts, program};
use sluicenet_testkit::netns::missing;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Two servers with a guest each: one asks the other for 20 KB, over links of 10 Mb/s.
const SCENARIO: &str = r#"
[scenario]
name = "two guests"
parameters = "crisan2014-ch3"
flow_control = "ZZ"
[topology]
kind = "single-switch"
hosts = 2
link_rate = "1 Gb/s"
link_delay = "1 us"
[server]
vms = 1
[tcp]
congestion = "vegas"
[[workload]]
kind = "partition-aggregate-2"
among = "vms"
workers = 1
response = "20 KB"
queries = 60
warmup_queries = 5
[[workload]]
kind = "background"
flow_size = { kind = "cdf-file", file = "sizes.txt" }
inter_arrival = "4 ms"
[testbed]
slowdown = 100
response = "1 s"
tenants = "guests"
"#;

const TESTBED: &str = "/run/sluicenet/testbed";

fn sluicenet(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluicenet")).args(words).output().unwrap()
}

fn worked(words: &[&str]) -> String {
    let out = sluicenet(words);
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{words:?}: {}{said}", String::from_utf8_lossy(&out.stderr));
    said
}

/// The scenario and the file it names, in a folder of its own.
fn scenario(test: &str) -> (PathBuf, String) {
    let folder = std::env::temp_dir().join(format!("sluicenet-it's {test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("sizes.txt"), "2000 0\n4000 100\n").unwrap();
    let file = folder.join("two.toml");
    std::fs::write(&file, SCENARIO).unwrap();
    (folder, file.display().to_string())
}

/// The processes of QEMU that are guests of the testbed.
fn guests() -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
    let is_guest = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("qemu-system") && line.contains(TESTBED)
    };
    pids.filter(is_guest).collect()
}

fn namespaces() -> Vec<String> {
    let all = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let ours = ["sluice-s0", "sluice-s1", "sluice-fabric", "sluice-control"];
    all.map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|n| ours.iter().any(|o| n.starts_with(o)))
        .collect()
}

fn nothing_is_left() {
    assert_eq!((guests(), namespaces()), (vec![], vec![]));
    assert!(!Path::new(TESTBED).exists());
}

fn pid_of(name: &str) -> i32 {
    let programs = std::fs::read_to_string(format!("{TESTBED}/programs")).unwrap();
    let line = programs.lines().find(|l| l.split(' ').next() == Some(name)).unwrap_or_else(|| panic!("{programs}"));
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

fn kill(pid: i32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn guests_are_brought_up_measured_and_gone_however_it_ends() {
    let here = missing().map_or_else(|| Parts::find(Nic::Virtio), |what| Err(GuestError::Missing(what)));
    match here {
        Ok(_) => {}
        Err(e @ GuestError::Missing(_)) => return println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    }
    let _alone = crate::testbed_lock();
    let (folder, file) = scenario("guests");

    // Queries between their sockets, under a congestion control that is a module of theirs.
    let printed: Value = serde_json::from_str(&worked(&["--quiet", "--json", "testbed", "pa", &file])).unwrap();
    let cell = &printed["cells"][0];
    assert_eq!((&printed["guests"], &printed["tenants"]), (&true.into(), &2.into()));
    let figures = &cell["figures"];
    assert_eq!((&figures["queries"], &figures["unfinished"]), (&55.into(), &0.into()), "{cell}");
    assert_eq!(figures["congestion"], "vegas");
    for place in ["virtual_network", "physical_network", "edges"] {
        assert_eq!(cell["lost"][place], 0, "{cell}");
    }
    // An answer takes 16 ms on its link, and the flows are of the sizes in the file.
    assert!(figures["mean_ms"].as_f64().unwrap() > 16.0, "{figures}");
    assert!(figures["flows"].as_u64().unwrap() > 0, "{figures}");
    nothing_is_left();

    // Left up, the testbed has a shell, and iperf3 with a report of losses.
    let up = sluicenet(&["testbed", "up", &file]);
    let said = String::from_utf8_lossy(&up.stderr);
    assert!(up.status.success() && said.contains("is up, 2 of 2"), "{said}");
    assert_eq!((guests().len(), namespaces().len()), (2, 4));
    let address = worked(&["testbed", "sh", "s1-t0", "ip", "addr", "show", "eth0"]);
    assert!(address.contains("10.0.1.1/8") && address.contains("mtu 1446"), "{address}");
    let ping = worked(&["testbed", "sh", "s0-t0", "ping -c 3 10.0.1.1"]);
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    let e = sluicenet(&["testbed", "sh", "s7-t0", "true"]);
    assert!(String::from_utf8_lossy(&e.stderr).contains("no guest sluice-s7-t0"), "{e:?}");
    assert_eq!(sluicenet(&["testbed", "sh", "s0-t0", "exit 3"]).status.code(), Some(1));
    if program("iperf3").is_ok() {
        for flags in [&[][..], &["--udp"]] {
            let words = ["--json", "testbed", "iperf", "s0-t0", "s1-t0", "--seconds", "2"];
            let printed: Value = serde_json::from_str(&worked(&[&words[..], flags].concat())).unwrap();
            assert!(printed["end"].is_object(), "{printed:#}");
            for place in ["virtual_network", "physical_network", "edges"] {
                assert_eq!(printed["lost"][place], 0, "{:#}", printed["lost"]);
            }
        }
        let text = worked(&["testbed", "iperf", "s1-t0", "s0-t0", "--seconds", "1"]);
        assert!(text.contains("frames lost meanwhile: virtual 0, physical 0, edges 0"), "{text}");
    }
    worked(&["--quiet", "testbed", "down"]);
    nothing_is_left();

    // The program that holds the guests is killed. The guests end with it, and `clean` finds the rest.
    worked(&["--quiet", "testbed", "up", &file]);
    assert_eq!(guests().len(), 2);
    kill(pid_of("guests"));
    let until = Instant::now() + Duration::from_secs(60);
    while !guests().is_empty() {
        assert!(Instant::now() < until, "guests outlive who holds them: {:?}", guests());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(pid_of("fabric"));
    let e = sluicenet(&["testbed", "sh", "s0-t0", "true"]);
    assert!(String::from_utf8_lossy(&e.stderr).contains("nobody holds the guests"), "{e:?}");
    worked(&["clean"]);
    nothing_is_left();

    // A guest is killed alone, and the testbed removed around it.
    worked(&["--quiet", "testbed", "up", &file]);
    kill(pid_of("sluice-s0-t0"));
    let e = sluicenet(&["testbed", "sh", "s0-t0", "true"]);
    assert_eq!(e.status.code(), Some(1), "{e:?}");
    assert_eq!(worked(&["testbed", "sh", "s1-t0", "echo there"]), "there\n");
    worked(&["clean"]);
    nothing_is_left();
    std::fs::remove_dir_all(&folder).unwrap();
}

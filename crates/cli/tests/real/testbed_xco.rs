//! `testbed xco`: real hosts behind a slow link without XCo and with it, and what a killed run leaves.

use crate::command::{command, expect, json};
use crate::interrupted::interrupted;
use serde_json::Value;
use sluicenet_dataplane::kernel::netns::named;
use sluicenet_testkit::netns::{missing, system};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Four hosts send to one: three of them without end, and one by rounds.
const FILE: &str = r#"
[scenario]
name = "slow"
duration = "2 s"
warmup = "500 ms"
[topology]
kind = "single-switch"
hosts = 6
link_rate = "20 Mb/s"
[switch]
policy = "output"
buffer = "100 KB"
[server]
virtual_network = false
[xco]
enabled = true
controller = 5
slice = "10 ms"
hysteresis = "2 ms"
lease = "5 s"
[[workload]]
kind = "flow"
src = 1
dst = 0
transport = "udp"
[[workload]]
kind = "flow"
src = 2
dst = 0
[[workload]]
kind = "flow"
src = 4
dst = 0
transport = "udp"
[[workload]]
kind = "incast"
senders = [3]
receiver = 0
bytes = "20 KB"
rounds = 1000
connections = "new"
[sweep]
"xco.enabled" = [false, true]
"#;
const PATIENCE: Duration = Duration::from_secs(60);

/// A scenario in a file; none, with the reason, if this machine cannot run it.
fn file(name: &str, text: &str) -> Option<PathBuf> {
    if let Some(why) = missing().or_else(|| system("tc -V").err()) {
        eprintln!("SKIPPED: hosts with XCo: {why}");
        return None;
    }
    let file = std::env::temp_dir().join(format!("sluicenet-xco-{name}-{}.toml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    Some(file)
}

/// The rate of a flow in the second half of the run.
fn later(cell: &Value, flow: usize) -> f64 {
    let course = cell["streams"]["each"][flow]["course_mbps"].as_array().unwrap();
    course[course.len() / 2..].iter().filter_map(Value::as_f64).sum()
}

#[test]
fn hosts_with_agents_lose_less_and_tcp_has_its_share() {
    let Some(file) = file("share", FILE) else { return };
    let run = json(0, &["testbed", "xco", file.to_str().unwrap(), "--quiet"]);
    let [without, with] = &run["cells"].as_array().unwrap()[..] else { panic!("{run}") };
    println!("without: {}, {}\nwith: {}, {}", without["streams"], without["lost"], with["streams"], with["lost"]);
    assert!(without["xco"].is_null() && without["lost"]["by_reason"]["switch_buffer"].as_u64() > Some(0));
    let percent = |cell: &Value| cell["lost"]["percent"].as_f64().unwrap();
    assert!(4.0 * percent(with) < percent(without), "{} and {}", with["lost"], without["lost"]);
    assert!((0..3).all(|flow| later(with, flow) > 0.0), "{}", with["streams"]);
    assert!(with["rounds"]["transfer"]["count"].as_u64() > Some(0), "{}", with["rounds"]);
    let (xco, joined) = (&with["xco"], with["xco"]["controller"]["joined"].as_u64());
    assert!(xco["agents"] == 5 && joined == Some(5) && xco["controller"]["slices"].as_u64() > Some(0), "{xco}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_run_that_is_interrupted_has_the_figures_until_then() {
    let text = FILE.replace("2 s", "600 s").replace("500 ms", "50 ms").replace("[false, true]", "[true, false]");
    let Some(file) = file("stopped", &text) else { return };
    let args = ["testbed", "xco", file.to_str().unwrap(), "--simulate"];
    let (pid, run) = interrupted(&args, |pid| format!("sluice-xco{pid}-h1"));
    let [cell] = &run["cells"].as_array().unwrap()[..] else { panic!("{run}") };
    assert!(cell["measured_s"].as_f64() > Some(0.0) && cell["measured_s"].as_f64() < Some(599.0), "{cell}");
    assert_eq!(cell["streams"]["each"].as_array().unwrap().len(), 3, "{cell}");
    assert!(cell["lost"]["sent"].as_u64() > Some(0) && cell["xco"]["agents"] == 5, "{cell}");
    assert!(cell["simulated"].is_null(), "a simulation of another time: {cell}");
    let prefix = format!("sluice-xco{pid}-");
    assert!(named().unwrap().iter().all(|name| !name.starts_with(&prefix)));
    std::fs::remove_file(file).unwrap();
}

#[test]
fn an_option_that_does_not_fit_a_variant_names_it() {
    let one = "[{ kind = \"incast\", senders = [3], receiver = 0, bytes = \"20 KB\", rounds = 9 }]";
    let none = "[{ kind = \"flow\", src = 1, dst = 0, transport = \"udp\", bytes = \"1 MB\" }]";
    let sweep = format!("[sweep]\nworkload = [\n{one},\n{none},\n]\n");
    let at = FILE.find("[sweep]").unwrap();
    let file = std::env::temp_dir().join(format!("sluicenet-xco-fit-{}.toml", std::process::id()));
    std::fs::write(&file, format!("{}{sweep}", &FILE[..at])).unwrap();
    for (option, variant, why) in [
        ("--blocks", "1 finite", "--blocks needs exactly one workload `incast`, and there are 0"),
        ("--migrate", "1 senders", "--migrate needs a TCP flow with `bytes`, and there is none"),
    ] {
        let (_, said) = expect(2, &["testbed", "xco", file.to_str().unwrap(), option]);
        assert!(said.contains(why) && said.contains(&format!("{variant}: ")), "{said}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn clean_removes_what_a_killed_run_left() {
    let Some(file) = file("killed", &FILE.replace("2 s", "600 s")) else { return };
    let _lock = crate::testbed_lock();
    let args = ["testbed", "xco", file.to_str().unwrap(), "--quiet"];
    let mut run = command(&args).stdout(Stdio::null()).spawn().unwrap();
    let prefix = format!("sluice-xco{}-", run.id());
    let there = || named().unwrap().into_iter().filter(|name| name.starts_with(&prefix)).count();
    let until = Instant::now() + PATIENCE;
    while there() < 7 {
        assert!(Instant::now() < until, "no testbed is up");
        std::thread::sleep(Duration::from_millis(5));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    expect(0, &["clean", "--quiet"]);
    assert_eq!(there(), 0);
    std::fs::remove_file(file).unwrap();
}

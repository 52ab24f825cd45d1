//! Real bumps between real hosts: the estimate beside the true queue, and nothing left behind.

use crate::command::{command, expect};
use crate::interrupted::interrupted;
use serde_json::Value;
use sluicenet_dataplane::kernel::netns;
use sluicenet_testkit::netns::missing;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Two flows of the kernel's TCP with ECN share a port; a bump marks for it.
const TWO_FLOWS: &str = r#"
[scenario]
name = "two-flows"
duration = "60 ms"
warmup = "20 ms"
[topology]
kind = "hpcc"
file = "TOPOLOGY"
[switch]
buffer = "500 KB"
[tcp]
congestion = "newreno"
ecn = true
[[bump]]
links = ["switch 0 port 12"]
buffer = "500 KB"
app = [{ kind = "dctcp" }]
[[workload]]
kind = "flow"
src = 0
dst = 12
[[workload]]
kind = "flow"
src = 1
dst = 12
[testbed]
slowdown = 50
"#;

/// Whether this machine can run the testbed; prints a missing requirement.
fn possible() -> bool {
    let what = missing().or_else(|| netns::may_make_namespaces().err().map(|e| e.to_string()));
    what.iter().for_each(|what| println!("SKIPPED: bumps between real hosts: {what}"));
    what.is_none()
}

fn scenario(name: &str) -> std::path::PathBuf {
    let topology = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/alfares2012/two-racks.txt");
    let file = std::env::temp_dir().join(format!("sluicenet-testbed-bump-{name}-{}.toml", std::process::id()));
    std::fs::write(&file, TWO_FLOWS.replace("TOPOLOGY", topology)).unwrap();
    file
}

/// The namespaces and the folder of the testbed of process `pid`.
fn left(pid: u32) -> Vec<String> {
    let mine = format!("{}bump{pid}-", netns::PREFIX);
    let mut left: Vec<String> = netns::named().unwrap().into_iter().filter(|name| name.starts_with(&mine)).collect();
    let folder = format!("/run/sluicenet/bump-{pid}");
    left.extend(std::path::Path::new(&folder).exists().then_some(folder));
    left
}

/// Runs a scenario whose testbed leaves nothing behind; its output.
fn run(name: &str, settings: &[&str]) -> Value {
    let file = scenario(name);
    let set = settings.iter().flat_map(|setting| ["--set", setting]);
    let args: Vec<&str> =
        ["--quiet", "--json", "testbed", "bump", file.to_str().unwrap()].into_iter().chain(set).collect();
    let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let run = child.wait_with_output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(left(pid), [""; 0], "it removes what it made");
    serde_json::from_slice(&run.stdout).unwrap()
}

#[test]
fn a_bump_marks_for_the_switch_behind_it() {
    if !possible() {
        return;
    }
    let _alone = crate::testbed_lock();
    let all = run("marks", &[]);
    let cell = &all["cells"][0];
    assert_eq!((&cell["slowdown"], &all["hosts"]), (&50.into(), &24.into()));
    let each = cell["streams"]["each"].as_array().unwrap();
    assert_eq!(each.len(), 2);
    let bump = &cell["bumps"][0];
    assert!(bump["packets"].as_u64().unwrap() > 100 && bump["marked"].as_u64().unwrap() > 0, "{bump}");
    let queue = &cell["queues"][0];
    assert_eq!((&queue["port"], &queue["rate_bps"]), (&"switch 1 port 0".into(), &20_000_000.into()));
    assert!(queue["max_bytes"].as_u64().unwrap() > 0, "{queue}");
}

/// Two senders have twice the port's rate, so that its queue of 500 KB is full. A machine that stops for some milliseconds empties it a
/// little, before the estimate or after it: half of the samples may be a tenth of the buffer away, 20 ms of the port. An
/// estimate that knows nothing of the queue is 500 KB away.
#[test]
fn a_bump_knows_the_full_queue_of_the_switch_behind_it() {
    if !possible() {
        return;
    }
    let _alone = crate::testbed_lock();
    let udp = |src: u32| format!("{{ kind = \"flow\", src = {src}, dst = 12, transport = \"udp\" }}");
    let all = run("full", &["bump.0.app=[]", &format!("workload=[{}, {}]", udp(0), udp(1))]);
    let cell = &all["cells"][0];
    let queue = &cell["queues"][0];
    let estimate = &queue["estimates"][0];
    println!("queue {}, estimate {}, late {}", queue["p50_bytes"], estimate["p50_bytes"], cell["fabric"]["late_share"]);
    assert!(
        queue["max_bytes"].as_u64() > Some(450_000) && estimate["longest_bytes"].as_u64() > Some(450_000),
        "{queue}"
    );
    assert!(estimate["samples"].as_u64() > Some(0));
    if cell["limited_by_machine"] == true {
        eprintln!("SKIPPED: the distance of the estimate: the fabric was late, and its queue shows this machine");
        return;
    }
    assert!(queue["p50_bytes"].as_u64() > Some(400_000) && estimate["p50_bytes"].as_f64() < Some(50_000.0), "{queue}");
}

#[test]
fn a_run_that_is_interrupted_has_the_figures_until_then() {
    if !possible() {
        return;
    }
    let file = scenario("stopped");
    // Fifty times that: 50 ms.
    let warmup = ["--set", "scenario.warmup=1 ms", "--set", "scenario.duration=60 s", "--simulate"];
    let args = [&["testbed", "bump", file.to_str().unwrap()], &warmup[..]].concat();
    let (pid, all) = interrupted(&args, |pid| format!("{}bump{pid}-h0", netns::PREFIX));
    std::fs::remove_file(&file).unwrap();
    let [cell] = &all["cells"].as_array().unwrap()[..] else { panic!("{all}") };
    assert_eq!(cell["streams"]["each"].as_array().unwrap().len(), 2);
    assert!(cell["bumps"][0]["packets"].as_u64() > Some(0) && cell["seconds"].as_f64() < Some(2_999.0), "{cell}");
    assert!(cell["simulated"].is_null(), "a simulation of another time");
    assert_eq!(left(pid), [""; 0], "it removes what it made");
}

#[test]
fn clean_removes_what_a_killed_testbed_of_bumps_left() {
    if !possible() {
        return;
    }
    let _alone = crate::testbed_lock();
    let file = scenario("killed");
    let arguments = ["--quiet", "testbed", "bump", file.to_str().unwrap(), "--set", "scenario.duration=60 s"];
    let mut child = command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let control = format!("/run/sluicenet/bump-{pid}/b0.sock");
    let until = Instant::now() + Duration::from_secs(60);
    while !std::path::Path::new(&control).exists() {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "the testbed is not up");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(!left(pid).is_empty());
    expect(0, &["clean"]);
    assert_eq!(left(pid), [""; 0]);
}

//! Speed in a user's terms: packets from end to end, the shares of stages, and what a run takes before it starts.

use crate::command::{SMALL, expect, json, repository};
use serde_json::Value;
use sluicenet_testkit::Dir;
use std::path::Path;

/// One flow over one switch: 100 full segments of 1,448 B, each acknowledged.
const ONE_FLOW: &str = "[scenario]\nparameters = \"plain\"\n[topology]\nkind = \"single-switch\"\nhosts = 2\n[tcp]\nack_every = 1\n\
                        [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"144800 B\"\n";

fn read(dir: &str, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(Path::new(dir).join(name)).unwrap()).unwrap()
}

#[test]
fn a_run_counts_packets_from_end_to_end_beside_hops() {
    let dir = Dir::new("cli-end-to-end");
    let (file, out) = (dir.file("flow.toml", ONE_FLOW), dir.path("out"));
    let figures = json(0, &["run", &file, "-o", &out]);
    // And the handshake.
    let packets = figures["packets_end_to_end"].as_u64().unwrap();
    assert_eq!(packets, 203, "{figures}");
    let hops = figures["packet_hops"].as_u64().unwrap();
    assert!((2 * packets..2 * packets + 2).contains(&hops), "two links each: {figures}");
    assert!(figures["packets_end_to_end_per_cpu_s"].as_f64().unwrap() > 0.0);
    for kept in ["summary.json", "run.json"] {
        assert_eq!(read(&out, kept)["packets_end_to_end"], packets, "{kept}");
    }
    let (table, _) = expect(0, &["run", &file]);
    let line = table.lines().find(|line| line.contains("packets end to end")).unwrap();
    assert!(line.contains(&packets.to_string()) && line.contains("/CPU s"), "{table}");
    let page = std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap();
    assert!(page.contains(&format!("<dt>packets from end to end</dt><dd>{packets}</dd>")));
}

#[test]
fn frames_between_servers_are_no_packets_from_end_to_end() {
    let dir = Dir::new("cli-end-to-end-credits");
    let file = dir.file("small.toml", SMALL.split("[sweep]").next().unwrap());
    let run = |zfabric: bool| {
        let credits = format!("zcredit.enabled={zfabric}");
        let figures = json(0, &["run", &file, "--set", "scenario.flow_control=\"ZZ\"", "--set", &credits]);
        (figures["packets_end_to_end"].as_f64().unwrap(), figures["packet_hops"].as_f64().unwrap())
    };
    let ((packets, hops), (packets_credits, hops_credits)) = (run(false), run(true));
    assert!((packets_credits / packets - 1.0).abs() < 0.3, "{packets} {packets_credits}");
    assert!(hops_credits > 1.5 * hops, "requests and grants are hops: {hops} {hops_credits}");
}

#[test]
fn validate_tells_the_work_and_the_time() {
    let dir = Dir::new("cli-expected");
    let file = dir.file("flow.toml", ONE_FLOW);
    let found = json(0, &["validate", &file])["expected"].clone();
    let packets = found["packets_end_to_end"].as_f64().unwrap();
    assert!((150.0..250.0).contains(&packets), "{found}");
    let seconds = ["seconds_min", "seconds", "seconds_max"].map(|key| found[key].as_f64().unwrap());
    assert!(seconds[0] < seconds[1] && seconds[1] < seconds[2], "{found}");
    assert!(expect(0, &["validate", &file]).0.contains("less than a second: "));
    assert!(!expect(0, &["run", &file]).1.contains("takes"), "a short run tells nothing");
    // At the level of flows there are no packets.
    let flow = ["validate", &file, "--set", "scenario.level=flow"];
    assert_eq!(json(0, &flow)["expected"], Value::Null);
    assert!(expect(0, &flow).0.contains("unknown"));
}

#[test]
fn the_expected_work_is_near_the_real_one() {
    let dir = Dir::new("cli-expected-work");
    let small = dir.file("small.toml", SMALL.split("[sweep]").next().unwrap());
    let udp = ONE_FLOW.replace("bytes =", "transport = \"udp\"\nbytes =");
    let udp = dir.file("udp.toml", &udp);
    let incast = repository("scenarios/incast-32.toml");
    for file in [&small, &udp, &incast] {
        let (expected, run) = (json(0, &["validate", file])["expected"].clone(), json(0, &["run", file]));
        for key in ["packets_end_to_end", "packet_hops"] {
            let ratio = run[key].as_f64().unwrap() / expected[key].as_f64().unwrap();
            assert!((0.5..2.0).contains(&ratio), "{file}: {key}: {ratio}");
        }
    }
}

#[test]
fn a_run_of_days_is_told_before_it_starts() {
    let dir = Dir::new("cli-days");
    let text = "[scenario]\nparameters = \"plain\"\nduration = \"24 h\"\n[topology]\nkind = \"fat-tree\"\nk = 8\nrouting = \"d-mod-k\"\n\
                [[workload]]\nkind = \"permutation\"\npattern = \"random\"\n";
    let file = dir.file("days.toml", text);
    let (stdout, stderr) = expect(0, &["validate", &file]);
    assert!(stderr.contains("warning: this run takes days: about ") && stderr.contains("= hint: "), "{stderr}");
    assert!(stdout.contains("days on this machine") && stdout.contains("valid, with 1 warning"), "{stdout}");
    // The run itself says so first, too; then it is stopped.
    let first = first_line(&["run", &file]);
    assert!(first.contains("warning: this run takes days: about "), "{first}");
}

#[test]
fn a_profile_has_shares_of_stages_or_says_why_there_is_none() {
    let dir = Dir::new("cli-profile");
    let (file, out) = (dir.file("small.toml", SMALL.split("[sweep]").next().unwrap()), dir.path("out"));
    let (stdout, stderr) = {
        let made = crate::command::sluicenet(&["run", &file, "--profile", "--threads", "2", "-o", &out]);
        (String::from_utf8(made.stdout).unwrap(), String::from_utf8(made.stderr).unwrap())
    };
    if stderr.contains("error: --profile") {
        // This build has no line tables (CARGO_PROFILE_DEV_DEBUG): nothing was run.
        assert!(stderr.contains("this program has no line tables") && stdout.is_empty(), "{stderr}");
        assert!(!Path::new(&out).exists());
        return;
    }
    let profile = read(&out, "profile.json");
    let stages = profile["stages"].as_array().unwrap();
    let sum: f64 = stages.iter().map(|stage| stage["share"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9 && profile["samples"].as_u64().unwrap() > 0, "{profile}");
    // A run of some hundredths of a second has few samples, half of them in the engine.
    assert!(stages.iter().any(|stage| stage["stage"] == "events"), "{profile}");
    assert!(stdout.contains("CPU time of the run") && stdout.contains("share"), "{stdout}");
    assert!(std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap().contains("Where the CPU time went"));
    let folded = std::fs::read_to_string(Path::new(&out).join("profile.folded")).unwrap();
    assert!(folded.lines().all(|line| line.rsplit_once(' ').is_some_and(|(_, n)| n.parse::<u64>().is_ok())));
    // A run without it replaces both.
    expect(0, &["run", &file, "-o", &out, "--force"]);
    assert!(!Path::new(&out).join("profile.json").exists() && !Path::new(&out).join("profile.folded").exists());
}

/// The first line that a command says on stderr; it is stopped then.
fn first_line(args: &[&str]) -> String {
    let mut run = crate::command::command(args);
    let mut run = run.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(run.stderr.take().unwrap()));
    let first = lines.next().unwrap().unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    first
}

#[test]
fn a_sweep_tells_the_time_of_all_its_runs() {
    let dir = Dir::new("cli-sweep-days");
    let text = |duration: &str| {
        format!(
            "[scenario]\nparameters = \"plain\"\nduration = \"{duration}\"\n[topology]\nkind = \"fat-tree\"\nk = 4\n\
             routing = \"d-mod-k\"\n[[workload]]\nkind = \"permutation\"\npattern = \"random\"\n[sweep]\n\
             \"scenario.seed\" = [1, 2, 3, 4]\n"
        )
    };
    let file = dir.file("long.toml", &text("24 h"));
    let first = first_line(&["sweep", &file, "-o", &dir.path("out"), "--workers", "1"]);
    assert!(first.contains("warning: these 4 runs, one after the other, take days: "), "{first}");
    let file = dir.file("short.toml", &text("10 s"));
    let found = json(0, &["validate", &file]);
    let [one, all] = ["expected", "expected_sweep"].map(|key| found[key]["packet_hops"].as_f64().unwrap());
    assert!((all / one - 4.0).abs() < 0.01, "{found}");
    let (told, _) = expect(0, &["validate", &file]);
    assert!(told.contains("its base takes") && told.contains("4 variants, "), "{told}");
    assert_eq!(json(0, &["validate", &dir.file("flow.toml", ONE_FLOW)])["expected_sweep"], Value::Null);
}

#[test]
fn a_long_benchmark_tells_its_time_first() {
    let dir = Dir::new("cli-long-ft");
    let pairs: String = (0..16).map(|i| format!("{i} {}\n", (i + 8) % 16)).collect();
    let first = first_line(&["bench", "ft", "--k", "4", "--perm", &dir.file("perm.txt", &pairs), "--ms", "1000000"]);
    assert!(first.contains(": this run takes "), "{first}");
}

#[test]
fn pause_frames_are_no_packet_hops() {
    // 147,200 frames on links, of which 12,800 are pauses.
    assert_eq!(json(0, &["run", &repository("scenarios/incast-32.toml")])["packet_hops"], 134_400);
}

#[test]
fn more_threads_than_cores_are_warned_of() {
    let dir = Dir::new("cli-many-threads");
    let file = dir.file("flow.toml", ONE_FLOW);
    let (_, stderr) = expect(0, &["run", &file, "--threads", "1000"]);
    assert!(stderr.contains("warning: --threads 1000: this machine has ") && stderr.contains("= hint: "), "{stderr}");
    assert!(!expect(0, &["run", &file, "--threads", "1"]).1.contains("--threads"));
}

#[test]
fn a_profile_is_of_one_simulated_run() {
    let dir = Dir::new("cli-no-profile");
    let (_, stderr) = expect(2, &["sweep", &repository("scenarios/demo.toml"), "-o", &dir.path("out"), "--profile"]);
    assert!(stderr.contains("--profile: of one run") && stderr.contains("hint: sluicenet run "), "{stderr}");
    let file = dir.file("flow.toml", ONE_FLOW);
    let (_, stderr) = expect(2, &["run", &file, "--level", "flow", "--profile"]);
    assert!(stderr.contains("--profile: ") && stderr.contains("at the level of flows there are none"), "{stderr}");
    let (_, stderr) = expect(2, &["run", &repository("scenarios/demo.toml"), "--profile", "--world", "testbed"]);
    assert!(stderr.contains("--profile: an option of the simulator"), "{stderr}");
}

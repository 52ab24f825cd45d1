//! The command line as a user meets it: the built binary, its exit codes, its JSON, its files.

mod common;

use common::Dir;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    c.args(args);
    c
}

fn sluicenet(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Runs it, expects this exit code, and returns stdout and stderr.
#[track_caller]
fn expect(code: i32, args: &[&str]) -> (String, String) {
    let out = sluicenet(args);
    let (stdout, stderr) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!(out.status.code(), Some(code), "{args:?}\nstdout: {stdout}\nstderr: {stderr}");
    (stdout, stderr)
}

/// Runs it with `--json` and returns what it printed, which is JSON and nothing else.
#[track_caller]
fn json(code: i32, args: &[&str]) -> Value {
    let mut all = args.to_vec();
    all.push("--json");
    let (stdout, _) = expect(code, &all);
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{stdout}"))
}

fn repository(path: &str) -> String {
    common::repository(path).display().to_string()
}

/// The Parquet files and manifests below a directory, by name.
fn records(dir: &str) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![PathBuf::from(dir)];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            if path.is_dir() {
                open.push(path);
            } else if name.ends_with(".parquet") || name.ends_with("manifest.json") || name.ends_with("summary.json") {
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    assert!(found.keys().any(|n| n.ends_with(".parquet")), "no records in {dir}");
    found
}

#[track_caller]
fn same_files(a: &str, b: &str) {
    let (left, right) = (records(a), records(b));
    assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>());
    for (name, bytes) in &left {
        assert!(right[name] == *bytes, "{name} differs");
    }
}

/// 16 virtualised servers, four queries' worth of flow controls.
const SMALL: &str = r#"
[scenario]
name = "small"
parameters = "crisan2014-ch3"
[topology]
kind = "xgft"
m = [4, 4]
w = [1, 2]
[record]
pauses = true
[[workload]]
kind = "partition-aggregate"
layout = "crisan2014-ch4"
queries = 24
warmup_queries = 4
inter_arrival = { kind = "exponential", mean = "50 us" }
[sweep]
"tcp.congestion" = ["newreno", "vegas"]
"scenario.flow_control" = ["LL", "ZZ"]
"#;

/// Flows that never end: what an interrupt is for.
const ENDLESS: &str = r#"
[scenario]
name = "endless"
duration = "1000 s"
[topology]
kind = "fat-tree"
k = 4
[[workload]]
kind = "permutation"
pattern = "stride"
[[workload]]
kind = "poisson"
cdf = "sizes.txt"
load = 0.1
until = "1 s"
[record]
queues = "100 us"
"#;

#[test]
fn usage_is_told_and_exits_with_2() {
    assert!(expect(2, &[]).1.contains("Usage: sluicenet"));
    expect(2, &["fly"]);
    expect(2, &["run"]);
    expect(2, &["run", "x.toml", "--threads", "0"]);
    expect(2, &["run", "x.toml", "-o", "d", "--force", "--resume"]);
    assert!(expect(0, &["--version"]).0.starts_with("sluicenet "));
    for verb in ["run", "validate", "sweep", "report", "diff", "bench", "demo", "doctor", "schema"] {
        assert!(expect(0, &[verb, "--help"]).0.contains("--json"), "{verb}");
    }
}

#[test]
fn bad_input_is_one_clear_error_and_leaves_nothing() {
    let dir = Dir::new("cli-bad");
    dir.file("cycle.cm", "Nodes 4\nConnections 2\nTriggers 2\n0->1 id 1 trigger 1 size 1000 send_done_trigger 2\n\
                          1->2 id 2 trigger 2 size 1000 send_done_trigger 1\ntrigger id 1 oneshot\ntrigger id 2 oneshot\n");
    dir.file("falling.txt", "0 0\n1000 50\n2000 40\n3000 100\n");
    let network = "[topology]\nkind = \"single-switch\"\nhosts = 4\n";
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n";
    let cases: &[(&str, String, &str)] = &[
        ("unknown key", format!("{network}colour = 3\n{flow}"), "unknown key `colour`"),
        ("negative rate", format!("{network}link_rate = \"-1 Gb/s\"\n{flow}"), "link_rate"),
        ("NaN rate", format!("{network}link_rate = nan\n{flow}"), "link_rate"),
        ("NaN in text", format!("{network}link_rate = \"NaN Gb/s\"\n{flow}"), "link_rate"),
        ("no unit", format!("{network}link_delay = 5\n{flow}"), "needs a unit"),
        (
            "10^9 hosts",
            format!("[topology]\nkind = \"xgft\"\nm = [1000, 1000, 1000]\nw = [1, 1, 1]\n{flow}"),
            "too large",
        ),
        (
            "falling CDF",
            format!("{network}[[workload]]\nkind = \"poisson\"\ncdf = \"falling.txt\"\nload = 0.5\nuntil = \"1 ms\"\n"),
            "falling.txt:3",
        ),
        ("no such host", format!("{network}{}", flow.replace("dst = 1", "dst = 9")), "there is no host 9"),
        (
            "trigger cycle",
            format!("{network}[[workload]]\nkind = \"flow-file\"\nformat = \"htsim\"\nfile = \"cycle.cm\"\n"),
            "cycle.cm",
        ),
        ("truncated", network.to_string() + "[[workload]]\nkind = \"fl", "bad.toml:5"),
        ("no workload", network.into(), "no workload"),
        ("binary", "\u{0}\u{1}\u{2}".into(), "bad.toml"),
    ];
    for (what, text, want) in cases {
        let file = dir.file("bad.toml", text);
        for verb in ["run", "validate"] {
            let (stdout, stderr) = expect(2, &[verb, &file, "--json"]);
            assert_eq!(stdout, "", "{what}");
            assert!(stderr.starts_with("error: ") && stderr.contains(want), "{what}: {stderr}");
            assert_eq!(stderr.matches("error: ").count(), 1, "{what}: {stderr}");
        }
        let out = dir.path("out");
        expect(2, &["run", &file, "-o", &out]);
        expect(2, &["sweep", &file, "-o", &out]);
        assert!(!Path::new(&out).exists(), "{what}: something was written");
    }
    // A matrix of 16 nodes belongs to no network of four hosts, though all its flows would fit; the small one leaves some idle.
    dir.file("large.cm", "Nodes 16\nConnections 1\n0->1 start 0 size 1000\n");
    dir.file("few.cm", "Nodes 2\nConnections 1\n0->1 start 0 size 1000\n");
    dir.file("four.topo", &std::fs::read_to_string(common::repository("crates/lab/tests/data/small.topo")).unwrap());
    let htsim = |matrix: &str| {
        let text = "[topology]\nkind = \"htsim\"\nfile = \"four.topo\"\n[[workload]]\nkind = \"flow-file\"\nformat = \"htsim\"\n";
        dir.file("htsim.toml", &format!("{text}file = \"{matrix}\"\n"))
    };
    for verb in ["run", "validate"] {
        let (_, stderr) = expect(2, &[verb, &htsim("large.cm")]);
        assert!(
            stderr.contains("large.cm:1") && stderr.contains("of 16 nodes, and the network has 4 hosts"),
            "{stderr}"
        );
        let (_, stderr) = expect(0, &[verb, &htsim("few.cm")]);
        assert!(stderr.contains("few.cm:1: this matrix is of 2 nodes"), "{stderr}");
    }
    std::fs::write(dir.0.join("latin.toml"), [b'#', 0xff, 0xfe]).unwrap();
    assert!(expect(2, &["run", &dir.path("latin.toml")]).1.contains("UTF-8"));
    for verb in ["run", "validate"] {
        let (_, absent) = expect(2, &[verb, &dir.path("absent.toml")]);
        assert!(absent.contains("there is no such file") && absent.contains("absent.toml"), "{absent}");
        assert!(!absent.contains("relative"), "{absent}");
    }
    let no_cdf = "[[workload]]\nkind = \"poisson\"\ncdf = \"absent.txt\"\nload = 0.5\nuntil = \"1 ms\"\n";
    let (_, absent) = expect(2, &["validate", &dir.file("cdf.toml", &format!("{network}{no_cdf}"))]);
    assert!(absent.contains("absent.txt: there is no such file") && absent.contains("relative to"), "{absent}");
    assert!(expect(2, &["validate", &dir.file("empty.toml", "")]).1.contains("this scenario is empty"));
    let (_, none) = expect(2, &["validate", &dir.file("named.toml", "[scenario]\nname = \"x\"\n")]);
    assert!(none.contains("this scenario has no [topology]") && none.contains("[[workload]]"), "{none}");
    assert!(
        expect(2, &["run", &dir.file("ok.toml", &format!("{network}{flow}")), "--set", "tcp.congetion=cubic"])
            .1
            .contains("congestion")
    );
    let tiny = ["run", &dir.path("ok.toml"), "--set", "tcp.buffer=1 KB", "--set", "tcp.auto_buffer=false"];
    assert!(expect(2, &tiny).1.contains("must hold two segments"));
    // A variant that cannot be run is refused before the first is.
    let sweep = dir.file("sweep.toml", &format!("{network}{flow}[sweep]\n\"tcp.buffer\" = [\"100 KB\", \"1 KB\"]\n"));
    for args in [&["validate", &sweep][..], &["sweep", &sweep, "-o", &dir.path("swept")]] {
        let (_, stderr) = expect(2, args);
        assert!(stderr.contains("sweep.toml:10:27") && stderr.contains("in the variant buffer=1 KB"), "{stderr}");
    }
    assert!(!dir.0.join("swept").exists());
    assert!(expect(2, &["report", &dir.path("")]).1.contains("holds no result"));
    assert!(expect(2, &["bench", "ft", "--k", "4", "--perm", &dir.path("absent"), "--ms", "1"]).1.contains("absent"));
    assert!(expect(2, &["bench", "ft", "--k", "4", "--perm", "x", "--ms", "nan"]).1.contains("--ms"));
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused_at_once() {
    let dir = Dir::new("cli-pipe");
    let pipe = dir.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let network = "[topology]\nkind = \"single-switch\"\nhosts = 4\n";
    let cdf = "[[workload]]\nkind = \"poisson\"\ncdf = \"pipe\"\nload = 0.5\nuntil = \"1 ms\"\n";
    let flows = "[[workload]]\nkind = \"flow-file\"\nformat = \"hpcc\"\nfile = \"pipe\"\n";
    let topology = "[topology]\nkind = \"hpcc\"\nfile = \"pipe\"\n";
    let cases = [
        pipe.clone(),
        "/dev/zero".into(),
        dir.file("cdf.toml", &format!("{network}{cdf}")),
        dir.file("flows.toml", &format!("{network}{flows}")),
        dir.file("topology.toml", &format!("{topology}{cdf}")),
    ];
    for file in &cases {
        for args in [&["run", file][..], &["validate", file], &["sweep", file, "-o", &dir.path("out")]] {
            assert!(expect(2, args).1.contains("no regular file"), "{args:?}");
        }
    }
    assert!(expect(2, &["bench", "ft", "--k", "4", "--perm", &pipe, "--ms", "1"]).1.contains("no regular file"));
    assert!(expect(2, &["run", &dir.path("")]).1.contains("this is a folder"));
}

#[test]
fn only_results_of_ours_are_taken_for_results() {
    let dir = Dir::new("cli-strangers");
    let folder = |name: &str, manifest: &str| {
        std::fs::create_dir_all(dir.0.join(name)).unwrap();
        std::fs::write(dir.0.join(name).join("manifest.json"), manifest).unwrap();
    };
    folder("web", "{\"name\": \"an app\", \"format\": 3}");
    folder("broken", "{");
    let all = dir.path("");
    for verb in [&["report", &all][..], &["diff", &all, &all]] {
        assert!(expect(2, verb).1.contains("holds no result: no manifest.json of sluicenet's"));
    }
    assert!(!dir.0.join("report.html").exists());
    let file = dir.file("small.toml", SMALL);
    expect(0, &["run", &file, "-o", &dir.path("mine"), "--quiet"]);
    assert_eq!(json(0, &["report", &all])["runs"], 1);
    // A manifest of ours that is damaged, or of another format, is not passed over.
    let path = dir.0.join("mine/manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"format\": 2", "\"format\": 1")).unwrap();
    let (_, old) = expect(2, &["report", &all]);
    assert!(old.contains("result format 1, of an earlier version") && old.contains("reads format 2"), "{old}");
    assert!(expect(2, &["run", &file, "-o", &dir.path("mine"), "--resume"]).1.contains("result format 1"));
    std::fs::write(&path, &text[..text.len() / 2]).unwrap();
    assert!(expect(2, &["report", &all]).1.contains("mine/manifest.json"));
    expect(0, &["run", &file, "-o", &dir.path("mine"), "--force", "--quiet"]);
}

#[test]
fn what_did_not_finish_is_counted_and_listed_beside_queries_too() {
    let dir = Dir::new("cli-unfinished");
    let scenario = "[scenario]\nduration = \"2 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 5\n[pfc]\nenabled = true\n\
                    [record]\ncsv = true\n[[workload]]\nkind = \"incast\"\nsenders = 3\nreceiver = 4\nbytes = \"64 KB\"\nrounds = 3\n\
                    [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"10 MB\"\n";
    let out = dir.path("out");
    let figures = json(0, &["run", &dir.file("mixed.toml", scenario), "-o", &out]);
    assert_eq!((&figures["queries"]["finished"], &figures["queries"]["unfinished"]), (&3.into(), &0.into()));
    assert_eq!((&figures["flows"]["finished"], &figures["flows"]["unfinished"]), (&0.into(), &1.into()), "{figures}");
    let flows = std::fs::read_to_string(Path::new(&out).join("flows-00000.csv")).unwrap();
    let head: Vec<&str> = flows.lines().next().unwrap().split(',').collect();
    let column = |name: &str| head.iter().position(|c| *c == name).unwrap();
    let open: Vec<Vec<&str>> = flows
        .lines()
        .map(|l| l.split(',').collect())
        .filter(|row: &Vec<&str>| row[column("fct_ps")].is_empty())
        .collect();
    assert_eq!(open.len(), 1, "{flows}");
    assert_eq!((open[0][column("kind")], open[0][column("bytes")]), ("flow", "10000000"));
    assert!(open[0][column("delivered_bytes")].parse::<u64>().unwrap() > 0);
    let (table, _) = expect(0, &["run", &dir.path("mixed.toml")]);
    assert!(table.lines().any(|l| l.split_whitespace().take(3).eq(["flows", "0", "1"])), "{table}");
}

#[test]
fn a_sweep_tells_what_did_not_finish_and_of_flows_beside_queries() {
    let dir = Dir::new("cli-sweep-unfinished");
    // 3 x 64 KB take 160 us at 10 Gb/s, and 10 MB 8 ms.
    let scenario = "[scenario]\nduration = \"2 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 5\n[pfc]\nenabled = true\n\
                    [[workload]]\nkind = \"incast\"\nsenders = 3\nreceiver = 4\nbytes = \"64 KB\"\nrounds = 3\n\
                    [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"10 MB\"\n\
                    [sweep]\n\"workload.0.rounds\" = [3, 1000]\n";
    let (file, out) = (dir.file("mixed.toml", scenario), dir.path("out"));
    let (table, _) = expect(0, &["sweep", &file, "-o", &out]);
    let head = table.lines().find(|l| l.contains("unfinished")).unwrap();
    assert!(head.split_whitespace().take(4).eq(["workload.0.rounds", "rounds", "unfinished", "mean"]), "{table}");
    let starts =
        |words: &[&str]| table.lines().any(|l| l.split_whitespace().take(words.len()).eq(words.iter().copied()));
    assert!(starts(&["3", "3", "0"]), "{table}");
    assert!(table.contains("1 unfinished: times are of finished rounds alone, so they flatter."), "{table}");
    assert!(table.contains("Flows that belong to no query:"), "{table}");
    assert!(starts(&["3", "0", "1", "–"]) && starts(&["1000", "0", "1", "–"]), "{table}");
    let found = json(0, &["sweep", &file, "-o", &out, "--resume"]);
    assert_eq!(found["configurations"][0]["flows"]["unfinished"], 1, "{found}");
    let page = std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap();
    assert!(page.contains("<h1>No winner is named: 1 query had not finished"), "{page}");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let dir = Dir::new("cli-place");
    let file = dir.file("small.toml", SMALL);
    let taken = dir.file("taken", "a file where a directory should be");
    let below = format!("{taken}/x/y");
    for place in [&taken, &below] {
        for verb in [&["run", &file][..], &["sweep", &file], &["demo"]] {
            let (stdout, stderr) = expect(2, &[verb, &["-o", place]].concat());
            assert_eq!(stdout, "");
            let told = format!("error: {taken}: cannot put results here: this is a file, not a directory");
            assert!(stderr.contains(&told), "{verb:?}: {stderr}");
        }
    }
    // A folder in which nothing can be made, whoever asks.
    for place in ["/proc/self/fdinfo", "/proc/nowhere"] {
        let (_, stderr) = expect(2, &["run", &file, "-o", place]);
        assert!(stderr.contains("error: /proc/") && stderr.contains("cannot "), "{stderr}");
    }
    expect(0, &["run", &file, "-o", &dir.path("out"), "-q"]);
    assert!(expect(2, &["report", &dir.path("out"), "-o", &below]).1.contains("taken/x/y: cannot write"));
}

#[test]
fn runs_and_sweeps_do_not_overwrite_each_other() {
    let dir = Dir::new("cli-overwrite");
    let (small, other) =
        (dir.file("small.toml", SMALL), dir.file("other.toml", &SMALL.replace("\"small\"", "\"other\"")));
    let (run, sweep) = (dir.path("run"), dir.path("sweep"));
    expect(0, &["run", &small, "-o", &run, "-q"]);
    expect(0, &["sweep", &small, "-o", &sweep, "-q"]);
    let (run_before, sweep_before) = (records(&run), records(&sweep));
    let refused = |args: &[&str], what: &str| {
        let (stdout, stderr) = expect(2, args);
        assert_eq!(stdout, "");
        assert!(stderr.contains(what), "{args:?}: {stderr}");
        assert!(records(&run) == run_before && records(&sweep) == sweep_before, "{args:?}");
    };
    let (of_run, of_sweep) =
        ("already holds the result of small (seed 1, complete)", "already holds a sweep of small (4 runs)");
    refused(&["sweep", &small, "-o", &run], of_run);
    refused(&["sweep", &small, "-o", &run, "--resume"], of_run);
    refused(&["demo", "-o", &run, "--queries", "1"], of_run);
    refused(&["demo", "-o", &sweep, "--queries", "1"], of_sweep);
    refused(&["run", &small, "-o", &sweep], of_sweep);
    refused(&["run", &small, "-o", &sweep, "--resume"], of_sweep);
    refused(&["sweep", &other, "-o", &sweep], "already holds a result; --resume keeps what is complete");
    refused(&["sweep", &other, "-o", &sweep, "--resume"], of_sweep);
    // Another sweep's runs without its summary are not the demo's either.
    std::fs::remove_file(Path::new(&sweep).join("summary.json")).unwrap();
    let (_, stderr) = expect(2, &["demo", "-o", &sweep, "--queries", "1"]);
    assert!(stderr.contains("flow_control=LL: already holds the result of small"), "{stderr}");
    expect(0, &["sweep", &small, "-o", &sweep, "--resume", "-q"]);
    // Force replaces, and what is left is one thing.
    expect(0, &["run", &small, "-o", &sweep, "--force", "-q"]);
    same_files(&run, &{
        for entry in std::fs::read_dir(&sweep).unwrap().flatten().filter(|e| e.path().is_dir()) {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
        sweep.clone()
    });
    expect(0, &["sweep", &small, "-o", &run, "--force", "-q"]);
    assert!(!Path::new(&run).join("manifest.json").exists() && !Path::new(&run).join("flows-00000.parquet").exists());
    assert_eq!(json(0, &["report", &run])["runs"], 4);
}

#[test]
fn exit_codes_are_told_and_kept() {
    let help = expect(0, &["--help"]).0;
    let readme = std::fs::read_to_string(common::repository("README.md")).unwrap();
    for code in ["0", "1", "2", "130"] {
        assert!(help.lines().any(|l| l.split_whitespace().next() == Some(code)), "{code}: {help}");
        assert!(readme.contains(&format!("| {code} |")), "the README has no {code}");
    }
    // Of diff 1 says that results differ, and nothing else.
    let dir = Dir::new("cli-codes");
    let file = dir.file("small.toml", SMALL);
    let (run, sweep) = (dir.path("run"), dir.path("sweep"));
    expect(0, &["run", &file, "-o", &run, "-q"]);
    expect(0, &["sweep", &file, "-o", &sweep, "-q"]);
    assert!(expect(2, &["diff", &run, &sweep]).1.contains("run is a run"));
    let fewer = dir.path("fewer");
    expect(0, &["sweep", &file, "-o", &fewer, "-q", "--set", "sweep={\"tcp.congestion\"=[\"vegas\"]}"]);
    assert!(expect(2, &["diff", &sweep, &fewer]).1.contains("is in one of the two alone"));
    expect(2, &["diff", &run, &dir.path("absent")]);
    let part = Path::new(&run).join("flows-00000.parquet");
    std::fs::write(&part, b"PAR1").unwrap();
    assert!(expect(2, &["diff", &run, &run]).1.contains("flows-00000.parquet"));
}

#[test]
fn incast_at_line_rate_without_loss() {
    let figures = json(0, &["run", &repository("scenarios/incast-32.toml")]);
    assert_eq!((&figures["drops"], &figures["timeouts"]), (&Value::from(0), &Value::from(0)), "{figures}");
    assert_eq!(figures["queries"]["finished"], 100);
    assert!(figures["pauses"].as_u64().unwrap() > 1_000, "flow control does it, not buffers: {figures}");
    let (mean, bound) = (figures["mean_round_us"].as_f64().unwrap(), figures["bound_us"].as_f64().unwrap());
    let (table, _) = expect(0, &["run", &repository("scenarios/incast-32.toml"), "--quiet"]);
    assert!(!table.contains("-0"), "{table}");
    // A mean of picoseconds has six digits behind the point of a microsecond, however it was computed.
    for key in ["/queries/mean_us", "/mean_round_us", "/bound_us", "/queries/p999_us"] {
        let text = figures.pointer(key).unwrap().to_string();
        assert!(text.split_once('.').is_none_or(|(_, digits)| digits.len() <= 6), "{key}: {text}");
    }
    // On the wire a sender's 20,000 B are 21,260 B; 32 of them at 0.8 ns a byte.
    assert!(bound > 32.0 * 21.26 * 0.8 && bound < 550.0, "{bound}");
    assert!(mean >= bound * 0.999_999 && mean < bound * 1.01, "{mean} against {bound}");
}

#[test]
fn threads_that_only_meet_are_warned_of() {
    let dir = Dir::new("cli-window");
    let file = dir.file(
        "tiny.toml",
        "[topology]\nkind = \"single-switch\"\nhosts = 4\nlink_delay = \"1 ns\"\nlink_rate = \"100 Gb/s\"\n[adapter]\n\
         delay = \"0 s\"\n[switch]\ndelay = \"0 s\"\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"10 KB\"\n",
    );
    let (_, stderr) = expect(0, &["run", &file, "--threads", "2"]);
    assert!(stderr.contains("a window is ") && stderr.contains(" ns, as long as the shortest link"), "{stderr}");
    assert!(stderr.contains("tiny.toml:4") && stderr.contains("one thread will be faster than 2"), "{stderr}");
    assert!(!expect(0, &["run", &file]).1.contains("threads"));
    // A long link is worth meeting for.
    let (_, stderr) = expect(0, &["run", &file, "--threads", "2", "--set", "topology.link_delay=10 us"]);
    assert!(!stderr.contains("faster"), "{stderr}");
}

#[test]
fn one_seed_one_result_on_any_number_of_threads() {
    let dir = Dir::new("cli-threads");
    let file = dir.file("small.toml", SMALL);
    let (one, two, other) = (dir.path("one"), dir.path("two"), dir.path("other"));
    let figures = json(0, &["run", &file, "-o", &one, "--threads", "1", "--seed", "7"]);
    assert_eq!((&figures["seed"], &figures["queries"]["finished"]), (&Value::from(7), &Value::from(20)));
    assert_eq!(figures["left_out"], 4, "the warm-up's queries");
    assert_eq!(figures["status"], "complete");
    for key in ["simulated_us", "packet_hops", "cpu_s", "losses_virtual", "losses_physical", "pauses", "report"] {
        assert!(!figures[key].is_null(), "{key}: {figures}");
    }
    let (_, stderr) = expect(0, &["run", &file, "-o", &two, "--threads", "2", "--seed", "7"]);
    assert!(stderr.contains("sluicenet sweep"), "{stderr}");
    same_files(&one, &two);
    assert!(expect(0, &["diff", &one, &two]).0.starts_with("identical"));
    expect(0, &["run", &file, "-o", &other, "--seed", "8", "--quiet"]);
    let diff = json(1, &["diff", &one, &other]);
    assert_eq!(diff["identical"], false);
    assert!(Path::new(&one).join("report.html").exists());
    let log: Value = serde_json::from_str(&std::fs::read_to_string(Path::new(&one).join("run.json")).unwrap()).unwrap();
    assert_eq!((&log["threads"], &log["packet_hops"]), (&Value::from(1), &figures["packet_hops"]));
    assert!(log["cpu_seconds"].as_f64().unwrap() > 0.0 && log["wall_seconds"].as_f64().unwrap() > 0.0, "{log}");
    assert_eq!(log["cpu_seconds"], figures["cpu_s"]);
    // A result is not overwritten unasked.
    let (_, stderr) = expect(2, &["run", &file, "-o", &one, "--seed", "8"]);
    assert!(stderr.contains("--force"), "{stderr}");
    let kept = json(0, &["run", &file, "-o", &one, "--seed", "7", "--resume"]);
    assert_eq!(kept["packet_hops"], figures["packet_hops"]);
    expect(0, &["run", &file, "-o", &one, "--seed", "8", "--force"]);
    same_files(&one, &other);
    let page = dir.path("page.html");
    assert_eq!(expect(0, &["report", &one, "-o", &page]).0.trim(), page);
    assert!(std::fs::read_to_string(&page).unwrap().contains("<!"));
}

#[test]
fn a_sweep_is_the_same_on_any_number_of_workers_and_resumes() {
    let dir = Dir::new("cli-sweep");
    let file = dir.file("small.toml", SMALL);
    let (one, two) = (dir.path("one"), dir.path("two"));
    let first = json(0, &["sweep", &file, "-o", &one, "--workers", "1"]);
    let runs = first["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    assert_eq!(runs[1]["axes"], serde_json::json!([["congestion", "newreno"], ["flow_control", "ZZ"]]));
    assert_eq!(first["lost_where_none_may_be"], 0);
    // What the table shows is there: the gain of ZZ over LL too.
    let mean = |i: usize| runs[i]["queries"]["mean_us"].as_f64().unwrap();
    assert_eq!(runs[0]["gain"], 1.0);
    assert!((runs[1]["gain"].as_f64().unwrap() - mean(0) / mean(1)).abs() < 1e-9, "{}", runs[1]);
    let (table, _) = expect(0, &["sweep", &file, "-o", &two, "--workers", "2"]);
    assert!(table.contains("vegas") && table.contains("gain"), "{table}");
    // The warm-up is counted in.
    let row = table.lines().find(|l| l.contains("newreno") && l.contains("LL")).unwrap();
    let shown: Vec<String> = row.split_whitespace().rev().skip(1).take(4).map(|n| n.replace(',', "")).collect();
    let keys = ["losses_physical", "losses_virtual", "retransmissions", "timeouts"];
    assert_eq!(shown, keys.map(|k| runs[0][k].to_string()), "{table}");
    let (_, told) = expect(2, &["sweep", &file, "-o", &two, "--set", "tcp.congestion=cubic", "--force"]);
    assert!(told.contains("`tcp.congestion` is set here, and [sweep] varies it"), "{told}");
    same_files(&one, &two);
    assert!(expect(0, &["diff", &one, &two]).0.contains("identical"));
    expect(2, &["sweep", &file, "-o", &one]);
    // One run gone, one killed half-way: both are made again, the others are kept.
    let gone = Path::new(&two).join("congestion=newreno,flow_control=ZZ");
    let kept = Path::new(&two).join("congestion=vegas,flow_control=ZZ/flows-00000.parquet");
    let before = std::fs::metadata(&kept).unwrap().modified().unwrap();
    std::fs::remove_dir_all(&gone).unwrap();
    let half = Path::new(&two).join("congestion=newreno,flow_control=LL/manifest.json");
    let text = std::fs::read_to_string(&half).unwrap();
    std::fs::write(&half, text.replace("\"complete\"", "\"running\"")).unwrap();
    std::fs::remove_file(Path::new(&two).join("summary.json")).unwrap();
    let again = json(0, &["sweep", &file, "-o", &two, "--resume"]);
    assert_eq!(again["runs"].as_array().unwrap().len(), 4);
    same_files(&one, &two);
    assert_eq!(std::fs::metadata(&kept).unwrap().modified().unwrap(), before);
    for name in ["report.html", "summary.json"] {
        assert!(Path::new(&two).join(name).exists(), "{name}");
    }
    assert!(expect(0, &["report", &two]).0.contains("report.html"));
}

#[test]
fn seeds_of_a_sweep_are_one_configuration() {
    let dir = Dir::new("cli-seeds");
    let file = dir
        .file("small.toml", &SMALL.replace("\"tcp.congestion\"", "\"scenario.seed\" = [1, 2, 3]\n\"tcp.congestion\""));
    let out = dir.path("out");
    let found = json(0, &["sweep", &file, "-o", &out]);
    let (runs, configurations) = (found["runs"].as_array().unwrap(), found["configurations"].as_array().unwrap());
    assert_eq!((runs.len(), configurations.len()), (12, 4));
    assert_eq!((&runs[4]["seed"], &runs[4]["axes"]), (&Value::from(2), &runs[0]["axes"]));
    let first = &configurations[0];
    assert_eq!(first["seeds"], serde_json::json!([1, 2, 3]));
    assert_eq!(first["axes"], serde_json::json!([["congestion", "newreno"], ["flow_control", "LL"]]));
    let means: Vec<f64> = [0, 4, 8].map(|i| runs[i]["queries"]["mean_us"].as_f64().unwrap()).to_vec();
    let mean = means.iter().sum::<f64>() / 3.0;
    let deviation = (means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
    let half_width = first["mean_half_width_us"].as_f64().unwrap();
    assert!((first["mean_us"].as_f64().unwrap() - mean).abs() < 1e-6);
    // Student's t of two degrees of freedom.
    assert!((half_width - 4.303 * deviation / 3f64.sqrt()).abs() < 1e-6 * half_width, "{half_width} {deviation}");
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(dir.0.join("out/summary.json")).unwrap()).unwrap();
    assert_eq!(saved["configurations"], found["configurations"]);
    let (table, _) = expect(0, &["sweep", &file, "-o", &out, "--resume"]);
    let rows: Vec<&str> = table.lines().filter(|l| l.contains("newreno") || l.contains("vegas")).collect();
    assert_eq!(rows.len(), 4, "{table}");
    assert!(table.contains("± 95 %") && table.contains("Student's t"), "{table}");
    let page = std::fs::read_to_string(dir.0.join("out/report.html")).unwrap();
    assert!(page.contains("&#177; 95") && page.contains("<dt>runs</dt><dd>12</dd>"));
}

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_readable_records() {
    let dir = Dir::new("cli-interrupt");
    dir.file("sizes.txt", "1000 0\n100000 100\n");
    let file = dir.file("endless.toml", ENDLESS);
    let out = dir.path("out");
    let child = command(&["run", &file, "-o", &out]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let manifest = Path::new(&out).join("manifest.json");
    let patience = std::time::Instant::now();
    while !manifest.exists() {
        assert!(patience.elapsed().as_secs() < 60, "the run does not begin");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let ended = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("readable"), "{stderr}");
    let manifest: Value = serde_json::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
    assert!(manifest["status"].as_str().unwrap().starts_with("interrupted at "), "{}", manifest["status"]);
    assert!(!records(&out).is_empty());
    expect(0, &["report", &out]);
    expect(0, &["diff", &out, &out]);
}

#[cfg(unix)]
#[test]
fn a_kill_leaves_what_was_flushed_and_every_verb_says_so() {
    let dir = Dir::new("cli-kill");
    dir.file("sizes.txt", "1000 0\n100000 100\n");
    let file = dir.file("endless.toml", &format!("{ENDLESS}part_rows = 1000\n"));
    let out = dir.path("out");
    let mut child = command(&["run", &file, "-o", &out, "--quiet"]).spawn().unwrap();
    let part = Path::new(&out).join("queues-00003.parquet");
    let patience = std::time::Instant::now();
    while !part.exists() {
        assert!(patience.elapsed().as_secs() < 60, "the run does not begin");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // SIGKILL: nothing is told, nothing is closed.
    child.kill().unwrap();
    child.wait().unwrap();
    let manifest: Value =
        serde_json::from_str(&std::fs::read_to_string(Path::new(&out).join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["status"], "running");
    let (_, said) = expect(0, &["report", &out]);
    assert!(said.contains("was killed"), "{said}");
    assert!(std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap().contains("Its results are partial"));
    let (table, said) = expect(0, &["diff", &out, &out]);
    assert!(
        table.starts_with("identical: ") && !table.contains(" 0 rows") && said.contains("was killed"),
        "{table}{said}"
    );
}

#[test]
fn scenarios_are_valid_and_run_when_cut_short() {
    let brief = |queries: u32| format!("workload.0.queries={queries}");
    let (some, none) = (brief(12), "workload.0.warmup_queries=2");
    for name in ["fig-2-14", "fig-2-15", "fig-4-14", "fig-4-15"] {
        let file = repository(&format!("scenarios/crisan2014/{name}.toml"));
        let found = json(0, &["validate", &file]);
        assert!(
            found["variants"].as_u64().unwrap() >= 6 && found["warnings"].as_array().unwrap().is_empty(),
            "{found}"
        );
        let figures = json(0, &["run", &file, "--set", &some, "--set", none, "--quiet"]);
        assert_eq!(figures["queries"]["finished"], 10, "{name}");
    }
    let hotspot = repository("scenarios/crisan2014/fig-2-12.toml");
    let short = ["run", &hotspot, "--set", "scenario.duration=112 ms"];
    let lossless = json(0, &[&short[..], &["--set", "pfc.enabled=true"]].concat());
    assert_eq!((&lossless["drops"], &lossless["timeouts"]), (&Value::from(0), &Value::from(0)), "{lossless}");
    let lossy = json(0, &short);
    assert!(lossy["drops"].as_u64().unwrap() > 0, "{lossy}");
}

#[test]
fn the_demo_checks_itself() {
    let dir = Dir::new("cli-demo");
    let out = dir.path("demo");
    let (table, _) = expect(0, &["demo", "-o", &out, "--queries", "4", "--quiet"]);
    assert!(table.contains("no packet lost where none may be"), "{table}");
    // Said because it is so in this very table.
    let row = |name: &str| {
        let of = |l: &&str| l.contains("newreno") && l.contains(name);
        table.lines().find(of).unwrap().split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("LL") == row("ZL"), table.contains("ZL equals LL"), "{table}");
    for word in ["LL", "LZ", "ZL", "ZZ", "newreno", "cubic", "vegas", "p99.9", "timeouts", "report.html"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    assert!(Path::new(&out).join("report.html").exists());
    let found = json(0, &["demo", "-o", &out, "--queries", "4"]);
    let runs = found["runs"].as_array().unwrap();
    assert_eq!((runs.len(), &found["lost_where_none_may_be"]), (12, &Value::from(0)), "{found}");
    for key in ["queries", "losses_virtual", "losses_physical", "gain", "records"] {
        assert!(runs.iter().all(|r| !r[key].is_null()), "{key}: {found}");
    }
}

#[test]
fn a_page_tells_the_world_and_a_command_that_works() {
    let dir = Dir::new("cli-page");
    let file = dir.file("a small one.toml", SMALL);
    let page = |out: &str| std::fs::read_to_string(Path::new(out).join("report.html")).unwrap();
    let again = |out: &str| {
        let page = page(out);
        let command = page.split_once("<pre>").unwrap().1.split_once("</pre>").unwrap().0;
        command
            .replace("&#39;", "'")
            .replace("&quot;", "\"")
            .replace("&gt;", ">")
            .replace("&lt;", "<")
            .replace("&amp;", "&")
    };
    let (run, sweep, demo) = (dir.path("run"), dir.path("sweep"), dir.path("demo"));
    expect(0, &["run", &file, "-o", &run, "-q", "--set", "scenario.name=\"it's\""]);
    expect(0, &["sweep", &file, "-o", &sweep, "-q"]);
    expect(0, &["demo", "-o", &demo, "-q", "--queries", "2"]);
    for out in [&run, &sweep, &demo] {
        let (command, before) = (again(out), records(out));
        let done = Command::new("sh").args(["-c", &command]).output().unwrap();
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
        assert!(records(out) == before && again(out) == command, "{command}");
        // Made anew from the records, the page still says it.
        expect(0, &["report", out]);
        assert_eq!(again(out), command);
    }
    let page = page(&demo);
    for text in [
        "256 virtualised servers of 4 machines each",
        "each of the 16 chassis of 16 servers",
        "Every message is 20 KB.",
        "the first 50 warm up, and times leave them out",
        "<dt>gain</dt>",
        "<dt>subquery</dt>",
        "<dt>aggregate</dt>",
        "<dt>lost</dt><dd>frames",
        "<dt>resent</dt><dd>TCP segments",
        "The queue of a server is its adapter",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.contains("\u{202f}KB") && !page.contains("kB"), "one spelling of a unit");
}

#[test]
fn the_benchmark_says_how_it_is_used() {
    let out = Command::new(repository("bench/run")).arg("--help").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.contains("bench/run [COMMAND]") && text.contains("SIZES="), "{text}");
    assert!(!text.contains("pipefail"), "{text}");
}

#[test]
fn the_other_verbs() {
    let dir = Dir::new("cli-others");
    let pairs: String = (0..16).map(|i| format!("{i} {}\n", (i + 8) % 16)).collect();
    let perm = dir.file("perm.txt", &pairs);
    let figures = json(0, &["bench", "ft", "--k", "4", "--perm", &perm, "--ms", "1", "--pfc"]);
    for key in ["packet_hops", "cpu_s", "packet_hops_per_cpu_s", "peak_rss_bytes", "drops", "goodput_gbps"] {
        assert!(figures[key].is_number(), "{key}: {figures}");
    }
    assert_eq!(figures["drops"], 0);
    let found = json(0, &["doctor"]);
    assert!(found.as_array().unwrap().iter().any(|f| f["name"] == "cores"), "{found}");
    let schema: Value = serde_json::from_str(&expect(0, &["schema"]).0).unwrap();
    assert!(schema["properties"]["topology"].is_object());
    let valid = json(0, &["validate", &repository("scenarios/incast-32.toml")]);
    assert_eq!((&valid["hosts"], &valid["switches"], &valid["links"]), (&33.into(), &1.into(), &33.into()));
    assert!(valid["links_by_kind"][0]["headroom_bytes"].as_u64().unwrap() > 3160);
    let fat = dir.file("small.toml", SMALL.split("[sweep]").next().unwrap());
    let xoff = ["validate", &fat, "--set", "pfc.enabled=true", "--set", "pfc.xoff=60 KB", "--set", "pfc.xon=50 KB"];
    let (told, _) = expect(0, &xoff);
    assert!(
        told.contains("512,000 B") && told.contains("the receive buffer of its adapter\n  (adapter.buffer)"),
        "{told}"
    );
    let (told, _) = expect(0, &["validate", &fat, "--set", "pfc.enabled=false"]);
    assert!(!told.contains("adapter.buffer"), "{told}");
}

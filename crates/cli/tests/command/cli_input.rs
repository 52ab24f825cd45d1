//! Input that the command refuses: usage, input, places; each with one clear error and exit code 2.

use crate::command::{SMALL, expect, json, records, repository, same_files};
use sluicenet_testkit::Dir;
use std::path::Path;
use std::process::Command;

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
    dir.file(
        "four.topo",
        &std::fs::read_to_string(sluicenet_testkit::repository("crates/scenario/tests/data/small.topo")).unwrap(),
    );
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
        (
            "no such port",
            format!("{network}{flow}[[slowdown]]\nport = \"switch 0 port 4\"\nrate = \"1 Gb/s\"\n"),
            "bad.toml:10:8",
        ),
        (
            "members of no chassis",
            "[topology]\nkind = \"htsim\"\nfile = \"four.topo\"\n[[workload]]\nkind = \"background\"\nflow_size = \"1 KB\"\n\
             inter_arrival = \"1 ms\"\nmembers = [0, 0]\n"
                .into(),
            "a chassis in a topology file is the whole network",
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
    for (k, why) in [("5", "even"), ("0", "even"), ("4294967294", "90 is the most")] {
        assert!(expect(2, &["bench", "hedera", "--k", k, "--flows", "10"]).1.contains(why));
    }
}

#[test]
fn warnings_are_told_before_the_error_that_follows() {
    let dir = Dir::new("cli-warned");
    let simai = std::fs::read_to_string(repository("crates/scenario/tests/data/simai-16.txt")).unwrap();
    dir.file("simai.txt", &simai.replace("28 8 2 10 48", "28 8 2 10 30"));
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n";
    let cut = dir.file("cut.toml", &format!("[topology]\nkind = \"hpcc\"\nfile = \"simai.txt\"\n{flow}"));
    // A warning of the scenario, and an error of its sweep.
    let tree = "[topology]\nkind = \"fat-tree\"\nk = 4\n";
    let swept = dir.file("swept.toml", &format!("{tree}{flow}[sweep]\n\"workload.0.dst\" = [1, 99]\n"));
    let out = dir.path("out");
    for (file, warning, error) in [
        (&cut, "warning: simai.txt:33: the header says 30 links", "error: simai.txt: the network falls apart"),
        (&swept, "`routing` is \"hash\" (ECMP) by default", "error: there is no host 99"),
    ] {
        for verb in [&["validate"][..], &["sweep", "-o", &out]] {
            let (_, stderr) = expect(2, &[verb, &[file]].concat());
            let (warned, failed) = (stderr.find(warning), stderr.find(error));
            assert!(warned.is_some() && warned < failed && stderr.matches(warning).count() == 1, "{stderr}");
            let (_, stderr) = expect(2, &[verb, &[file, "-q"]].concat());
            assert!(stderr.contains(error) && !stderr.contains("warning"), "{stderr}");
        }
    }
}

#[test]
fn the_bytes_that_a_load_counts_are_told() {
    let dir = Dir::new("cli-load");
    dir.file("sizes.txt", "0 0\n1000 100\n");
    let network = "[topology]\nkind = \"single-switch\"\nhosts = 4\n";
    let load = |keys: &str| {
        let load =
            format!("[[workload]]\nkind = \"poisson\"\ncdf = \"sizes.txt\"\nload = 0.6\nuntil = \"1 ms\"\n{keys}");
        let file = dir.file("load.toml", &format!("{network}{load}"));
        let told = expect(0, &["validate", &file]).0;
        told.lines().find(|line| line.trim_start().starts_with("load ")).unwrap_or(&told).to_owned()
    };
    assert!(load("").ends_with("60 % of every host's link (payload)"), "{}", load(""));
    assert!(load("load_basis = \"wire\"\n").ends_with("60 % of every host's link (wire)"));
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

#[cfg(target_os = "linux")]
#[test]
fn four_million_hosts_are_refused_where_a_gigabyte_is_available() {
    let dir = Dir::new("cli-memory");
    let text =
        "[topology]\nkind = \"fat-tree\"\nk = 256\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 9\nbytes = \"1 KB\"\n";
    let file = dir.file("large.toml", text);
    for verb in ["run", "validate"] {
        let limited = format!("ulimit -v 1048576; exec {} {verb} {file}", env!("CARGO_BIN_EXE_sluicenet"));
        let out = Command::new("sh").args(["-c", &limited]).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{said}");
        let memory = "4194304 hosts, 81920 switches and 25165824 ports need 2.4 GB of memory before the first frame";
        assert!(said.contains(memory) && said.contains(" are available"), "{said}");
        assert!(said.contains("large.toml:3") && said.contains("help: "), "{said}");
    }
    let told = expect(0, &["validate", &dir.file("small.toml", &text.replace("256", "4"))]).0;
    assert!(told.contains(" MB before the first frame"), "{told}");
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
        assert!(expect(2, verb).1.contains("holds no result: neither it nor a folder in it has a manifest.json"));
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
    // A folder in which nobody can make anything, not even root.
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
    // `--force` replaces the results, and only the new result is left.
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
fn what_only_the_simulator_has_is_refused_on_a_testbed() {
    let dir = Dir::new("cli-world");
    let file = dir.file("s.toml", SMALL);
    for (words, why) in
        [(["--threads", "2"], "--threads: an option of the simulator"), (["-o", "d"], "-o: only the simulator")]
    {
        let run = ["run", &file, "--world", "testbed", words[0], words[1]];
        let said = expect(2, &run).1;
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn exit_codes_are_told_and_kept() {
    let help = expect(0, &["--help"]).0;
    let readme = std::fs::read_to_string(sluicenet_testkit::repository("README.md")).unwrap();
    for code in ["0", "1", "2", "130"] {
        assert!(help.lines().any(|l| l.split_whitespace().next() == Some(code)), "{code}: {help}");
        assert!(readme.contains(&format!("| {code} |")), "the README has no {code}");
    }
    // Exit code 1 of `diff` says that results differ, and nothing else.
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
fn a_cell_that_cannot_be_built_is_refused_before_the_first_runs() {
    let dir = Dir::new("cli-unbuildable");
    let network = "[topology]\nkind = \"single-switch\"\nhosts = 2\n[pfc]\nenabled = true\nheadroom = \"1 KB\"\n";
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n";
    let sweep = "[sweep]\n\"pfc.quanta\" = [65535, 65534, 1]\n";
    let file = dir.file("quanta.toml", &format!("{network}{flow}{sweep}"));
    let (out, job) = (dir.path("out"), dir.path("job"));
    for how in [&[][..], &["--workers", "1"], &["--resume"], &["--shard", "1/1"], &["--slurm", &job]] {
        let (_, stderr) = expect(2, &[&["sweep", &file, "-o", &out], how].concat());
        let warned = stderr.find("1000 B of headroom are fewer than");
        let failed = stderr.find("error: a pause of 1 quanta runs out");
        assert!(warned.is_some() && warned < failed && stderr.contains("in the variant quanta=1"), "{how:?}: {stderr}");
        assert_eq!(stderr.matches("of headroom are fewer").count(), 1, "{how:?}: {stderr}");
        assert!(!dir.0.join("out").exists() && !dir.0.join("job").exists(), "{how:?}");
    }
}

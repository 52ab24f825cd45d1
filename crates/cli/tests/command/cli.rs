//! The command line as a user meets it: the built binary, its exit codes, its JSON, its files.

use crate::command::{SMALL, expect, json, repository, same_files};
use serde_json::Value;
use sluicenet_testkit::Dir;
use std::path::Path;
use std::process::Command;

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

/// Output that cannot be written is an error, once, for every command. A reader that leaves (`| head`) is no error.
#[test]
fn a_full_disk_on_stdout_is_an_error() {
    if !Path::new("/dev/full").exists() {
        eprintln!("skipped: there is no /dev/full");
        return;
    }
    let dir = Dir::new("cli-full");
    let (small, table) = (dir.file("small.toml", SMALL), repository("scenarios/alfares2012/table-3-1.toml"));
    let prices = repository("scenarios/alfares2012/prices-2008.toml");
    let seed = "sweep.\"scenario.seed\"=[1]";
    let commands: [&[&str]; 12] = [
        &["fabric", "describe", "--k", "4"],
        &["fabric", "describe", "--k", "4", "--json"],
        &["fabric", "tables", "--k", "16"],
        &["fabric", "tables", "--k", "16", "--json"],
        &["fabric", "cost", "--k", "48", "--prices", &prices],
        &["fabric", "cables", "--k", "48"],
        &["fabric", "export", "--k", "16", "--format", "ovs"],
        &["bench", "hedera", "--k", "4", "--flows", "16", "--turns", "1", "--json"],
        &["run", &table, "--level", "flow", "-q", "--set", "workload.0.pattern=stride(1)", "--set", seed],
        &["run", &small, "-q", "--json"],
        &["validate", &small],
        &["schema"],
    ];
    for args in commands {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let out = crate::command::command(args).stdout(full).output().unwrap();
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {stderr}");
        assert_eq!(stderr.matches("cannot write").count(), 1, "{args:?}: {stderr}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let out = crate::command::command(args).stdout(writer).output().unwrap();
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success() && !stderr.contains("error"), "{args:?}: {stderr}");
    }
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
    for seed in ["-1", "x", "18446744073709551616"] {
        let (_, stderr) = expect(2, &["run", &file, "-o", &one, "--seed", seed]);
        assert!(stderr.contains("from 0 to 18446744073709551615"), "{stderr}");
    }
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
fn the_dialect_of_a_topology_file_is_told() {
    let dir = Dir::new("cli-dialect");
    std::fs::copy(repository("crates/scenario/tests/data/powertcp-8.txt"), dir.path("net.txt")).unwrap();
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 4\nbytes = \"1 MB\"\n";
    let file = dir.file("a.toml", &format!("[topology]\nkind = \"hpcc\"\nfile = \"net.txt\"\n{flow}"));
    let dialect = "net.txt, read as PowerTCP (nodes switches tors links)";
    assert!(expect(0, &["validate", &file]).0.contains(dialect));
    assert_eq!(json(0, &["validate", &file])["topology_file"], dialect);
    let out = dir.path("out");
    expect(0, &["run", &file, "-o", &out]);
    let manifest = std::fs::read_to_string(format!("{out}/manifest.json")).unwrap();
    assert!(manifest.contains(dialect));
    assert_eq!(serde_json::from_str::<Value>(&manifest).unwrap()["defaults"], 2);
    dir.file("net.txt", "12 4 2 12\n8 9 10 11\n0 8 25Gbit 1us 0\n");
    let (_, wrong) = expect(2, &["validate", &file]);
    assert!(wrong.contains("net.txt:3:5") && wrong.contains("(read as a topology of PowerTCP:"), "{wrong}");
}

#[test]
fn quiet_commands_print_no_warnings() {
    let dir = Dir::new("cli-quiet");
    // 60 % at 2:1 oversubscription, which a run finds, and a changed default, which the file shows.
    dir.file("sizes.txt", "9999 0\n10000 100\n");
    let scenario = "[topology]\nkind = \"xgft\"\nm = [4, 4]\nw = [1, 2]\n[[workload]]\nkind = \"poisson\"\ncdf = \"sizes.txt\"\n\
                    load = 0.8\nuntil = \"100 us\"\n[sweep]\n\"scenario.seed\" = [1, 2]\n";
    let file = dir.file("a.toml", scenario);
    for (verb, out) in [("run", None), ("sweep", Some("one"))] {
        let out = out.map(|name| dir.path(name));
        let mut args = vec![verb, &file];
        args.extend(out.iter().flat_map(|out| ["-o", out]));
        let (_, told) = expect(0, &args);
        assert!(told.contains("this load is") && told.contains("by default"), "{verb}: {told}");
        args.extend(if out.is_some() { vec!["--force", "-q"] } else { vec!["-q"] });
        assert_eq!(expect(0, &args).1, "", "{verb}");
    }
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
    let figures = json(0, &["bench", "hedera", "--k", "4", "--flows", "30", "--turns", "1"]);
    for key in ["demand_ms", "demand_1_ms", "annealing_ms", "placement_us", "state_bytes"] {
        assert!(figures[key].is_number(), "{key}: {figures}");
    }
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

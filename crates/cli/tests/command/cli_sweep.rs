//! Sweeps and the demo as a user meets them: tables, seeds, workers, resuming, pages.

use crate::command::{SMALL, expect, json, records, repository, same_files};
use serde_json::Value;
use sluicenet_testkit::Dir;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

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
fn a_sweep_is_the_same_on_any_number_of_workers_and_resumes() {
    let dir = Dir::new("cli-sweep");
    let file = dir.file("small.toml", SMALL);
    let (one, two) = (dir.path("one"), dir.path("two"));
    let first = json(0, &["sweep", &file, "-o", &one, "--workers", "1"]);
    let runs = first["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    assert_eq!(runs[1]["axes"], serde_json::json!([["congestion", "newreno"], ["flow_control", "ZZ"]]));
    assert_eq!(first["lost_where_none_may_be"], 0);
    // The values of the table are there, the gain of ZZ over LL too.
    let mean = |i: usize| runs[i]["queries"]["mean_us"].as_f64().unwrap();
    assert_eq!(runs[0]["gain"], 1.0);
    assert!((runs[1]["gain"].as_f64().unwrap() - mean(0) / mean(1)).abs() < 1e-9, "{}", runs[1]);
    let (table, _) = expect(0, &["sweep", &file, "-o", &two, "--workers", "2"]);
    assert!(table.contains("vegas") && table.contains("gain"), "{table}");
    // The warm-up is counted in.
    let row = table.lines().find(|l| l.contains("newreno") && l.contains("LL")).unwrap();
    let reasons: BTreeSet<&String> =
        runs.iter().flat_map(|run| run["drops_by_reason"].as_object().unwrap().keys()).collect();
    assert!(!reasons.is_empty(), "{first}");
    let mut wanted =
        ["timeouts", "retransmissions", "losses_virtual", "losses_physical"].map(|k| runs[0][k].to_string()).to_vec();
    let of = |reason: &&String| runs[0]["drops_by_reason"][*reason].as_u64().unwrap_or(0).to_string();
    wanted.extend((reasons.len() > 1).then(|| runs[0]["drops"].to_string()));
    wanted.extend(reasons.iter().map(of));
    wanted.push(runs[0]["pauses"].to_string());
    let columns: Vec<String> = row.split_whitespace().map(|n| n.replace(',', "")).collect();
    // The gain comes last.
    assert_eq!(columns[columns.len() - 1 - wanted.len()..columns.len() - 1], wanted, "{table}");
    let configuration = &first["configurations"][0];
    assert_eq!((&configuration["drops"], &configuration["pauses"]), (&runs[0]["drops"], &runs[0]["pauses"]));
    assert_eq!(configuration["drops_by_reason"], runs[0]["drops_by_reason"]);
    let page = std::fs::read_to_string(Path::new(&one).join("report.html")).unwrap();
    for reason in reasons {
        assert!(page.contains(&format!(">{reason}</th>")), "{reason}");
    }
    // The same four are checked before they run.
    let valid = json(0, &["validate", &file]);
    let cells = valid["cells"].as_array().unwrap();
    let names: Vec<_> = cells.iter().map(|cell| (&cell["folder"], &cell["flow_control"])).collect();
    assert_eq!(names.len(), 4);
    assert_eq!(names[1], (&Value::from("congestion=newreno,flow_control=ZZ"), &Value::from("ZZ")));
    let (told, _) = expect(0, &["validate", &file]);
    assert!(told.lines().any(|l| l.contains("congestion=vegas flow_control=LL")), "{told}");
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

/// A figure over two axes, seeds together, beside a source's.
#[test]
fn run_shows_the_tables_of_a_scenario() {
    let dir = Dir::new("cli-tables");
    let scenario = "[scenario]\nlevel = \"flow\"\nduration = \"20 ms\"\nwarmup = \"10 ms\"\n\
                    [topology]\nkind = \"fat-tree\"\nk = 4\nlink_rate = \"1 Gb/s\"\n\
                    [[workload]]\nkind = \"permutation\"\npattern = \"stride(4)\"\n\
                    [sweep]\n\"workload.0.pattern\" = [\"stride(1)\", \"stride(4)\"]\n\
                    \"topology.routing\" = [\"hash\", \"non-blocking\"]\n\"scenario.seed\" = [1, 2, 3]\n\
                    [[table]]\ntitle = \"Strides\"\nfigure = \"bandwidth\"\nrows = \"workload.0.pattern\"\n\
                    columns = \"topology.routing\"\nsource = [[99.5, 100.0], [50.0, 90.0]]\n";
    let file = dir.file("strides.toml", scenario);
    let found = json(0, &["run", &file]);
    assert_eq!((&found["runs"], &found["level"]), (&12.into(), &"flow".into()), "{found}");
    let cells = found["tables"][0]["cells"].as_array().unwrap();
    let at: Vec<_> = cells.iter().map(|c| (c["row"].as_str().unwrap(), c["column"].as_str().unwrap())).collect();
    let [one, four] = ["stride(1)", "stride(4)"];
    assert_eq!(at, [(one, "hash"), (one, "non-blocking"), (four, "hash"), (four, "non-blocking")]);
    let number = |cell: usize, key: &str| cells[cell][key].as_f64().unwrap();
    for (cell, source) in [99.5, 100.0, 50.0, 90.0].into_iter().enumerate() {
        let (mean, worst) = (number(cell, "mean"), number(cell, "worst"));
        assert!(mean <= 100.1 && worst <= mean + 1e-9 && number(cell, "seeds") == 3.0, "{cell}: {found}");
        assert_eq!(number(cell, "source"), source);
        assert!((number(cell, "difference") - (mean - source)).abs() < 1e-9);
    }
    assert!(number(2, "mean") < 90.0 && number(3, "mean") > 99.9, "{found}");
    let (text, _) = expect(0, &["run", &file]);
    for part in ["Strides: bandwidth in", "3 seeds", "here", "source", "worst", "non-blocking", "12 runs"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The remaining values of an axis are shown beside the source's remaining values; `-o` records one run only.
#[test]
fn a_table_of_fewer_values_is_a_table() {
    let file = repository("scenarios/alfares2012/table-3-1.toml");
    let run = |more: &[&str]| {
        let all = ["run", &file, "--level", "flow", "-q", "--set", "sweep.\"scenario.seed\"=[1, 2]"];
        json(0, &[&all[..], more].concat())
    };
    let rows = "sweep.workload.0.pattern=[\"stride(4)\", \"random\", \"stride(3)\"]";
    let found = run(&["--set", "sweep.\"topology.routing\"=[\"two-level\", \"flow-classifier\"]", "--set", rows]);
    assert_eq!(found["runs"], 12, "{found}");
    let cells = found["tables"][0]["cells"].as_array().unwrap();
    let sources: Vec<_> = cells.iter().map(|c| (c["row"].as_str().unwrap(), c["source"].as_f64())).collect();
    let [four, random, three] = ["stride(4)", "random", "stride(3)"];
    let hundred = Some(100.0);
    assert_eq!(
        sources,
        [(four, hundred), (four, hundred), (random, Some(75.0)), (random, Some(76.3)), (three, None), (three, None)]
    );
    assert!(cells.iter().all(|c| c["seeds"] == 2 && c["mean"].as_f64().is_some()), "{found}");
    // One column, which is fixed.
    let found = run(&["--set", "topology.routing=hierarchical", "--set", "workload.0.pattern=stride(1)"]);
    let cells = found["tables"][0]["cells"].as_array().unwrap();
    assert_eq!((cells.len(), &cells[0]["column"], &cells[0]["seeds"]), (1, &"hierarchical".into(), &2.into()));
    assert_eq!(cells[0]["source"], 100.0);

    let dir = Dir::new("cli-table-output");
    let out = dir.path("out");
    let (_, stderr) = expect(2, &["run", &file, "--level", "flow", "-o", &out]);
    assert!(stderr.contains("-o records one run") && stderr.contains("have 4000:"), "{stderr}");
    assert!(stderr.contains("sluicenet sweep") && !Path::new(&out).exists(), "{stderr}");
    let one = ["topology.routing=two-level", "workload.0.pattern=stride(1)", "scenario.seed=1"];
    let sets = one.into_iter().flat_map(|set| ["--set", set]);
    let all: Vec<&str> = ["run", &file, "--level", "flow", "-o", &out].into_iter().chain(sets).collect();
    assert_eq!(json(0, &all)["status"], "complete");
}

//! A sweep in parts: shards beside each other, as tasks of a job array, gathered into what one process would have written.

use crate::command::{SMALL, command, expect, json, records, same_files};
use sluicenet_testkit::Dir;
use std::path::Path;
use std::process::{Command, Stdio};

/// A sweep by one process, which tests compare with.
fn whole(dir: &Dir, file: &str) -> String {
    let out = dir.path("whole");
    expect(0, &["sweep", file, "-o", &out]);
    out
}

#[test]
fn parts_gather_to_the_bytes_of_one_process() {
    let dir = Dir::new("cli-parts");
    let file = dir.file("small.toml", SMALL);
    let (one, out) = (whole(&dir, &file), dir.path("out"));
    let part = |number: u32| format!("{number}/3");
    let first = json(0, &["sweep", &file, "-o", &out, "--shard", &part(1)]);
    assert_eq!((first["runs"].as_array().unwrap().len(), &first["runs"][0]["status"]), (2, &"complete".into()));
    // What is missing is named, with the work that is left.
    let (_, stderr) = expect(1, &["sweep", &file, "-o", &out, "--gather"]);
    assert!(stderr.contains("2 of 4 runs have ended, 0 have begun; about"), "{stderr}");
    assert!(stderr.matches(&format!("missing: {out}/congestion=")).count() == 2, "{stderr}");
    assert!(!Path::new(&out).join("summary.json").exists());
    // The others run beside each other.
    let beside: Vec<_> = [2, 3]
        .map(|number| command(&["-q", "sweep", &file, "-o", &out, "--shard", &part(number)]))
        .map(|mut command| command.stdout(Stdio::null()).spawn().unwrap())
        .into();
    for mut process in beside {
        assert!(process.wait().unwrap().success());
    }
    let page = |dir: &str| std::fs::read_to_string(Path::new(dir).join("report.html")).unwrap().replace(dir, "DIR");
    for quiet in [&["-q"][..], &[]] {
        let (table, _) = expect(0, &[quiet, &["sweep", &file, "-o", &out, "--gather"]].concat());
        assert!(table.contains("small, 4 runs") && table.contains("gain"), "{table}");
        same_files(&one, &out);
        assert_eq!(page(&one), page(&out));
    }
    // The parts agree on their command, so the page that is written again has it too.
    expect(0, &["report", &out]);
    assert_eq!(page(&one), page(&out));
    for wrong in ["0/3", "4/3", "3"] {
        assert!(expect(2, &["sweep", &file, "-o", &out, "--shard", wrong]).1.contains("K/N with K from 1 to N"));
    }
}

/// The script as SLURM would run it, once for each task.
#[test]
fn the_tasks_of_a_job_array_run_every_cell() {
    let dir = Dir::new("cli-slurm");
    let file = dir.file("small.toml", SMALL);
    let (one, out, job) = (whole(&dir, &file), dir.path("out"), dir.path("job 1"));
    let told = expect(0, &["sweep", &file, "-o", &out, "--slurm", &job, "--tasks", "2"]).0;
    assert!(told.contains("4 runs in 2 tasks") && told.contains("sbatch '"), "{told}");
    let script = format!("{job}/sweep.sbatch");
    let text = std::fs::read_to_string(&script).unwrap();
    for line in ["#SBATCH --array=0-1\n", &format!("#SBATCH --output=\"{job}/%A_%a.log\"\n"), "#SBATCH --requeue\n"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let task = |number: &str, program: Option<&str>| {
        let mut task = Command::new("bash");
        task.arg(&script).env("SLURM_ARRAY_TASK_ID", number);
        program.map(|program| task.env("SLUICENET", program));
        task.output().unwrap()
    };
    // A node with another version says so, and runs nothing.
    let other = dir.file("other", "#!/bin/sh\necho sluicenet 0.0.9\n");
    Command::new("chmod").args(["+x", &other]).status().unwrap();
    let refused = task("0", Some(&other));
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && stderr.contains("is 'sluicenet 0.0.9', and this sweep"), "{stderr}");
    // So does one with another build of this version.
    let line = text.lines().find(|line| line.contains("--build ")).unwrap();
    let build = line.rsplit(' ').next().unwrap();
    assert_eq!(build.len(), 12, "{line}");
    std::fs::write(&script, text.replace(build, "0123456789ab")).unwrap();
    let refused = task("0", None);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    let says = format!(
        "this is build {build} of sluicenet {}, and this sweep is of build 0123456789ab",
        env!("CARGO_PKG_VERSION")
    );
    assert!(refused.status.code() == Some(2) && stderr.contains(&says), "{stderr}");
    assert!(!Path::new(&out).exists());
    std::fs::write(&script, text).unwrap();
    for number in ["0", "1"] {
        let done = task(number, None);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    expect(0, &["sweep", &file, "-o", &out, "--gather"]);
    same_files(&one, &out);
    // Submitted again it changes nothing.
    let before = records(&out);
    assert!(task("0", None).status.success() && records(&out) == before);
    expect(2, &["sweep", &file, "-o", &out, "--slurm", &job, "--gather"]);
}

#[test]
fn a_result_of_another_version_or_another_sweep_is_refused_by_its_file() {
    let dir = Dir::new("cli-parts-wrong");
    let file = dir.file("small.toml", SMALL);
    let out = whole(&dir, &file);
    let cell = format!("{out}/congestion=vegas,flow_control=LL");
    let manifest = format!("{cell}/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let version = format!("\"tool_version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(text.contains(&version));
    std::fs::write(&manifest, text.replace(&version, "\"tool_version\": \"0.0.9\"")).unwrap();
    let kept = std::fs::read(format!("{cell}/flows-00000.parquet")).unwrap();
    let (_, stderr) = expect(2, &["sweep", &file, "-o", &out, "--gather"]);
    assert!(stderr.contains(&manifest) && stderr.contains("of sluicenet 0.0.9, and this is"), "{stderr}");
    for how in [&["--resume"][..], &["--shard", "1/1"]] {
        let (_, stderr) = expect(2, &[&["sweep", &file, "-o", &out], how].concat());
        assert!(stderr.contains(&cell) && stderr.contains("of sluicenet 0.0.9, and this is"), "{stderr}");
    }
    assert_eq!(std::fs::read(format!("{cell}/flows-00000.parquet")).unwrap(), kept);
    // The same cells with other queries.
    std::fs::write(&manifest, &text).unwrap();
    let other = dir.file("other.toml", &SMALL.replace("queries = 24", "queries = 25"));
    let (_, stderr) = expect(2, &["sweep", &other, "-o", &out, "--gather"]);
    let differs =
        "already holds the result of small (seed 1, complete) of another scenario: workload.0.queries is 24 there";
    assert!(stderr.contains(differs), "{stderr}");
    expect(0, &["sweep", &file, "-o", &out, "--gather"]);
}

#[test]
fn a_sweep_goes_on_in_its_own_folder_only() {
    let dir = Dir::new("cli-parts-other");
    let file = dir.file("small.toml", SMALL);
    let out = dir.path("out");
    let of = |how: &[&str], set: &str| [&["sweep", &file, "-o", &out, "--set", set], how].concat().join("\n");
    let run = |code: i32, command: &str| expect(code, &command.split('\n').collect::<Vec<_>>()).1;
    run(0, &of(&[], "workload.0.queries=24"));
    let before = records(&out);
    // The same cells with other settings: the first one that differs is named, with both values.
    for how in [&["--resume"][..], &["--shard", "1/9"], &["--gather"], &["--slurm", &dir.path("job")]] {
        let stderr = run(2, &of(how, "workload.0.queries=25"));
        assert!(stderr.contains("another scenario: workload.0.queries is 24 there and 25 here"), "{stderr}");
        let stderr = run(2, &of(how, "topology.link_rate=\"9 Gb/s\""));
        assert!(stderr.contains("topology.link_rate is 10000000000 b/s there and 9000000000 b/s here"), "{stderr}");
        // Other cells: a run that is none of them is named.
        let stderr = run(2, &of(how, "sweep={\"tcp.congestion\"=[\"newreno\", \"cubic\"]}"));
        assert!(stderr.contains("congestion=newreno,flow_control=LL: the result of a run"), "{stderr}");
        assert!(stderr.contains("that this sweep does not have: give the sweep another directory"), "{stderr}");
        assert!(records(&out) == before);
    }
    // More cells are the same sweep going on.
    let more = SMALL.replace("[\"newreno\", \"vegas\"]", "[\"newreno\", \"vegas\", \"cubic\"]");
    let more = dir.file("small.toml", &more);
    let (table, _) = expect(0, &["sweep", &more, "-o", &out, "--resume"]);
    assert!(table.contains("small, 6 runs"), "{table}");
    // With force it is another sweep, and runs that it does not have go; a file of somebody else stays.
    let gone = Path::new(&out).join("congestion=cubic,flow_control=LL");
    std::fs::write(gone.join("notes.txt"), "mine").unwrap();
    let file = dir.file("small.toml", SMALL);
    expect(0, &["sweep", &file, "-o", &out, "--force"]);
    assert_eq!(std::fs::read_dir(&gone).unwrap().count(), 1);
    assert!(!Path::new(&out).join("congestion=cubic,flow_control=ZZ").exists());
    let (report, _) = expect(0, &["report", &out, "--json"]);
    assert!(report.contains("\"runs\": 4"), "{report}");
    // A single run says the same.
    let one = dir.path("one");
    expect(0, &["run", &file, "-o", &one, "-q"]);
    let (_, stderr) = expect(2, &["run", &file, "-o", &one, "--resume", "--seed", "2"]);
    assert!(stderr.contains("another scenario: scenario.seed is 1 there and 2 here; give another"), "{stderr}");
}

#[test]
fn calls_around_the_parts_tell_the_warnings_of_the_scenario() {
    let dir = Dir::new("cli-parts-warned");
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n";
    let sweep = "[sweep]\n\"workload.0.dst\" = [1, 2]\n";
    let file = dir.file("tree.toml", &format!("[topology]\nkind = \"fat-tree\"\nk = 4\n{flow}{sweep}"));
    let (out, job) = (dir.path("out"), dir.path("job"));
    for (how, is_told) in [
        (&["--slurm", &job][..], true),
        (&["--shard", "1/2"], false),
        (&["--shard", "2/2"], false),
        (&["--gather"], true),
    ] {
        let (_, stderr) = expect(0, &[&["sweep", &file, "-o", &out], how].concat());
        assert_eq!(stderr.contains("`routing` is \"hash\" (ECMP) by default"), is_told, "{how:?}: {stderr}");
    }
}

#[test]
fn two_sweeps_do_not_write_into_one_folder() {
    let dir = Dir::new("cli-parts-two");
    let file = dir.file("small.toml", SMALL);
    let out = dir.path("out");
    let lock = sluicenet_records::claim_sweep(
        Path::new(&out),
        "small",
        sluicenet_records::Existing::Resume,
        sluicenet_records::Sharing::WithOtherParts,
    );
    // While a part runs, other parts may, and a whole sweep may not.
    expect(0, &["sweep", &file, "-o", &out, "--shard", "2/4"]);
    let (_, stderr) = expect(2, &["sweep", &file, "-o", &out, "--resume"]);
    assert!(stderr.contains(&format!("{out}: another run or sweep is writing its results here")), "{stderr}");
    let (_, stderr) = expect(1, &["sweep", &file, "-o", &out, "--gather"]);
    assert!(stderr.contains("1 of 4 runs have ended"), "{stderr}");
    drop(lock);
    expect(0, &["sweep", &file, "-o", &out, "--resume"]);
}

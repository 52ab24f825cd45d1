//! The memory of a run: counted before it is built, refused where there is too little, and told afterwards.

use crate::command::{command, expect, json, repository};
use serde_json::Value;
use sluicenet_testkit::Dir;
use std::path::Path;
use std::process::{Command, Output};

/// All 1,024 hosts of a fat-tree with machines, none of which sends within the run.
const MACHINES: &str = "[scenario]\nduration = \"1 us\"\n[topology]\nkind = \"fat-tree\"\nk = 16\nrouting = \"hash\"\n[server]\n\
                        virtual_network = true\n[vswitch]\nlossless = true\n[[workload]]\nkind = \"permutation\"\n\
                        pattern = \"stride\"\nbytes = \"1 KB\"\nstart = \"1 ms\"\n";

/// Runs the command where it can have so many KiB of address space.
fn limited(kib: u32, args: &[&str]) -> Output {
    let script = format!("ulimit -v {kib}; exec \"$0\" \"$@\"");
    Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_sluicenet")]).args(args).output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn the_counted_memory_is_near_the_real_one() {
    let dir = Dir::new("cli-machines");
    let (file, out) = (dir.file("machines.toml", MACHINES), dir.path("out"));
    for (machines, zfabric) in [("16", "false"), ("63", "false"), ("63", "true")] {
        let sets = ["server.vms", "zcredit.enabled", "zbridge.enabled"].into_iter().zip([machines, zfabric, zfabric]);
        let sets: Vec<String> = sets.map(|(key, value)| format!("{key}={value}")).collect();
        let with = |verb: &[&str]| -> Vec<String> {
            let set = sets.iter().flat_map(|set| ["--set".to_owned(), set.clone()]);
            verb.iter().map(|part| part.to_string()).chain(set).collect()
        };
        let validate = with(&["validate", &file]);
        let counted = json(0, &validate.iter().map(String::as_str).collect::<Vec<_>>());
        let run = with(&["run", &file, "-o", &out, "--force"]);
        expect(0, &run.iter().map(String::as_str).collect::<Vec<_>>());
        let log: Value =
            serde_json::from_str(&std::fs::read_to_string(Path::new(&out).join("run.json")).unwrap()).unwrap();
        let counted = counted["world_bytes"].as_f64().unwrap() + counted["rows_bytes"].as_f64().unwrap();
        let ratio = counted / log["peak_memory_bytes"].as_f64().unwrap();
        assert!((0.75..1.25).contains(&ratio), "{machines} machines, zFabric {zfabric}: {ratio}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn rows_of_ports_that_do_not_fit_are_refused_before_the_network_is_built() {
    let dir = Dir::new("cli-rows");
    let out = limited(1 << 20, &["run", &repository("bench/flat.toml"), "-o", &dir.path("out")]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("need 661 MB of memory before the first frame, 1.4 GB with the rows of all ports"), "{said}");
    assert!(said.contains("record.ports = false") && !Path::new(&dir.path("out")).exists(), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn threads_run_or_are_refused_and_never_abort() {
    let dir = Dir::new("cli-address-space");
    let (servers, sends) = MACHINES.split_once("[server]").unwrap();
    let sends = &sends[sends.find("[[workload]]").unwrap()..];
    let text = format!("{}{sends}", servers.replace("k = 16", "k = 32"));
    let file = dir.file("hosts.toml", &text);
    let (mut run, mut refused) = (0, 0);
    // From little more than the network needs to more than everything.
    for mib in (350..1_250).step_by(75) {
        let out = limited(mib << 10, &["run", &file, "--threads", "2", "--quiet"]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        match out.status.code() {
            Some(0) => run += 1,
            Some(2) => refused += usize::from(said.contains("2 threads need ") && said.contains("ulimit -v")),
            code => panic!("{mib} MiB: {code:?}: {said}"),
        }
    }
    assert!(run > 0 && refused > 0, "{run} runs, {refused} refused");
}

#[test]
fn the_peak_of_memory_includes_the_page() {
    let dir = Dir::new("cli-peak");
    let (file, out) = (dir.file("machines.toml", MACHINES), dir.path("out"));
    let status = command(&["run", &file, "-o", &out, "--quiet"]).stdout(std::process::Stdio::null()).status().unwrap();
    assert!(status.success());
    let written = |name: &str| std::fs::metadata(Path::new(&out).join(name)).unwrap().modified().unwrap();
    assert!(written("run.json") >= written("report.html"), "the peak was taken before the page");
}

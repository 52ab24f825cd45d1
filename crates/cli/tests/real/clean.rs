//! `sluicenet clean`: leftovers of a killed run are removed, devices and files of a live run are kept.

use sluicenet_dataplane::kernel::netns;
use sluicenet_dataplane::leftovers;
use sluicenet_testkit::netns::missing;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A run that is killed at the end of the test, also when the test fails.
struct Run(Child);

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn clean() -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_sluicenet")).arg("clean").output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    said
}

/// The numbers of the programs in the record of a process.
fn programs(record: &str) -> Vec<i32> {
    let programs = record.lines().filter_map(|l| l.strip_prefix("program "));
    programs.map(|l| l.split(' ').next().unwrap().parse().unwrap()).collect()
}

fn killed_and_cleaned(switch: &str, programs_wanted: usize) {
    let mut run = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    run.args(["bench", "overload", "--switch", switch, "--seconds", "600"]);
    let mut run = Run(run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let pid = i32::try_from(run.0.id()).unwrap();
    let file = format!("/run/sluicenet/made/{pid}-{}", leftovers::started(pid).unwrap());
    let until = Instant::now() + Duration::from_secs(120);
    let record = loop {
        let record = std::fs::read_to_string(&file).unwrap_or_default();
        // The switch's namespace, those of two senders and the sink, and a folder.
        let made = record.lines().filter(|l| l.starts_with("namespace ")).count();
        if made >= 4 && programs(&record).len() >= programs_wanted {
            break record;
        }
        assert!(run.0.try_wait().unwrap().is_none(), "it ended");
        assert!(Instant::now() < until, "it did not begin: {record}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let own: Vec<&str> = record.lines().filter_map(|l| l.strip_prefix("namespace ")).collect();
    let folder = record.lines().find_map(|l| l.strip_prefix("folder ")).unwrap();
    let there = || netns::named().unwrap().iter().filter(|n| own.contains(&n.as_str())).count();

    let said = clean();
    assert!(said.contains(&format!("of process {pid}, which runs")), "{said}");
    assert_eq!(there(), own.len(), "the namespaces of a run that lives are gone");
    assert!(run.0.try_wait().unwrap().is_none() && Path::new(folder).exists());

    run.0.kill().unwrap();
    run.0.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while programs(&record).iter().any(|&p| leftovers::started(p).is_some()) {
        assert!(Instant::now() < until, "its programs live on");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(there(), own.len());
    let said = clean();
    for name in &own {
        assert!(said.contains(&format!("namespace {name}\n")), "{said}");
    }
    assert!(said.contains(&format!("  {folder}\n")), "{said}");
    assert!(there() == 0 && !Path::new(folder).exists() && !Path::new(&file).exists());
}

#[test]
fn what_a_killed_bench_left_is_gone_and_a_running_one_is_left_alone() {
    if let Some(what) = missing() {
        return println!("skipped: {what}");
    }
    let _alone = crate::testbed_lock();
    if Path::new("/run/sluicenet/testbed").exists() {
        return println!("skipped: a testbed is up, which `clean` would remove");
    }
    killed_and_cleaned("bridge", 0);
    match Path::new("/usr/share/openvswitch/vswitch.ovsschema").exists() {
        true => killed_and_cleaned("ovs", 2),
        false => println!("skipped in part: the package openvswitch-switch is not installed"),
    }
}

//! The leftovers of a killed process are removed; the things of a running process are kept.

use super::harness::possible;
use sluicenet_dataplane::kernel::netns::{self, Namespace, PREFIX};
use sluicenet_dataplane::leftovers::clean::{Cleaned, clean};
use sluicenet_dataplane::leftovers::{self, Leftover};
use sluicenet_dataplane::process::Program;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HOLD: &str = "SLUICENET_TEST_HOLD";

/// A folder below a file: nobody can remove it.
fn unremovable(tag: &str) -> Leftover {
    Leftover::Folder(format!("/dev/null/{tag}").into())
}

/// The process of the test below: makes a namespace, a folder and a program there, reports that, and waits to be killed.
#[test]
fn another_process_that_holds_something() {
    let Ok(tag) = std::env::var(HOLD) else { return };
    let namespace = Namespace::create(&format!("{PREFIX}{tag}")).unwrap();
    let folder = std::env::temp_dir().join(format!("sluicenet-{tag}"));
    leftovers::add(Leftover::Folder(folder.clone())).unwrap();
    std::fs::create_dir(&folder).unwrap();
    leftovers::add(unremovable(&tag)).unwrap();
    let mut sleep = Command::new("sleep");
    sleep.arg("600");
    // The thread that starts the program ends first.
    let namespace = &namespace;
    let program =
        std::thread::scope(|s| s.spawn(move || Program::spawn(sleep, Some(namespace)).unwrap()).join()).unwrap();
    let own = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    assert_ne!(own(program.id()), own(std::process::id()));
    std::thread::sleep(Duration::from_millis(100));
    println!("\nholds {}", program.id());
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn leftovers_of_a_killed_process_are_removed_and_things_of_a_running_one_kept() {
    if !possible() {
        return;
    }
    let tag = format!("held-{}", std::process::id());
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["kernel::leftovers::another_process_that_holds_something", "--exact", "--nocapture", "--test-threads=1"])
        .env(HOLD, &tag)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    let pid: i32 =
        lines.map_while(Result::ok).find_map(|l| l.strip_prefix("holds ").map(|n| n.parse().unwrap())).unwrap();
    let started = leftovers::started(pid).unwrap();
    let its = |number: i32| Some(number) == i32::try_from(other.id()).ok();

    let cleaned = clean(its).unwrap();
    assert!(cleaned.gone.is_empty(), "{cleaned:?}");
    let kept = &cleaned.kept[0];
    let name = format!("{PREFIX}{tag}");
    let folder: PathBuf = std::env::temp_dir().join(format!("sluicenet-{tag}"));
    for words in
        [format!("of process {}, which runs", other.id()), format!("namespace {name}"), format!("process {pid}")]
    {
        assert!(kept.contains(&words), "{kept}");
    }
    assert!(netns::named().unwrap().contains(&name) && folder.is_dir() && leftovers::started(pid) == Some(started));
    assert!(leftovers::namespaces().unwrap().0.contains(&name));

    let number = other.id();
    other.kill().unwrap();
    other.wait().unwrap();
    // The kernel ends the programs of a killed process.
    let until = Instant::now() + Duration::from_secs(60);
    while leftovers::started(pid) == Some(started) {
        assert!(Instant::now() < until, "its program lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let its = |of: i32| Some(of) == i32::try_from(number).ok();
    let cleaned = clean(its).unwrap();
    assert_eq!(cleaned.gone, [format!("namespace {name}"), folder.display().to_string()]);
    assert!(cleaned.kept.is_empty() && !folder.exists() && !netns::named().unwrap().contains(&name));
    // The thing that cannot be removed stays in the record, alone.
    assert!(cleaned.failed.len() == 1 && cleaned.failed[0].contains("/dev/null/"), "{cleaned:?}");
    assert_eq!(clean(its).unwrap(), Cleaned { failed: cleaned.failed, ..Cleaned::default() });
    leftovers::forget(&unremovable(&tag));
    assert_eq!(clean(its).unwrap(), Cleaned::default());
}

#[test]
fn a_removed_namespace_is_no_longer_recorded() {
    if !possible() {
        return;
    }
    let name = format!("{PREFIX}struck-{}", std::process::id());
    let known = || leftovers::namespaces().unwrap().1.contains(&name);
    drop(Namespace::create(&name).unwrap());
    assert!(known());
    // A second namespace of the name is refused; the first stays recorded.
    assert!(Namespace::create(&name).is_err() && known());
    Namespace::delete(&name).unwrap();
    assert!(!known());
}

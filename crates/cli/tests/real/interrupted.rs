//! Ctrl-C while the hosts of a testbed send: the whole process group of the command gets it, as from a terminal.

use crate::command::command;
use serde_json::Value;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_testkit::netns::system;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Frames that a host sends before the interrupt: 0.3 s of its link of 20 Mb/s. A warm-up has to be shorter.
const FRAMES: u64 = 500;
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command and interrupts it when the host in `namespace`, a name by the number of the command's process, has sent.
/// The command's number, and its output.
pub fn interrupted(args: &[&str], namespace: impl Fn(u32) -> String) -> (u32, Value) {
    let mut command = command(args);
    command.args(["--json", "--quiet"]).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap();
    let pid = child.id();
    let sent = || {
        let links = Namespace::open(&namespace(pid)).ok()?.enter(Links::open).ok()?;
        Some(links.ok()?.get("eth0").ok()?.stats.tx_packets)
    };
    let until = Instant::now() + PATIENCE;
    while sent() < Some(FRAMES) {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "nobody sends");
        std::thread::sleep(Duration::from_millis(5));
    }
    system(&format!("kill -INT -- -{pid}")).unwrap();
    let run = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(130), "{said}");
    assert!(said.contains("the figures are of the part that was run"), "{said}");
    (pid, serde_json::from_slice(&run.stdout).unwrap())
}

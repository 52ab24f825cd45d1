//! iperf3 between two tenants of the running testbed, and the frames lost meanwhile.

use super::bridge;
use super::files::Made;
use super::live::{EDGES_PROGRAM, Live};
use super::measure::{FabricFigures, Lost};
use super::pa::sum_of;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::process::Program;
use std::collections::BTreeMap;
use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The settings of an iperf3 run.
#[derive(Clone, Debug)]
pub struct Iperf {
    /// The sender: the full name of a tenant.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// The duration.
    pub seconds: u16,
    /// UDP at full speed instead of TCP.
    pub udp: bool,
    /// Whether iperf3 is to print JSON.
    pub json: bool,
}

/// The result of an iperf3 run.
#[derive(Clone, Debug)]
pub struct Came {
    /// The output of iperf3.
    pub text: String,
    /// Frames lost in the whole testbed during the run.
    pub lost: Lost,
}

/// The time limit for the iperf3 server to listen.
const LISTENS_IN: Duration = Duration::from_secs(5);
/// The time limit for a guest to start its server, and its extra time beyond the duration of sending.
const GUEST_PATIENCE: Duration = Duration::from_secs(60);
/// After this time, frames in flight at the end have arrived or are lost.
const SETTLES_IN: Duration = Duration::from_millis(200);

/// Runs iperf3.
///
/// # Errors
/// iperf3 is not installed or fails.
pub fn run(live: &mut Live, iperf: &Iperf) -> io::Result<Came> {
    let made = live.made()?;
    let to = made.tenants().find(|t| t.name == iperf.to);
    let to = to.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no tenant {}", iperf.to)))?;
    let mut words = vec!["-c".to_owned(), to.address.to_string(), "-t".into(), iperf.seconds.to_string()];
    if iperf.udp {
        words.extend(["-u", "-b", "0"].map(str::to_owned));
    }
    if iperf.json {
        words.push("-J".into());
    }
    let mut bridges = bridge::Counters::open(&made)?;
    let before = lost(live, &made, iperf)?;
    let text = if made.guests { in_guests(live, iperf, &words)? } else { in_namespaces(iperf, &words)? };
    std::thread::sleep(SETTLES_IN);
    let mut lost = lost(live, &made, iperf)?.since(&before);
    lost.add_bridges(bridges.read()?);
    Ok(Came { text, lost })
}

/// The losses since the start of the testbed, except in the kernels of other guests.
fn lost(live: &mut Live, made: &Made, iperf: &Iperf) -> io::Result<Lost> {
    let fabric: FabricFigures = serde_json::from_str(&live.fabric_now()?)?;
    let mut lost = Lost::of(&live.statuses()?, &fabric);
    if made.guests {
        let said = |tenant: &String| -> io::Result<BTreeMap<String, u64>> {
            Ok(serde_json::from_str(live.supervisor().must(tenant, EDGES_PROGRAM, GUEST_PATIENCE)?.trim())?)
        };
        let places = [said(&iperf.from)?, said(&iperf.to)?];
        lost.add_guests(sum_of(places.iter()));
    }
    Ok(lost)
}

fn failed(said: &str) -> io::Error {
    io::Error::other(format!("iperf3: {}", said.trim()))
}

fn in_guests(live: &Live, iperf: &Iperf, words: &[String]) -> io::Result<String> {
    let supervisor = live.supervisor();
    if supervisor.run(&iperf.to, "command -v iperf3 >/dev/null", GUEST_PATIENCE)?.code != 0 {
        let why =
            "the guests have no iperf3: it was not installed here when the testbed was brought up (package iperf3)";
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    supervisor.must(&iperf.to, "killall iperf3 2>/dev/null; iperf3 -s -D", GUEST_PATIENCE)?;
    // The server needs a moment before it listens.
    let command = format!(
        "n=0; until iperf3 {0} >/tmp/iperf 2>&1; do n=$((n + 1)); [ $n -lt 20 ] || {{ cat /tmp/iperf; exit 1; }}; \
         grep -q refused /tmp/iperf || {{ cat /tmp/iperf; exit 1; }}; usleep 200000; done; cat /tmp/iperf",
        words.join(" ")
    );
    let patience = Duration::from_secs(u64::from(iperf.seconds)) + GUEST_PATIENCE;
    let outcome = supervisor.run(&iperf.from, &command, patience);
    supervisor.run(&iperf.to, "killall iperf3", GUEST_PATIENCE)?;
    let outcome = outcome?;
    match outcome.code {
        0 => Ok(outcome.text.trim_start().to_owned()),
        _ => Err(failed(&outcome.text)),
    }
}

fn in_namespaces(iperf: &Iperf, words: &[String]) -> io::Result<String> {
    let (from, to) = (Namespace::open(&iperf.from)?, Namespace::open(&iperf.to)?);
    let missing = |e: io::Error| io::Error::new(e.kind(), format!("iperf3: {e}; it is in the package iperf3"));
    let mut server = Command::new("iperf3");
    server.args(["-s", "-1"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let server = Program::spawn(server, Some(&to)).map_err(missing)?;
    // A client that is too early is refused, and tries again.
    let until = Instant::now() + LISTENS_IN;
    let output = loop {
        let output = from.enter(|| Command::new("iperf3").args(words).stdin(Stdio::null()).output())?.map_err(missing);
        match &output {
            Ok(o) if !o.status.success() && Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            _ => break output,
        }
    };
    drop(server);
    let output = output?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        // With -J, iperf3 prints the error on stdout.
        false => Err(failed(&(String::from_utf8_lossy(&output.stderr) + &*String::from_utf8_lossy(&output.stdout)))),
    }
}

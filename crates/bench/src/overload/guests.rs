//! Senders and sink as QEMU guests under software emulation, each running this program.

use super::load::{Load, PORT, Received, Sent, Stack};
use super::{OverloadError, SENDERS, SINK, Setup, Switch};
use serde::de::DeserializeOwned;
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan};
use sluicenet_dataplane::kernel::netns::{Namespace, PREFIX};
use sluicenet_dataplane::kernel::socket::Peer;
use sluicenet_testbed::guest::{Attachment, Contents, Guest, GuestConfig, GuestError, Image, Nic, Parts};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for a short action of a guest, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// MiB of a guest: the program, twice while it is unpacked.
const MEMORY_MIB: u32 = 320;
/// A guest under software emulation may stand still for so long.
const QUIET: Duration = Duration::from_secs(3);

/// The namespace of the switch; it is gone with this.
#[derive(Debug)]
pub struct SwitchNamespace(pub Namespace);

impl SwitchNamespace {
    /// A new one.
    pub fn create(tag: &str) -> Result<SwitchNamespace, OverloadError> {
        Ok(SwitchNamespace(Namespace::create(&format!("{PREFIX}{tag}-switch"))?))
    }
}

impl Drop for SwitchNamespace {
    fn drop(&mut self) {
        // `clean` removes leftovers.
        let _ = Namespace::delete(self.0.name());
    }
}

/// The guests: two senders and a sink.
#[derive(Debug)]
pub struct Guests {
    guests: Vec<Guest>,
    program: String,
}

/// The device by which guest `i` is at a switch of the kernel's or Open vSwitch.
pub fn tap(i: usize) -> String {
    format!("tap{i}")
}

/// The socket by which guest `i` is at our switch.
pub fn socket(scratch: &Path, i: usize) -> PathBuf {
    scratch.join(format!("guest-{i}.sock"))
}

impl Guests {
    /// Starts them; `ends` are QEMU's ends of the sockets where they are at the switch by such.
    pub fn start(setup: &Setup, nic: Nic, switch: &Namespace, ends: &[Peer]) -> Result<Guests, OverloadError> {
        let parts = Parts::find(nic)?;
        let program = std::env::current_exe()?;
        let mut ends: Vec<Option<OwnedFd>> =
            ends.iter().map(Peer::descriptor).map(|end| end.map(Some)).collect::<Result<_, _>>()?;
        ends.resize_with(SENDERS + 1, || None);
        let contents = Contents { programs: vec![program.clone()], files: Vec::new() };
        let image = Image::write(&parts, &contents, &setup.scratch.join("initramfs"))?;
        let mut starting = Vec::new();
        for (i, end) in ends.into_iter().enumerate() {
            let attachment = match (setup.switch, end) {
                (Switch::Ours, Some(end)) => Attachment::Socket(end),
                (Switch::Ours, None) => Attachment::VhostUser(socket(&setup.scratch, i)),
                _ => Attachment::Tap { namespace: switch.name().to_owned(), device: tap(i) },
            };
            // Open vSwitch in user space hands frames on as they are: checksums have to be in them.
            let offloads = matches!(setup.switch, Switch::Bridge | Switch::Ours) && nic == Nic::Virtio;
            let config = GuestConfig {
                mac: Lan::mac(i),
                address: Lan::address(i),
                prefix: 24,
                mtu: 1500,
                nic,
                attachment,
                offloads,
                queue: None,
                image: image.clone(),
                memory_mib: MEMORY_MIB,
            };
            let folder = setup.scratch.join(format!("guest-{i}"));
            std::fs::create_dir_all(&folder)?;
            starting.push((config, folder));
        }
        let guests = std::thread::scope(|scope| {
            let start = |(config, folder): (GuestConfig, PathBuf)| {
                let parts = &parts;
                scope.spawn(move || Guest::start(parts, &config, &folder, PATIENCE))
            };
            let starting: Vec<_> = starting.into_iter().map(start).collect();
            starting.into_iter().map(join).collect::<Result<Vec<_>, _>>()
        })?;
        let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut guests = Guests { guests, program };
        for (i, guest) in guests.guests.iter_mut().enumerate() {
            // Only the experiment's frames are to pass: all addresses are known.
            for j in (0..=SENDERS).filter(|&j| j != i) {
                let mac = Lan::mac(j).map(|b| format!("{b:02x}")).join(":");
                said(guest, &format!("arp -s {} {mac}", Lan::address(j)))?;
            }
        }
        Ok(guests)
    }

    /// Has a guest speak with the others, so that the switch knows where it is.
    pub fn introduce(&mut self, i: usize) -> Result<(), OverloadError> {
        for j in (0..=SENDERS).filter(|&j| j != i) {
            let command = format!("until ping -c 1 -W 1 {} >/dev/null; do :; done", Lan::address(j));
            said(&mut self.guests[i], &command)?;
        }
        Ok(())
    }

    /// Starts the agent in a guest: it waits for its slow programs as long as it takes, as the switch does.
    pub fn start_agent(&mut self, i: usize) -> Result<(), OverloadError> {
        let command =
            format!("/usr/bin/{} agent --interface {DEVICE} --detection-time off >/tmp/agent 2>&1 &", self.program);
        said(&mut self.guests[i], &command).map(drop)
    }

    /// One exchange.
    pub fn exchange(&mut self, load: &Load) -> Result<(Vec<Sent>, Received), OverloadError> {
        let program = format!("/usr/bin/{} bench tenant", self.program);
        let (to, payload) = (Lan::socket(SINK, PORT), load.payload);
        let (sink, senders) = (SINK, SENDERS);
        // The sink must be there before a sender starts.
        let quiet = QUIET.as_secs_f64();
        let receive = format!(
            "cd /tmp; rm -f bound sent ended; {{ {program} receive --at {to} --payload {payload} --senders {senders} \
             --quiet-seconds {quiet} --bound bound --sent sent >result 2>&1; echo >ended; }} & \
             until [ -e bound ]; do [ ! -e ended ] || {{ cat result; exit 1; }}; usleep 20000; done"
        );
        said(&mut self.guests[sink], &receive)?;
        let rate = load.rate.map_or(String::new(), |rate| format!(" --rate {rate}"));
        let seconds = load.time.as_secs_f64();
        let patience = load.time + PATIENCE;
        let sent = std::thread::scope(|scope| {
            let sending = self.guests[..senders].iter_mut().enumerate().map(|(i, guest)| {
                let command =
                    format!("{program} send --to {to} --number {i} --payload {payload} --seconds {seconds}{rate}");
                scope.spawn(move || answer::<Sent>(guest, &command, patience))
            });
            let sending: Vec<_> = sending.collect();
            sending.into_iter().map(join).collect::<Result<Vec<_>, _>>()
        })?;
        let all: u64 = sent.iter().map(|s| s.sent).sum();
        let sink = &mut self.guests[sink];
        let done =
            format!("cd /tmp; echo {all} >told; mv told sent; until [ -e ended ]; do usleep 50000; done; cat result");
        Ok((sent, answer(sink, &done, patience)?))
    }

    /// Counters of the guests' kernels.
    pub fn stacks(&mut self) -> Result<Vec<Stack>, OverloadError> {
        let command = format!("/usr/bin/{} bench tenant counters --device {DEVICE}", self.program);
        self.guests.iter_mut().map(|guest| answer(guest, &command, PATIENCE)).collect()
    }
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Has a guest run a command that must work; returns the command's output.
fn run(guest: &mut Guest, command: &str, patience: Duration) -> Result<String, OverloadError> {
    Ok(guest.must(command, patience)?)
}

fn said(guest: &mut Guest, command: &str) -> Result<String, OverloadError> {
    run(guest, command, PATIENCE)
}

/// The same, where the answer is an object.
fn answer<T: DeserializeOwned>(guest: &mut Guest, command: &str, patience: Duration) -> Result<T, OverloadError> {
    let text = run(guest, command, patience)?;
    serde_json::from_str(text.trim())
        .map_err(|e| io::Error::other(format!("in a guest: {command}: {e}: {}", text.trim())).into())
}

impl From<GuestError> for OverloadError {
    fn from(e: GuestError) -> OverloadError {
        OverloadError::Guest(e)
    }
}

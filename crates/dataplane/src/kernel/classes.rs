//! A queue of the kernel for each destination of a device, which a program opens and shuts: an htb class for each destination,
//! with a token bucket (tbf) in it.
//!
//! - htb alone cannot shut a class: a class with a tiny rate still sends one frame, and owes the time of that frame when its rate
//!   is high again. A changed token bucket forgets what it owes. So the classes have the rate of the link, and the bucket in a class
//!   has the rate of its destination.
//! - One frame leaves when a bucket is shut. Shut, it has a rate of one byte per second and charges 65,535 bytes more for each
//!   frame: the next frame leaves 17 hours later.
//! - The kernel does not look at a bucket that was changed. A frame of an experimental type is sent to a class without room, which
//!   drops it, and then the kernel looks at all classes.
//! - TCP hands over several segments as one packet, where it finds room for them. A bucket never sends a packet that is larger than
//!   its burst, and bursts change. So buckets cut everything into frames: a peak rate, with the burst of a frame, sees to that.
//! - Waiting frames count against the send buffers of their sockets. So sockets wait, and few frames are dropped.
//!
//! `tc` sets the classes up. The buckets are changed by netlink, in some microseconds.

use super::error::{KernelError, Tried};
use super::link::Links;
use super::netlink::{ACK, DUMP, Message, Netlink, attributes, word};
use super::netns::Namespace;
use super::qdisc::{HEADER, RTM_GETQDISC, RTM_NEWQDISC, TCA_KIND, TCA_OPTIONS, header, remove_root};
use super::sys::{self, Wait};
use crate::leftovers::{self, Leftover};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_PRATE64: u16 = 5;
const TCA_TBF_BURST: u16 = 6;
const TCA_TBF_PBURST: u16 = 7;

/// The major number of the classes. By it they are found again.
const MAJOR: u32 = 0x51c0;
/// The classes of frames to other destinations, and of the frames that make the kernel look.
const OTHERS: u32 = 1;
const KICKS: u32 = 2;
/// The class of the first destination, and the major number of its bucket.
const FIRST: u32 = 0x10;
const FIRST_BUCKET: u32 = 0x5200;
/// The most destinations: numbers of classes have 16 bits, and every one is asked about at each look.
pub const DESTINATIONS_MAX: usize = 1024;
/// 802's first "local experimental" type, and a frame of it to its own sender's side of the network.
const KICK: [u8; 60] = {
    let mut frame = [0; 60];
    let header = [2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x88, 0xb5];
    let mut at = 0;
    while at < header.len() {
        frame[at] = header[at];
        at += 1;
    }
    frame
};
/// Bytes by which the kernel may count a frame longer than its payload: header and tags.
pub(super) const BEYOND: u32 = 100;

/// What waits for a destination, and what has left for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Bytes that wait.
    pub waiting: u64,
    /// Bytes that have left so far.
    pub sent: u64,
    /// Frames that found no room so far.
    pub dropped: u32,
}

/// The queues of a device.
#[derive(Debug)]
pub struct Classes {
    netlink: Netlink,
    index: u32,
    /// Sends the frames that make the kernel look.
    socket: OwnedFd,
    /// The rate of the link, in bytes per second.
    rate: u64,
    longest: u32,
    limit: u32,
    backlogs: Vec<Backlog>,
    entry: Leftover,
}

fn entry(namespace: &Namespace, device: &str) -> Leftover {
    let (namespace, device) = (namespace.name().to_owned(), device.to_owned());
    Leftover::Classes(Box::new(leftovers::Device { namespace, device }))
}

impl Classes {
    /// Sets up shut queues at a device, anew if there are some: one for the addresses of each destination. `rate` is that of the
    /// link, in bytes per second, and `limit` the bytes that may wait for a destination.
    ///
    /// # Errors
    /// There is no such device, no `tc`, or the kernel has no htb, tbf or u32.
    pub fn set_up(
        namespace: &Namespace,
        device: &str,
        rate: u64,
        limit: u32,
        destinations: &[Vec<Ipv4Addr>],
    ) -> Result<Classes, KernelError> {
        assert!(destinations.len() <= DESTINATIONS_MAX, "each destination has a class");
        let what = || format!("classes at {device} (tc, with htb, tbf and u32)");
        let entry = entry(namespace, device);
        leftovers::add(entry.clone()).tried(what)?;
        namespace.enter(|| {
            let link = Links::open()?.get(device)?;
            let longest = link.mtu + BEYOND;
            let netlink = Netlink::route().tried(what)?;
            let mut classes = Classes {
                netlink,
                index: link.index,
                socket: sys::packet_socket().tried(what)?,
                rate,
                longest,
                limit,
                backlogs: vec![Backlog::default(); destinations.len()],
                entry,
            };
            sys::bind_packet(classes.socket.as_fd(), link.index, 0).tried(what)?;
            classes.remove_qdisc().tried(what)?;
            run_tc(&script(device, rate, limit, longest, destinations)).tried(what)?;
            for n in 0..destinations.len() {
                classes.shut(n).tried(what)?;
            }
            Ok::<_, KernelError>(classes)
        })?
    }

    /// Bytes of the device's longest frame, as its queues count it.
    pub fn longest(&self) -> u32 {
        self.longest
    }

    /// Removes the queues at a device; whether there were some. Waiting frames are lost.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(namespace: &Namespace, device: &str) -> Result<bool, KernelError> {
        let removed = namespace.enter(|| -> Result<bool, KernelError> {
            let Some(link) = Links::open()?.find(device)? else { return Ok(false) };
            let what = || format!("removing the classes at {device}");
            let mut netlink = Netlink::route().tried(what)?;
            remove_root(&mut netlink, link.index, MAJOR).tried(what)
        })??;
        leftovers::forget(&entry(namespace, device));
        Ok(removed)
    }

    /// Lets the frames of a destination leave at a rate in bytes per second, with bursts of so many bytes. Call
    /// [`Classes::look`] afterwards.
    ///
    /// # Errors
    /// The queues are gone.
    pub fn open(&mut self, n: usize, rate: u64, burst: u32) -> io::Result<()> {
        self.change(n, rate, burst.max(self.longest), 0)
    }

    /// Lets the frames of a destination wait. One frame still leaves.
    ///
    /// # Errors
    /// The queues are gone.
    pub fn shut(&mut self, n: usize) -> io::Result<()> {
        self.change(n, 1, self.longest, u16::MAX)
    }

    fn change(&mut self, n: usize, rate: u64, burst: u32, more: u16) -> io::Result<()> {
        // `tc_tbf_qopt`: rate and peak rate of 12 bytes each, limit, buffer, mtu.
        let mut options = [0; 36];
        options[1] = 1; // Ethernet's bytes count as they are.
        options[2..4].copy_from_slice(&more.to_ne_bytes());
        options[8..12].copy_from_slice(&low(rate));
        // Two frames of a burst follow each other at the speed of the link, which is less than this.
        let peak = (burst > self.longest).then(|| 2 * rate.max(self.rate));
        if let Some(peak) = peak {
            options[13] = 1;
            options[20..24].copy_from_slice(&low(peak));
        }
        options[24..28].copy_from_slice(&self.limit.to_ne_bytes());
        // The time of a burst: the kernel requires it, but does not use it when the burst is given too.
        options[28..32].copy_from_slice(&1_000_000u32.to_ne_bytes());
        let header = header(self.index, 0, MAJOR << 16 | (FIRST + n as u32));
        let message = Message::new(RTM_NEWQDISC, ACK, &header).with_name(TCA_KIND, "tbf");
        let message = message.with_nested(TCA_OPTIONS, &[], |m| {
            let m = m.with(TCA_TBF_PARMS, &options).with(TCA_TBF_BURST, &burst.to_ne_bytes());
            let m = if is_long(rate) { m.with(TCA_TBF_RATE64, &rate.to_ne_bytes()) } else { m };
            let Some(peak) = peak else { return m };
            let m = m.with(TCA_TBF_PBURST, &self.longest.to_ne_bytes());
            if is_long(peak) { m.with(TCA_TBF_PRATE64, &peak.to_ne_bytes()) } else { m }
        });
        self.netlink.tell(message)
    }

    /// Makes the kernel look at all queues.
    pub fn look(&self) {
        let _ = sys::send(self.socket.as_fd(), Wait::No, &[&KICK], None);
    }

    /// What waits for each destination.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn backlogs(&mut self) -> io::Result<&[Backlog]> {
        let Classes { netlink, index, backlogs, .. } = self;
        netlink.ask(Message::new(RTM_GETQDISC, DUMP, &header(*index, 0, 0)), |_, body| {
            if body.len() < HEADER || word(body, 4) != *index || word(body, 12) >> 16 != MAJOR {
                return;
            }
            let at = (word(body, 12) & 0xFFFF).wrapping_sub(FIRST) as usize;
            let Some(backlog) = backlogs.get_mut(at) else { return };
            let stats = attributes(&body[HEADER..]).filter(|&(kind, _)| kind == TCA_STATS2);
            for (kind, stats) in stats.flat_map(|(_, stats)| attributes(stats)) {
                match (kind, stats) {
                    (TCA_STATS_BASIC, [a, b, c, d, e, f, g, h, ..]) => {
                        backlog.sent = u64::from_ne_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
                    }
                    // `gnet_stats_queue`: length, backlog, drops.
                    (TCA_STATS_QUEUE, queue) if queue.len() >= 12 => {
                        (backlog.waiting, backlog.dropped) = (word(queue, 4).into(), word(queue, 8));
                    }
                    _ => {}
                }
            }
        })?;
        Ok(backlogs)
    }

    fn remove_qdisc(&mut self) -> io::Result<()> {
        remove_root(&mut self.netlink, self.index, MAJOR).map(drop)
    }
}

impl Drop for Classes {
    fn drop(&mut self) {
        if self.remove_qdisc().is_ok() {
            leftovers::forget(&self.entry);
        }
    }
}

/// A rate in 32 bits; a longer one is in an attribute of its own.
fn low(rate: u64) -> [u8; 4] {
    u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes()
}

fn is_long(rate: u64) -> bool {
    rate > u64::from(u32::MAX)
}

/// The lines for `tc -batch`. htb warns about shares of classes without a quantum: they are that of a full frame.
fn script(device: &str, rate: u64, limit: u32, longest: u32, destinations: &[Vec<Ipv4Addr>]) -> String {
    let mut lines = format!("qdisc add dev {device} root handle {MAJOR:x}: htb default {OTHERS:x}\n");
    let class = |n: u32| {
        let rates = format!("htb rate {rate}bps ceil {rate}bps burst {longest} cburst {longest} quantum {longest}");
        format!("class add dev {device} parent {MAJOR:x}: classid {MAJOR:x}:{n:x} {rates}\n")
    };
    lines += &class(OTHERS);
    lines += &class(KICKS);
    lines += &format!("qdisc add dev {device} parent {MAJOR:x}:{KICKS:x} bfifo limit 1\n");
    lines += &format!(
        "filter add dev {device} parent {MAJOR:x}: protocol 0x88b5 prio 1 u32 match u32 0 0 flowid {MAJOR:x}:{KICKS:x}\n"
    );
    for (n, addresses) in (0u32..).zip(destinations) {
        let at = FIRST + n;
        lines += &class(at);
        let bucket = FIRST_BUCKET + n;
        lines += &format!(
            "qdisc add dev {device} parent {MAJOR:x}:{at:x} handle {bucket:x}: tbf rate {rate}bps burst {longest} limit {limit}\n"
        );
        for address in addresses {
            lines += &format!(
                "filter add dev {device} parent {MAJOR:x}: protocol ip prio 2 u32 match ip dst {address}/32 \
                 flowid {MAJOR:x}:{at:x}\n"
            );
        }
    }
    lines
}

fn run_tc(script: &str) -> io::Result<()> {
    let mut tc = Command::new("tc");
    let tc = tc.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut tc = tc.spawn().map_err(|e| io::Error::new(e.kind(), format!("tc (of iproute2): {e}")))?;
    if let Some(mut stdin) = tc.stdin.take() {
        stdin.write_all(script.as_bytes())?;
    }
    let output = tc.wait_with_output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

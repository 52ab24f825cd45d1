//! Departure times for the frames to each destination of a device: a BPF program gives them (earliest departure time, EDT), and
//! the kernel's fair queue (`sch_fq`) sends each frame at its time.
//!
//! - The program is at the egress of the device, where each frame passes before it is queued. Its state is in memory that it shares with
//!   this process. So a changed rate, and a look at what waits, are no system calls.
//! - A frame has its time when it is queued. A new rate is that of later frames: nothing calls a frame back. So a queue cannot be
//!   shut; its lowest rate is one that the destination may always have.
//! - Waiting frames count against the send buffers of their sockets, as in [`super::classes`].
//! - The program outlives its maker, and goes on with the last rates.

mod program;
mod waiting;

use super::classes::{BEYOND, Backlog, DESTINATIONS_MAX};
use super::error::{KernelError, Tried};
use super::link::Links;
use super::netlink::{ACK, CREATE, DUMP, EXCLUSIVE, Message, Netlink, REPLACE, attributes, word};
use super::netns::Namespace;
use super::qdisc::{HEADER, RTM_DELQDISC, RTM_NEWQDISC, TC_H_ROOT, TCA_KIND, TCA_OPTIONS, header, remove_root};
use crate::clock::monotonic_ns;
use crate::leftovers::{self, Leftover};
use program::{BYTES, CREDIT, DROPPED, Flows, INVERSE, INVERSE_BITS, INVERSE_MAX, LAST, LIMIT, NAME, NEXT};
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use waiting::Waiting;

const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;
const TC_H_CLSACT: u32 = 0xffff_fff1;
/// Programs for arriving frames, and for leaving ones.
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
/// The program's result says what happens to the frame.
const DIRECT_ACTION: u32 = 1;
const TCA_FQ_PLIMIT: u16 = 1;
const TCA_FQ_FLOW_PLIMIT: u16 = 2;
/// All protocols, in a filter's priority and protocol.
const ALL: u32 = 0x0003u16.to_be() as u32;

/// The major number of the queue. By it it is found again.
const MAJOR: u32 = 0x51c1;
/// Frames in the queue, of one socket and of all: the program limits their bytes.
const FRAMES_MAX: u32 = 1 << 20;
/// The longest wait of a frame in nanoseconds: the queue drops frames that depart in more than 10 s.
const WAIT_MAX: u64 = 8_000_000_000;

/// The departure times at a device.
#[derive(Debug)]
pub struct Departures {
    netlink: Netlink,
    index: u32,
    flows: Flows,
    waiting: Vec<Waiting>,
    backlogs: Vec<Backlog>,
    longest: u32,
    limit: u32,
    entry: Leftover,
}

fn entry(namespace: &Namespace, device: &str) -> Leftover {
    let (namespace, device) = (namespace.name().to_owned(), device.to_owned());
    Leftover::Departures(Box::new(leftovers::Device { namespace, device }))
}

impl Departures {
    /// Gives departure times at a device, anew if it has some, to the frames for the addresses of each destination. `limit` bytes
    /// may wait for a destination. Each begins with this rate in bytes per second, and bursts of so many bytes.
    ///
    /// # Errors
    /// There is no such device, or the kernel has no such programs (Linux 5.12), no `cls_bpf` or no `sch_fq`.
    pub fn set_up(
        namespace: &Namespace,
        device: &str,
        limit: u32,
        destinations: &[Vec<Ipv4Addr>],
        rate: u64,
        burst: u32,
    ) -> Result<Departures, KernelError> {
        assert!(destinations.len() <= DESTINATIONS_MAX, "a look is at all destinations");
        let what = |needed: &'static str| move || format!("departure times at {device}: {needed}");
        let entry = entry(namespace, device);
        leftovers::add(entry.clone()).tried(what("their record"))?;
        namespace.enter(|| {
            let link = Links::open()?.get(device)?;
            let map = "memory shared with a program (bpf(2), Linux 5.5)";
            let mut departures = Departures {
                netlink: Netlink::route().tried(what("netlink"))?,
                index: link.index,
                flows: Flows::new(NAME, destinations.len()).tried(what(map))?,
                waiting: destinations.iter().map(|_| Waiting::new(INVERSE_MAX)).collect(),
                backlogs: vec![Backlog::default(); destinations.len()],
                longest: link.mtu + BEYOND,
                limit,
                entry,
            };
            (0..destinations.len()).for_each(|n| departures.open(n, rate, burst));
            let program = program::load(&departures.flows, destinations)
                .tried(what("a program with atomic operations (bpf(2), Linux 5.12)"))?;
            remove_at(&mut departures.netlink, link.index).tried(what("those of an earlier agent"))?;
            departures.queue().tried(what("the queue sch_fq (CONFIG_NET_SCH_FQ, modprobe sch_fq)"))?;
            departures.hook().tried(what("the hook clsact (CONFIG_NET_SCH_INGRESS, modprobe sch_ingress)"))?;
            let attached = departures.attach(program.as_raw_fd());
            attached.tried(what("the classifier cls_bpf (CONFIG_NET_CLS_BPF, modprobe cls_bpf)"))?;
            Ok::<_, KernelError>(departures)
        })?
    }

    /// Bytes of the device's longest frame, as its queue counts it.
    pub fn longest(&self) -> u32 {
        self.longest
    }

    /// Removes the departure times of a device; whether there were some. Waiting frames are lost.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(namespace: &Namespace, device: &str) -> Result<bool, KernelError> {
        let removed = namespace.enter(|| -> Result<bool, KernelError> {
            let Some(link) = Links::open()?.find(device)? else { return Ok(false) };
            let what = || format!("removing the departure times at {device}");
            let mut netlink = Netlink::route().tried(what)?;
            remove_at(&mut netlink, link.index).tried(what)
        })??;
        leftovers::forget(&entry(namespace, device));
        Ok(removed)
    }

    /// From now on the frames of a destination depart at a rate in bytes per second. A destination that had no frames may get so
    /// many bytes at once.
    pub fn open(&mut self, n: usize, rate: u64, burst: u32) {
        let inverse = inverse(rate);
        let time = |bytes: u32| ((u128::from(bytes) * u128::from(inverse)) >> INVERSE_BITS) as u64;
        let flow = &self.flows.elements()[n];
        self.waiting[n].change(monotonic_ns(), flow[NEXT].load(Relaxed), inverse);
        flow[INVERSE].store(inverse, Relaxed);
        // The first frame departs at once in any case.
        flow[CREDIT].store(time(burst.saturating_sub(self.longest)), Relaxed);
        self.limit(n, monotonic_ns());
    }

    /// Sets the time by which frames of a destination may wait, from its bytes: those that wait may have times of a lower rate. If
    /// this process dies, this time remains.
    fn limit(&mut self, n: usize, now: u64) {
        let (flow, waiting) = (&self.flows.elements()[n], &mut self.waiting[n]);
        let next = flow[NEXT].load(Relaxed);
        let room = u64::from(self.limit).saturating_sub(waiting.bytes(now, next));
        let time = ((u128::from(room) * u128::from(flow[INVERSE].load(Relaxed))) >> INVERSE_BITS) as u64;
        flow[LIMIT].store(next.saturating_sub(now).saturating_add(time).min(WAIT_MAX), Relaxed);
    }

    /// What waits for each destination.
    pub fn backlogs(&mut self) -> &[Backlog] {
        let now = monotonic_ns();
        (0..self.backlogs.len()).for_each(|n| self.limit(n, now));
        let Departures { flows, waiting, backlogs, .. } = self;
        for ((flow, waiting), backlog) in flows.elements().iter().zip(waiting).zip(backlogs.iter_mut()) {
            // In this order, a frame that gets its time meanwhile counts as waiting, and not as sent.
            let bytes = flow[BYTES].load(Relaxed);
            let next = flow[NEXT].load(Relaxed);
            // The time of the last frame ends later than it departs.
            let waits = flow[LAST].load(Relaxed) > now;
            backlog.waiting = if waits { waiting.bytes(now, next) } else { 0 };
            backlog.sent = backlog.sent.max(bytes.saturating_sub(backlog.waiting));
            backlog.dropped = flow[DROPPED].load(Relaxed) as u32;
        }
        backlogs
    }

    fn queue(&mut self) -> io::Result<()> {
        let header = header(self.index, MAJOR << 16, TC_H_ROOT);
        let message = Message::new(RTM_NEWQDISC, ACK | CREATE | REPLACE, &header).with_name(TCA_KIND, "fq");
        let frames = FRAMES_MAX.to_ne_bytes();
        let limits = |m: Message| m.with(TCA_FQ_PLIMIT, &frames).with(TCA_FQ_FLOW_PLIMIT, &frames);
        self.netlink.tell(message.with_nested(TCA_OPTIONS, &[], limits))
    }

    /// The place for programs, unless somebody else has made it.
    fn hook(&mut self) -> io::Result<()> {
        let header = header(self.index, TC_H_CLSACT & 0xffff_0000, TC_H_CLSACT);
        let message = Message::new(RTM_NEWQDISC, ACK | CREATE | EXCLUSIVE, &header).with_name(TCA_KIND, "clsact");
        match self.netlink.tell(message) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn attach(&mut self, program: i32) -> io::Result<()> {
        let message = Message::new(RTM_NEWTFILTER, ACK | CREATE | EXCLUSIVE, &filter(self.index, 0, ALL, EGRESS));
        let message = message.with_name(TCA_KIND, "bpf").with_nested(TCA_OPTIONS, &[], |m| {
            let m = m.with(TCA_BPF_FD, &program.to_ne_bytes()).with_name(TCA_BPF_NAME, NAME);
            m.with(TCA_BPF_FLAGS, &DIRECT_ACTION.to_ne_bytes())
        });
        self.netlink.tell(message)
    }
}

impl Drop for Departures {
    fn drop(&mut self) {
        if remove_at(&mut self.netlink, self.index).is_ok() {
            leftovers::forget(&self.entry);
        }
    }
}

/// Nanoseconds of a byte at a rate in bytes per second.
fn inverse(rate: u64) -> u64 {
    ((1_000_000_000 << INVERSE_BITS) / rate.max(1)).clamp(1, INVERSE_MAX)
}

/// `tcmsg` of a filter, with its priority and protocol.
fn filter(index: u32, handle: u32, info: u32, parent: u32) -> [u8; HEADER] {
    let mut bytes = header(index, handle, parent);
    bytes[16..20].copy_from_slice(&info.to_ne_bytes());
    bytes
}

/// Removes our program and queue from a device; whether they were there.
fn remove_at(netlink: &mut Netlink, index: u32) -> io::Result<bool> {
    let mut ours = Vec::new();
    let mut others = 0;
    for parent in [INGRESS, EGRESS] {
        let ask = Message::new(RTM_GETTFILTER, DUMP, &filter(index, 0, 0, parent));
        let all = netlink.ask(ask, |_, body| {
            // Each priority is shown once without its filters.
            if body.len() < HEADER || word(body, 4) != index || word(body, 8) == 0 {
                return;
            }
            let options = attributes(&body[HEADER..]).filter(|&(kind, _)| kind == TCA_OPTIONS);
            let mut names =
                options.flat_map(|(_, options)| attributes(options)).filter(|&(kind, _)| kind == TCA_BPF_NAME);
            match parent == EGRESS && names.any(|(_, name)| name.strip_suffix(&[0]) == Some(NAME.as_bytes())) {
                true => ours.push((word(body, 8), word(body, 16))),
                false => others += 1,
            }
        });
        match all {
            // A device without the hook.
            Err(e) if [libc::EINVAL, libc::ENOENT].map(Some).contains(&e.raw_os_error()) => {}
            other => other?,
        }
    }
    for &(handle, info) in &ours {
        let delete = Message::new(RTM_DELTFILTER, ACK, &filter(index, handle, info, EGRESS));
        netlink.tell(delete.with_name(TCA_KIND, "bpf"))?;
    }
    if !ours.is_empty() && others == 0 {
        let clsact = header(index, TC_H_CLSACT & 0xffff_0000, TC_H_CLSACT);
        netlink.tell(Message::new(RTM_DELQDISC, ACK, &clsact))?;
    }
    Ok(remove_root(netlink, index, MAJOR)? || !ours.is_empty())
}

//! A port in service, or one that was, and its frames in the switch.

use super::SCRATCH_BYTES;
use super::guarded::Guarded;
use super::header::{admit, put_first_bytes, run_mask};
use super::pace::Pace;
use super::report::Access;
use super::stations::KnownStations;
use crate::port::{BrokenPort, Descriptor, Passed, Port};
use crate::shm;
use crate::tap::{Direction, Tap};
use crate::vhost;
use sluicenet_node::vale::{Header, PORTS_MAX};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;

/// Bits of a port's number. The others are for the length of a frame, which no switch of ours makes longer.
const OWNER_BITS: u32 = PORTS_MAX.ilog2();
const _: () = assert!(PORTS_MAX == 1 << OWNER_BITS && 1 << (32 - OWNER_BITS) > SCRATCH_BYTES);

/// A frame in the memory of its source port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    pub(super) first_bytes: [u64; 2],
    pub(super) buffer: u32,
    /// Its length, above the number of its port.
    len_and_owner: u32,
}

impl Lent {
    #[inline(always)]
    pub(super) fn new(frame: Descriptor, first_bytes: [u64; 2], owner: usize) -> Lent {
        Lent { first_bytes, buffer: frame.buffer, len_and_owner: frame.len << OWNER_BITS | owner as u32 }
    }
    #[inline(always)]
    pub(super) fn len(self) -> u32 {
        self.len_and_owner >> OWNER_BITS
    }
    #[inline(always)]
    pub(super) fn owner(self) -> usize {
        (self.len_and_owner & ((1 << OWNER_BITS) - 1)) as usize
    }
}

/// The kinds of ports. Calls to ports of the first two kinds are static, for speed.
#[allow(clippy::large_enum_variant)]
pub(super) enum Kind {
    /// A program with shared memory: the fast path.
    Shm(shm::Port),
    /// The queues of a guest.
    Vhost(Box<vhost::Port>),
    /// Any other port.
    Other(Box<dyn Port>),
}

impl Kind {
    #[inline(always)]
    pub(super) fn get(&self) -> &dyn Port {
        match self {
            Kind::Shm(port) => port,
            Kind::Vhost(port) => &**port,
            Kind::Other(port) => &**port,
        }
    }
    #[inline(always)]
    pub(super) fn get_mut(&mut self) -> &mut dyn Port {
        match self {
            Kind::Shm(port) => port,
            Kind::Vhost(port) => &mut **port,
            Kind::Other(port) => &mut **port,
        }
    }
}

/// Calls a method of a port; statically for a port in shared memory or of a guest.
macro_rules! call {
    ($kind:expr, $method:ident($($argument:expr),*)) => {
        match $kind {
            crate::engine::attached::Kind::Shm(port) => crate::port::Port::$method(port, $($argument),*),
            crate::engine::attached::Kind::Vhost(port) => port.$method($($argument),*),
            crate::engine::attached::Kind::Other(port) => port.$method($($argument),*),
        }
    };
}
pub(super) use call;

/// The checks of a port's frames on their arrival.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    /// None.
    None,
    /// A domain or a priority, of the configuration or of the port itself.
    Access,
    /// Those, and a guard.
    Guard,
}

/// A port in service, or one that was.
pub(super) struct Attached {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) access: Access,
    /// The check of its frames, if it has a guard.
    pub(super) guarded: Option<Box<Guarded>>,
    /// Bytes of the frames from the port, and of the frames to it.
    pub(super) bytes_from: u64,
    pub(super) bytes_to: u64,
    /// A capture of its frames.
    pub(super) tap: Option<Box<Tap>>,
    /// Copies of a flooded frame beyond the first, by buffer.
    pub(super) extra: Vec<u32>,
    /// The checks of its frames.
    pub(super) rules: Rules,
    /// Whether its frames may be copied directly to another port's memory.
    pub(super) plain: bool,
    /// Whether the port is in service. A removed port stays here until its last frame is delivered.
    pub(super) present: bool,
    /// Whether its next frame has to wait for a receiver, or the port has to take buffers back first.
    pub(super) blocked: bool,
    /// Delivered segments of the next frame for the port, by class, if the switch cuts that frame.
    pub(super) cut: [u32; 8],
    /// The limit of the rate at which it receives frames, if there is one.
    pub(super) pace: Option<Pace>,
    /// The limit of the rate at which it sends frames, if there is one; then each frame has a decision of its own.
    pub(super) send_pace: Option<Pace>,
    /// Until when its frames wait because it sent a forged one.
    pub(super) forger_until: Option<Instant>,
    /// Whether there is such a limit or time.
    pub(super) is_limited: bool,
    /// The switch's count of changes when its next frame had to wait for a receiver.
    pub(super) waits_since: Option<u64>,
    /// Its configured stations, and the learned ones.
    pub(super) given: Vec<([u8; 6], u16)>,
    pub(super) known: KnownStations,
    /// Whether the watchdog found it stuck at its last look.
    pub(super) stuck: bool,
    /// The port that does not admit its next frame.
    pub(super) turned_away_by: Option<usize>,
}
impl Attached {
    /// Decides which checks its frames need, and whether they may take the fast path.
    pub(super) fn settle(&mut self) {
        // Only ports of other kinds know a domain or a priority of their own.
        self.rules = match (&self.access, &self.kind) {
            (Access { guard: Some(_), .. }, _) => Rules::Guard,
            (Access { domain: None, priority: None, .. }, Kind::Shm(_) | Kind::Vhost(_)) => Rules::None,
            _ => Rules::Access,
        };
        match (self.access.guard.clone(), &mut self.guarded) {
            (Some(guard), Some(guarded)) => guarded.change(guard),
            (guard, guarded) => *guarded = guard.map(|guard| Box::new(Guarded::new(guard, &self.kind))),
        }
        self.plain = matches!(self.kind, Kind::Shm(_)) && self.rules == Rules::None && self.tap.is_none();
    }

    /// Decides whether frames are taken from it without looking at the time.
    pub(super) fn settle_turns(&mut self) {
        self.is_limited = self.send_pace.is_some() || self.forger_until.is_some();
    }

    /// The header of a frame that the port shows; an error if its endpoint may not send the frame.
    #[inline]
    pub(super) fn check(&mut self, frame: Descriptor, first_bytes: [u64; 2]) -> Result<Header, DropReason> {
        let header = admit(first_bytes, &self.access, self.kind.get(), frame)?;
        if let Some(guarded) = &mut self.guarded {
            guarded.check(&self.kind, frame, first_bytes)?;
        }
        Ok(header)
    }

    /// Copies the start of a lent or shown frame, with the bytes on which the switch decided. Returns false if not all of them
    /// are known any more.
    #[inline]
    pub(super) fn read(&self, buffer: u32, first_bytes: [u64; 2], into: &mut [u8]) -> bool {
        read(&self.kind, &self.guarded, buffer, first_bytes, into)
    }

    /// Counts and captures a frame that leaves through this port.
    #[inline]
    pub(super) fn look_at(&mut self, len: u32, bytes: &[u8]) {
        if let Some(tap) = &mut self.tap {
            tap.take(Direction::Out, len, None, |into| into.copy_from_slice(&bytes[..into.len()]));
        }
        self.bytes_to += u64::from(len);
    }

    /// Takes the frame that it showed; `dropped` is the reason if the frame is dropped.
    #[inline(always)]
    pub(super) fn accept(&mut self, frame: Descriptor, first_bytes: [u64; 2], dropped: Option<DropReason>) {
        self.bytes_from += u64::from(frame.len);
        if let Some(tap) = &mut self.tap {
            let (kind, guarded) = (&self.kind, &self.guarded);
            tap.take(Direction::In, frame.len, dropped, |into| {
                read(kind, guarded, frame.buffer, first_bytes, into);
            });
        }
        call!(&mut self.kind, accept());
    }

    /// Takes the frame that it showed and returns its buffer: the frame needs no further copy.
    #[inline(always)]
    pub(super) fn finish(&mut self, frame: Descriptor, first_bytes: [u64; 2], dropped: Option<DropReason>) {
        self.accept(frame, first_bytes, dropped);
        call!(&mut self.kind, give_back(frame.buffer));
    }

    /// Captures a frame of `from` that is dropped instead of delivered here.
    #[cold]
    pub(super) fn capture_lost(&mut self, from: &Attached, lent: Lent, reason: DropReason) {
        if let Some(tap) = &mut self.tap {
            tap.take(Direction::Out, lent.len(), Some(reason), |into| {
                from.read(lent.buffer, lent.first_bytes, into);
            });
        }
    }

    #[cold]
    pub(super) fn add_extra(&mut self, buffer: u32, copies: u32) {
        let buffer = buffer as usize;
        if self.extra.len() <= buffer {
            self.extra.resize(buffer + 1, 0);
        }
        // A program may name a buffer again before it gets it back.
        self.extra[buffer] += copies;
    }
}

#[inline]
fn read(kind: &Kind, guarded: &Option<Box<Guarded>>, buffer: u32, first_bytes: [u64; 2], into: &mut [u8]) -> bool {
    call!(kind, read(buffer, into));
    match guarded {
        Some(guarded) => guarded.put(buffer, first_bytes, into),
        None => {
            put_first_bytes(first_bytes, into);
            true
        }
    }
}

/// Passes frames between two ports of a kind while the decision on the first, in buffer `shown` with `first_bytes`, holds for those
/// after it; `None` if each frame needs its own decision.
#[inline(always)]
pub(super) fn pass_run(
    from: &mut Attached,
    to: &mut Attached,
    (shown, first_bytes): (u32, [u64; 2]),
    limit: u32,
) -> Option<Result<Passed, BrokenPort>> {
    let unseen = from.tap.is_none() & to.tap.is_none();
    match (&mut from.kind, &mut to.kind) {
        (Kind::Shm(sender), Kind::Shm(receiver)) if from.plain & unseen => {
            Some(sender.pass_run(receiver, first_bytes, run_mask(first_bytes), limit))
        }
        (Kind::Shm(sender), Kind::Shm(receiver)) if unseen & to.present => {
            let guarded = from.guarded.as_ref()?;
            Some(guarded.pass_run((sender, receiver), shown, first_bytes, run_mask(first_bytes), limit))
        }
        (Kind::Vhost(sender), Kind::Vhost(receiver)) if unseen & from.guarded.is_none() & to.present => {
            Some(Ok(sender.pass_run(receiver, first_bytes, run_mask(first_bytes), limit)))
        }
        _ => None,
    }
}

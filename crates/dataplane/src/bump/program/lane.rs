//! The memory that a bump shares with the process of a program: three rings and their frames. Neither side trusts the other.
//!
//! Frames go to the process in order, and its answers come back in the same order, so that an answer needs no name.

use crate::region::{Region, RingCells};
use crate::ring::{Broken, Cells, Consumer, Producer};
use rustix::event::Timespec;
use rustix::process::getppid;
use rustix::thread::futex;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::netbump::{Port, QueueId, Verdict};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Frames in a lane: more than the segments of 64 KB at the least usual segment of 536 bytes.
pub(super) const SLOTS: u32 = 128;
/// Frames of the program's own that wait for the bump, and most of them for each frame that it is called with.
pub(super) const OWN_SLOTS: u32 = 16;
/// The longest frame of a lane: a jumbo frame of 9,216 bytes, and room.
pub const FRAME_MAX: usize = STRIDE - HEAD;

/// Bytes of a frame's place, and of the description in front of it.
const STRIDE: usize = 10_240;
const HEAD: usize = 64;
const _: () = assert!(FRAME_MAX > 9_216 && STRIDE % 8 == 0);
/// How long the process looks for the next frame before it sleeps: about the time of a wake-up.
const SPIN: std::time::Duration = std::time::Duration::from_micros(30);
/// How often a sleeping process looks whether the bump still lives.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Bytes of a message of the process.
const TEXT_MAX: usize = 512;

// Words at the start of the memory.
const STATE: usize = 0;
const TEXT_LEN: usize = 4;
const PROGRAM_LEN: usize = 8;
const QUEUES: usize = 12;
const RINGS: usize = 256;

/// The state of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It loads its program.
    Loading,
    /// It takes frames; whether the program chooses the virtual queues.
    Ready(bool),
    /// The program cannot be used.
    Failed,
}

/// Where everything is.
#[derive(Clone, Copy, Debug)]
struct Layout {
    rings: [usize; 3],
    table: usize,
    frames: usize,
    own: usize,
    program: usize,
    end: usize,
}

impl Layout {
    fn new(queues: usize, program: usize) -> Layout {
        let back = RINGS + RingCells::bytes(SLOTS);
        let own_ring = back + RingCells::bytes(SLOTS);
        let table = own_ring + RingCells::bytes(OWN_SLOTS);
        let frames = (table + 16 * queues).next_multiple_of(4096);
        let own = frames + SLOTS as usize * STRIDE;
        let at = own + OWN_SLOTS as usize * STRIDE;
        Layout { rings: [RINGS, back, own_ring], table, frames, own, program: at, end: at + program.max(TEXT_MAX) }
    }
}

/// A frame for a program, beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Bytes of the frame.
    pub len: u32,
    /// Bytes that it takes on the wire.
    pub wire_bytes: u32,
    /// The end by which it came in.
    pub port: u16,
    /// Its virtual queue in the map.
    pub mapped: Option<QueueId>,
    /// When it came in.
    pub now: Instant,
    /// The wait in the virtual queue before it.
    pub found_wait: Duration,
    /// Whether it enters the queue: a notification does not.
    pub is_counted: bool,
}

/// The answer to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub verdict: Verdict,
    pub queue: Option<QueueId>,
    pub len: u32,
}

impl Answer {
    fn encode(self) -> u64 {
        let code = match self.verdict {
            Verdict::Forward => 0,
            Verdict::Drop(_) => 1,
            Verdict::Consume => 2,
        };
        code | u64::from(self.queue.unwrap_or(QueueId::MAX)) << 16 | u64::from(self.len) << 32
    }

    /// What the process says; nothing if no process of ours says that.
    fn decode(entry: u64) -> Option<Answer> {
        let (len, queue) = ((entry >> 32) as u32, (entry >> 16) as u16);
        let verdict = match entry as u16 {
            0 => Verdict::Forward,
            1 => Verdict::Drop(DropReason::Extension),
            2 => Verdict::Consume,
            _ => return None,
        };
        let fits = len as usize <= FRAME_MAX;
        fits.then_some(Answer { verdict, queue: (queue != QueueId::MAX).then_some(queue), len })
    }
}

/// The bump's side.
#[derive(Debug)]
pub(super) struct Lane {
    region: Arc<Region>,
    layout: Layout,
    to: Producer<RingCells>,
    back: Consumer<RingCells>,
    own: Consumer<RingCells>,
    sleeper: RingCells,
    /// Places of the next frame in, the next answer and the next frame of the program's own.
    next: [usize; 3],
}

impl Lane {
    /// New memory for a process, and its file.
    pub fn create(program: &[u8], ports: &[Port]) -> io::Result<(Lane, OwnedFd)> {
        let layout = Layout::new(ports.len(), program.len());
        let (region, file) = Region::create("sluicenet-program", layout.end)?;
        let region = Arc::new(region);
        let store = |at: usize, n: usize| region.word(at).store(n as u32, Ordering::Relaxed);
        store(PROGRAM_LEN, program.len());
        store(QUEUES, ports.len());
        for (n, port) in ports.iter().enumerate() {
            let at = layout.table + 16 * n;
            region.long(at).store(port.rate.as_bps(), Ordering::Relaxed);
            region.long(at + 8).store(port.buffer_bytes.unwrap_or(0), Ordering::Relaxed);
        }
        region.write_bytes(layout.program, program);
        let [to, back, own] = layout.rings;
        let sleeper = RingCells::new(&region, to, SLOTS);
        let lane = Lane {
            to: Producer::new(sleeper.clone()),
            back: Consumer::new(RingCells::new(&region, back, SLOTS)),
            own: Consumer::new(RingCells::new(&region, own, OWN_SLOTS)),
            sleeper,
            region,
            layout,
            next: [0; 3],
        };
        Ok((lane, file))
    }

    /// The state of the process, as it says.
    pub fn state(&self) -> State {
        match self.region.word(STATE).load(Ordering::Acquire) {
            0 => State::Loading,
            1 => State::Ready(false),
            2 => State::Ready(true),
            _ => State::Failed,
        }
    }

    /// Why the program cannot be used, as the process says.
    pub fn why(&self) -> String {
        let len = self.region.word(TEXT_LEN).load(Ordering::Relaxed) as usize;
        let mut text = vec![0; len.min(TEXT_MAX)];
        self.region.read_bytes(self.layout.program, &mut text);
        String::from_utf8_lossy(&text).chars().filter(|c| !c.is_control()).collect()
    }

    /// Puts a frame in. There is room: the caller keeps at most [`SLOTS`] frames without an answer taken.
    #[inline]
    pub fn push(&mut self, work: &Work, frame: &[u8]) -> Result<(), Broken> {
        if self.to.known_room() == 0 && self.to.room()? == 0 {
            // It took fewer frames than it has answered.
            return Err(Broken);
        }
        let at = self.layout.frames + self.next[0] * STRIDE;
        let numbers = [
            u64::from(work.len) | u64::from(work.wire_bytes) << 32,
            u64::from(work.port)
                | u64::from(work.mapped.unwrap_or(QueueId::MAX)) << 16
                | u64::from(work.is_counted) << 32,
            work.now.as_ps(),
            work.found_wait.0,
        ];
        for (n, number) in numbers.into_iter().enumerate() {
            self.region.long(at + 8 * n).store(number, Ordering::Relaxed);
        }
        self.region.write_bytes(at + HEAD, frame);
        self.next[0] = (self.next[0] + 1) % SLOTS as usize;
        self.to.push(0);
        Ok(())
    }

    /// Shows the process the frames, the answers that were taken, and wakes it if it sleeps.
    #[inline]
    pub fn publish(&mut self) {
        self.back.publish();
        self.own.publish();
        if self.to.publish() {
            // The process that sleeps there may have ended.
            let _ = futex::wake(self.sleeper.asleep(), futex::Flags::empty(), 1);
        }
    }

    /// The next answer, which stays the next one.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Answer>, Broken> {
        match self.back.peek()? {
            None => Ok(None),
            Some(entry) => Answer::decode(entry).map(Some).ok_or(Broken),
        }
    }

    /// Copies the frame of the next answer.
    pub fn read(&self, into: &mut [u8]) {
        self.region.read_bytes(self.layout.frames + self.next[1] * STRIDE + HEAD, into);
    }

    /// Takes the answer that was peeked at.
    #[inline]
    pub fn advance(&mut self) {
        self.next[1] = (self.next[1] + 1) % SLOTS as usize;
        self.back.advance();
    }

    /// The next frame of the program's own: its port and its length, in `into`.
    pub fn next_own(&mut self, into: &mut [u8]) -> Result<Option<(u16, usize)>, Broken> {
        let Some(entry) = self.own.pop()? else { return Ok(None) };
        let len = (entry >> 16) as usize;
        if len > FRAME_MAX {
            return Err(Broken);
        }
        self.region.read_bytes(self.layout.own + self.next[2] * STRIDE + HEAD, &mut into[..len]);
        self.next[2] = (self.next[2] + 1) % OWN_SLOTS as usize;
        Ok(Some((entry as u16, len)))
    }
}

/// The program's side, in a process of its own.
#[derive(Debug)]
pub struct Served {
    region: Arc<Region>,
    layout: Layout,
    to: Consumer<RingCells>,
    back: Producer<RingCells>,
    own: Producer<RingCells>,
    sleeper: RingCells,
    next: [usize; 2],
    parent: Option<rustix::process::Pid>,
}

impl Served {
    /// The memory that the bump has made.
    ///
    /// # Errors
    /// The file is no such memory.
    pub fn open(file: OwnedFd) -> io::Result<Served> {
        let region = Arc::new(Region::open(file)?);
        let number = |at: usize| region.word(at).load(Ordering::Relaxed) as usize;
        let (queues, program) = (number(QUEUES), number(PROGRAM_LEN));
        let layout = Layout::new(queues, program);
        if region.len() != layout.end || queues > usize::from(QueueId::MAX) {
            return Err(io::Error::other("this is not the memory of a bump"));
        }
        let [to, back, own] = layout.rings;
        let sleeper = RingCells::new(&region, to, SLOTS);
        Ok(Served {
            to: Consumer::new(sleeper.clone()),
            back: Producer::new(RingCells::new(&region, back, SLOTS)),
            own: Producer::new(RingCells::new(&region, own, OWN_SLOTS)),
            sleeper,
            region,
            layout,
            next: [0; 2],
            parent: getppid(),
        })
    }

    /// The program.
    pub fn program(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.word(PROGRAM_LEN).load(Ordering::Relaxed) as usize];
        self.region.read_bytes(self.layout.program, &mut bytes);
        bytes
    }

    /// The ports of the virtual queues.
    pub fn ports(&self) -> Vec<Port> {
        let count = self.region.word(QUEUES).load(Ordering::Relaxed) as usize;
        let number = |at: usize| self.region.long(at).load(Ordering::Relaxed);
        let port = |n: usize| {
            let at = self.layout.table + 16 * n;
            Port { rate: Rate(number(at)), buffer_bytes: Some(number(at + 8)).filter(|&bytes| bytes > 0) }
        };
        (0..count).map(port).collect()
    }

    /// The program takes frames from now on; `chooses` if it names their virtual queues itself.
    pub fn ready(&self, chooses: bool) {
        self.region.word(STATE).store(1 + u32::from(chooses), Ordering::Release);
    }

    /// The program cannot be used.
    pub fn failed(&self, why: &str) {
        let text = &why.as_bytes()[..why.len().min(TEXT_MAX)];
        self.region.write_bytes(self.layout.program, text);
        self.region.word(TEXT_LEN).store(text.len() as u32, Ordering::Relaxed);
        self.region.word(STATE).store(3, Ordering::Release);
    }

    /// Waits for the next frame and copies it; nothing when the bump has ended.
    pub fn next(&mut self, into: &mut [u8]) -> Option<Work> {
        loop {
            let looked = std::time::Instant::now();
            loop {
                match self.to.peek() {
                    Ok(Some(_)) => return Some(self.take(into)),
                    Ok(None) if looked.elapsed() < SPIN => std::hint::spin_loop(),
                    Ok(None) => break,
                    Err(Broken) => return None,
                }
            }
            if self.to.fall_asleep().ok()? {
                // Woken, or the time is up, or the word has changed.
                let word: &AtomicU32 = self.sleeper.asleep();
                let _ = futex::wait(word, futex::Flags::empty(), 1, Some(&LOOK));
                self.to.wake_up();
            }
            if getppid() != self.parent {
                return None;
            }
        }
    }

    fn take(&mut self, into: &mut [u8]) -> Work {
        let at = self.layout.frames + self.next[0] * STRIDE;
        let number = |n: usize| self.region.long(at + 8 * n).load(Ordering::Relaxed);
        let (lengths, names) = (number(0), number(1));
        let work = Work {
            len: (lengths as u32).min(FRAME_MAX as u32),
            wire_bytes: (lengths >> 32) as u32,
            port: names as u16,
            mapped: Some((names >> 16) as u16).filter(|&queue| queue != QueueId::MAX),
            now: Instant(number(2)),
            found_wait: Duration(number(3)),
            is_counted: names >> 32 != 0,
        };
        self.region.read_bytes(at + HEAD, &mut into[..work.len as usize]);
        work
    }

    /// Sends a frame of the program's own; returns whether there is room.
    pub fn send(&mut self, port: u16, frame: &[u8]) -> bool {
        if frame.len() > FRAME_MAX || (self.own.known_room() == 0 && self.own.room().unwrap_or(0) == 0) {
            return false;
        }
        self.region.write_bytes(self.layout.own + self.next[1] * STRIDE + HEAD, frame);
        self.next[1] = (self.next[1] + 1) % OWN_SLOTS as usize;
        self.own.push(u64::from(port) | (frame.len() as u64) << 16);
        let _ = self.own.publish();
        true
    }

    /// Answers the frame that [`Served::next`] gave, with its bytes.
    pub fn answer(&mut self, verdict: Verdict, queue: Option<QueueId>, frame: &[u8]) {
        let at = self.layout.frames + self.next[0] * STRIDE + HEAD;
        if verdict == Verdict::Forward {
            self.region.write_bytes(at, frame);
        }
        self.next[0] = (self.next[0] + 1) % SLOTS as usize;
        // Before the answer: the bump may then use the place again.
        self.to.advance();
        self.to.publish();
        // The bump has shown which answers it took before it showed this frame: there is room.
        if self.back.known_room() == 0 && self.back.room().unwrap_or(0) == 0 {
            return;
        }
        self.back.push(Answer { verdict, queue, len: frame.len() as u32 }.encode());
        let _ = self.back.publish();
    }
}

//! A loaded program, and calls to it.
#![allow(unsafe_code)]

use crate::exit::Calling;
use rustix::fs::{MemfdFlags, memfd_create};
use sluicenet_netbump::{Host, Made, NO_QUEUE, Packet, VERSION, VQueue};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::netbump::{Port, QueueId, Verdict, VirtualQueue};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;
use std::ffi::{CString, c_char, c_void};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

/// Why a program cannot be used.
#[derive(Debug)]
pub enum LoadError {
    /// It cannot be loaded.
    NotLoaded(String),
    /// It does not define what every program defines.
    NoProgram,
    /// It was built for another version of the interface.
    Version(u32),
    /// An argument holds a zero byte.
    ZeroByte,
    /// The program refused its arguments.
    Refused(i32),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::NotLoaded(why) => write!(f, "it cannot be loaded: {why}"),
            LoadError::NoProgram => f.write_str("`NETBUMP_PROGRAM` stands nowhere in it"),
            LoadError::Version(version) => {
                write!(f, "it was built for version {version} of netbump.h, and this is version {VERSION}")
            }
            LoadError::ZeroByte => f.write_str("an argument holds a zero byte"),
            LoadError::Refused(code) => write!(f, "it refuses its arguments: netbump_open returned {code}"),
        }
    }
}

impl std::error::Error for LoadError {}

type Open = unsafe extern "C" fn(i32, *const *const c_char) -> i32;
type Init = unsafe extern "C" fn(*mut VQueue, u64);
type Classify = unsafe extern "C" fn(*mut Packet) -> i32;
type Vaqm = unsafe extern "C" fn(*mut Packet, *mut VQueue);
type Estimate = unsafe extern "C" fn(*const VQueue, u64) -> u64;
type Process = unsafe extern "C" fn(*mut Packet, *mut VQueue) -> i32;
type Forward = unsafe extern "C" fn(*const Packet) -> i32;

/// The calls that a program defines.
#[derive(Clone, Copy, Debug)]
struct Calls {
    init: Option<Init>,
    classify: Option<Classify>,
    vaqm: Option<Vaqm>,
    estimate: Option<Estimate>,
    process: Option<Process>,
    forward: Option<Forward>,
}

/// A packet for a call.
#[derive(Debug)]
pub struct Called<'a> {
    /// The frame from its destination address on, and room behind it.
    pub buffer: &'a mut [u8],
    /// Bytes of the frame.
    pub len: u32,
    /// Bytes that it takes on the wire.
    pub wire_bytes: u32,
    /// The port by which it came in.
    pub port: u16,
    /// Its virtual queue in the map.
    pub mapped: Option<QueueId>,
    /// When it came in.
    pub now: Instant,
}

/// The outcome of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The decision.
    pub verdict: Verdict,
    /// Bytes of the frame now.
    pub len: u32,
}

/// A program in this process.
#[derive(Debug)]
pub struct Library {
    /// What it is called if it ends the process.
    name: Box<str>,
    calls: Calls,
    seed: u64,
    /// Unloaded before the file behind it is closed.
    _library: libloading::Library,
    _file: OwnedFd,
}

/// A virtual queue as the program sees it.
#[derive(Debug)]
pub struct QueueState {
    /// In a box: the program may keep its address.
    shown: Box<VQueue>,
    rng: Rng,
}

// SAFETY: the pointer in it is the program's own, and `netbump.h` asks that it belongs to no thread: one thread at a time uses
// a queue.
unsafe impl Send for QueueState {}

/// The host's side of a call.
struct Context<'a> {
    rng: &'a mut Rng,
    now: Instant,
    queue: Option<&'a mut VirtualQueue>,
    wire_bytes: u64,
    send: &'a mut dyn FnMut(u16, &[u8]) -> bool,
}

static HOST: Host = Host { send, random, enter };

/// The context of a packet that this module made.
///
/// # Safety
/// `packet` is the one that the program was called with, during the call.
unsafe fn context<'a>(packet: *const Packet) -> &'a mut Context<'a> {
    // SAFETY: `Library::call` has set the pointer, and the context outlives the call.
    unsafe { &mut *(*packet).context().cast() }
}

unsafe extern "C" fn send(packet: *const Packet, port: u16, frame: *const u8, len: u32) -> i32 {
    // SAFETY: the program passes the packet on that it was called with, and `len` bytes at `frame`.
    let sent = unsafe {
        let frame = std::slice::from_raw_parts(frame, len as usize);
        (context(packet).send)(port, frame)
    };
    if sent { 0 } else { -1 }
}

unsafe extern "C" fn random(packet: *const Packet) -> u32 {
    // SAFETY: as above.
    (unsafe { context(packet) }.rng.next_u64() >> 32) as u32
}

unsafe extern "C" fn enter(packet: *const Packet, queue: *mut VQueue) {
    // SAFETY: as above; the program passes a queue that it was given.
    unsafe { context(packet).enter(&mut *queue) }
}

impl Context<'_> {
    /// The leaky bucket, by the bump's own virtual queue.
    fn enter(&mut self, shown: &mut VQueue) {
        if let Some(queue) = &mut self.queue {
            queue.arrive(self.now, self.wire_bytes);
            shown.tokens = queue.bytes(self.now);
            shown.last_update = self.now.as_ps();
        }
    }
}

impl Library {
    /// Loads the only program of this process.
    ///
    /// # Errors
    /// Those of [`Library::load_named`].
    pub fn load(bytes: &[u8], arguments: &[&str], seed: u64) -> Result<Library, LoadError> {
        Library::load_named("the program of this bump", bytes, arguments, seed)
    }

    /// Loads a program from its bytes, with its arguments, and a name for messages. Each one loaded has variables of its own, even if their bytes are the
    /// same. The program's code runs: do not load what you do not trust with this process.
    ///
    /// # Errors
    /// No program, one of another version, or one that refuses its arguments.
    pub fn load_named(name: &str, bytes: &[u8], arguments: &[&str], seed: u64) -> Result<Library, LoadError> {
        let texts: Result<Vec<CString>, _> = arguments.iter().map(|text| CString::new(*text)).collect();
        let texts = texts.map_err(|_| LoadError::ZeroByte)?;
        let not_loaded = |e: &dyn fmt::Display| LoadError::NotLoaded(e.to_string());
        // The loader gives the same library for the same file: a copy has variables of its own.
        let file = memfd_create("netbump-program", MemfdFlags::CLOEXEC).map_err(|e| not_loaded(&e))?;
        let mut copy = File::from(file.try_clone().map_err(|e| not_loaded(&e))?);
        copy.write_all(bytes).map_err(|e| not_loaded(&e))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let calling = Calling::begin(name);
        // SAFETY: initialisers of the library run. The caller trusts the program with this process.
        let library = unsafe { libloading::Library::new(&path) }
            .map_err(|e| not_loaded(&e.to_string().replace(&path, "the file")))?;
        // SAFETY: the names and types are those of `netbump.h`, to whose version the program is bound; the library lives as
        // long as the calls.
        let calls = unsafe {
            let version = library.get::<*const u32>(b"netbump_version\0").map_err(|_| LoadError::NoProgram)?;
            if **version != VERSION {
                return Err(LoadError::Version(**version));
            }
            let argv: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
            match library.get::<Open>(b"netbump_open\0") {
                Ok(open) => match open(texts.len() as i32, argv.as_ptr()) {
                    0 => {}
                    code => return Err(LoadError::Refused(code)),
                },
                Err(_) if texts.is_empty() => {}
                Err(_) => return Err(LoadError::Refused(-1)),
            }
            Calls {
                init: library.get::<Init>(b"netbump_init\0").ok().map(|call| *call),
                classify: library.get::<Classify>(b"netbump_classify\0").ok().map(|call| *call).filter(|_| {
                    // Programs in Rust define every call.
                    library.get::<*const u32>(b"netbump_classifies\0").map_or(true, |of_its_own| **of_its_own != 0)
                }),
                vaqm: library.get::<Vaqm>(b"netbump_vaqm\0").ok().map(|call| *call),
                estimate: library.get::<Estimate>(b"netbump_estimate_qlen\0").ok().map(|call| *call),
                process: library.get::<Process>(b"netbump_process\0").ok().map(|call| *call),
                forward: library.get::<Forward>(b"netbump_forward\0").ok().map(|call| *call),
            }
        };
        drop(calling);
        Ok(Library { name: name.into(), calls, seed, _library: library, _file: file })
    }

    /// `init`: a virtual queue begins.
    pub fn init(&self, id: QueueId, port: Port) -> QueueState {
        let (rate, limit) = (port.rate.as_bps(), port.buffer_bytes.unwrap_or(0));
        let mut shown = Box::new(VQueue { tokens: 0, last_update: 0, rate, limit, id, user: std::ptr::null_mut() });
        if let Some(init) = self.calls.init {
            let _calling = Calling::begin(&self.name);
            // SAFETY: the program uses the queue only in calls that are given it.
            unsafe { init(&mut *shown, rate) };
        }
        QueueState { shown, rng: Rng::from_words(&[self.seed, id.into(), u64::from_be_bytes(*b"program\0")]) }
    }

    /// Whether `classify` or `forward` look into the frame.
    pub fn chooses(&self) -> bool {
        self.calls.classify.is_some() || self.calls.forward.is_some()
    }

    /// Whether `classify` looks into the frame.
    pub fn classifies(&self) -> bool {
        self.calls.classify.is_some()
    }

    /// Calls the program with a packet.
    fn call<R>(
        &self,
        rng: &mut Rng,
        called: &mut Called<'_>,
        queue: Option<&mut VirtualQueue>,
        send: &mut dyn FnMut(u16, &[u8]) -> bool,
        call: impl FnOnce(&mut Packet) -> R,
    ) -> R {
        let capacity = called.buffer.len() as u32;
        let mut context = Context { rng, now: called.now, queue, wire_bytes: called.wire_bytes.into(), send };
        let mut packet = Packet::new(Made {
            data: called.buffer.as_mut_ptr(),
            len: called.len.min(capacity),
            capacity,
            wire_bytes: called.wire_bytes,
            port: called.port,
            queue: called.mapped.unwrap_or(u16::MAX),
            timestamp: called.now.as_ps(),
            host: &HOST,
            context: (&raw mut context).cast::<c_void>(),
        });
        let calling = Calling::begin(&self.name);
        let result = call(&mut packet);
        drop(calling);
        called.len = packet.len().min(capacity);
        result
    }

    /// Random numbers for `classify` and `forward`, which are not about a queue: one for each bump or loop.
    pub fn rng(&self) -> Rng {
        Rng::from_words(&[self.seed, u64::from_be_bytes(*b"classify")])
    }

    /// `classify`: the packet's virtual queue. A number that none of the `queues` has counts as none.
    pub fn classify(&self, called: &mut Called<'_>, rng: &mut Rng, queues: usize) -> Option<QueueId> {
        let Some(classify) = self.calls.classify else { return called.mapped };
        // SAFETY: the packet lives during the call.
        let id = self.call(rng, called, None, &mut |_, _| false, |packet| unsafe { classify(packet) });
        let known = |id: &u16| usize::from(*id) < queues;
        if id == NO_QUEUE { None } else { u16::try_from(id).ok().filter(known) }
    }

    /// `vAQM` and `process`: the packet enters the virtual queue, and the program decides about it. A packet that is dropped is
    /// taken out again, unless the program has a `vAQM` of its own. `is_counted` is false for a frame that is not for the
    /// port: a notification.
    pub fn process(
        &self,
        called: &mut Called<'_>,
        (state, queue): (&mut QueueState, &mut VirtualQueue),
        is_counted: bool,
        send: &mut dyn FnMut(u16, &[u8]) -> bool,
    ) -> Outcome {
        let (calls, QueueState { shown, rng }) = (&self.calls, state);
        let (now, wire_bytes) = (called.now, u64::from(called.wire_bytes));
        if calls.vaqm.is_none() {
            // Neighbours may have reported packets meanwhile.
            shown.tokens = queue.bytes(now);
        }
        let code = self.call(rng, called, Some(&mut *queue), send, |packet| {
            match (calls.vaqm, is_counted) {
                (_, false) => {}
                // SAFETY: packet and queue live during the call; so below.
                (Some(vaqm), true) => unsafe { vaqm(packet, &mut **shown) },
                // SAFETY: the packet is the one that this call has made.
                (None, true) => unsafe { context(packet).enter(shown) },
            }
            // SAFETY: as above.
            calls.process.map_or(0, |process| unsafe { process(packet, &mut **shown) })
        });
        let verdict = match code {
            0 => Verdict::Forward,
            2 => Verdict::Consume,
            // A code that does not exist is a fault of the program: its packet does not go on.
            _ => Verdict::Drop(DropReason::Extension),
        };
        if matches!(verdict, Verdict::Drop(_)) && calls.vaqm.is_none() && is_counted {
            queue.take_back(now, wire_bytes);
            shown.tokens = queue.bytes(now);
        }
        Outcome { verdict, len: called.len }
    }

    /// `estimateQlen`: bytes in a virtual queue.
    pub fn estimate_qlen(&self, now: Instant, (state, queue): (&QueueState, &VirtualQueue)) -> u64 {
        let shown = &state.shown;
        let _calling = Calling::begin(&self.name);
        match (self.calls.estimate, self.calls.vaqm) {
            // SAFETY: the queue lives during the call.
            (Some(estimate), _) => unsafe { estimate(&**shown, now.as_ps()) },
            (None, Some(_)) => {
                let elapsed = u128::from(now.as_ps().saturating_sub(shown.last_update));
                let drained = elapsed * u128::from(shown.rate) / 8_000_000_000_000;
                shown.tokens.saturating_sub(u64::try_from(drained).unwrap_or(u64::MAX))
            }
            (None, None) => queue.bytes(now),
        }
    }

    /// `forward`: the port by which a packet leaves, if the program chooses one of `ports`; otherwise the other end of its link.
    pub fn forward(&self, called: &mut Called<'_>, rng: &mut Rng, ports: u16) -> u16 {
        let other = called.port ^ 1;
        let Some(forward) = self.calls.forward else { return other };
        // SAFETY: the packet lives during the call.
        let port = self.call(rng, called, None, &mut |_, _| false, |packet| unsafe { forward(packet) });
        u16::try_from(port).ok().filter(|&port| port < ports).unwrap_or(other)
    }
}

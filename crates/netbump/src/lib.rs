//! Programs for a bump in the wire (NetBump; Al-Fares 2012, Table 5.1): the interface of `include/netbump.h` in Rust.
//!
//! A program is a shared library. Implement [`Program`], name it in [`program!`], and build a `cdylib`:
//!
//! ```
//! use sluicenet_netbump::{Packet, Program, Verdict, VQueue};
//!
//! struct Dctcp {
//!     threshold: u64,
//! }
//!
//! impl Program for Dctcp {
//!     type Queue = ();
//!
//!     fn open(arguments: &[&str]) -> Result<Dctcp, String> {
//!         let threshold = arguments.first().unwrap_or(&"30360").parse().map_err(|e| format!("threshold: {e}"))?;
//!         Ok(Dctcp { threshold })
//!     }
//!
//!     fn process(&self, packet: &mut Packet, queue: &mut VQueue, _own: &mut ()) -> Verdict {
//!         if queue.tokens > self.threshold {
//!             packet.mark();
//!         }
//!         Verdict::Forward
//!     }
//! }
//!
//! sluicenet_netbump::program!(Dctcp);
//! # fn main() {}
//! ```
//!
//! The same library runs on a real cable (`sluicenet bump run FILE --app ./libmine.so`) and in the simulator.

use std::ffi::c_void;

/// Version of the interface: a program of another version is refused.
pub const VERSION: u32 = 1;
/// The queue of a packet that belongs to none.
pub const NO_QUEUE: i32 = -1;

/// A packet in the bump, as `netbump.h` has it.
#[repr(C)]
#[derive(Debug)]
pub struct Packet {
    data: *mut u8,
    len: u32,
    capacity: u32,
    wire_bytes: u32,
    port: u16,
    queue: u16,
    timestamp: u64,
    host: *const Host,
    context: *mut c_void,
}

/// A virtual queue, as `netbump.h` has it.
#[repr(C)]
#[derive(Debug)]
pub struct VQueue {
    /// Bytes in the queue, with the packet.
    pub tokens: u64,
    /// When the last packet entered it, in picoseconds.
    pub last_update: u64,
    /// Drain rate in bit/s.
    pub rate: u64,
    /// Bytes at which the port's buffer is full; 0 if that is unknown.
    pub limit: u64,
    /// Its number.
    pub id: u16,
    /// The program's own.
    pub user: *mut c_void,
}

/// What a bump does for a program, as `netbump.h` has it.
#[repr(C)]
#[derive(Debug)]
pub struct Host {
    /// Sends a frame of the program's own.
    pub send: unsafe extern "C" fn(*const Packet, u16, *const u8, u32) -> i32,
    /// 32 random bits.
    pub random: unsafe extern "C" fn(*const Packet) -> u32,
    /// The leaky bucket.
    pub enter: unsafe extern "C" fn(*const Packet, *mut VQueue),
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Verdict {
    /// It goes on, changed or not.
    Forward = 0,
    /// It is dropped and taken out of the virtual queue.
    Drop = 1,
    /// It was for the bump.
    Consume = 2,
}

/// The fields of a packet for the side that makes one.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// The frame from its destination address on.
    pub data: *mut u8,
    /// Its bytes, without the check sequence.
    pub len: u32,
    /// Most bytes at `data`.
    pub capacity: u32,
    /// Bytes that it takes on the wire.
    pub wire_bytes: u32,
    /// The port by which it came in.
    pub port: u16,
    /// Its virtual queue in the bump's map, or 65535.
    pub queue: u16,
    /// When it came in, in picoseconds.
    pub timestamp: u64,
    /// The host's calls.
    pub host: *const Host,
    /// The host's own.
    pub context: *mut c_void,
}

impl Packet {
    /// A packet for a program. The program may use `data` up to `capacity` while the packet lives.
    pub fn new(made: Made) -> Packet {
        let Made { data, len, capacity, wire_bytes, port, queue, timestamp, host, context } = made;
        Packet { data, len, capacity, wire_bytes, port, queue, timestamp, host, context }
    }

    /// The frame, from its destination address on.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the host gives `len` readable bytes, which live as long as the packet. A program in Rust cannot change the
        // fields, and one in C is not this code.
        unsafe { std::slice::from_raw_parts(self.data, self.len as usize) }
    }

    /// The same, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the packet is borrowed mutably: nobody else uses its bytes.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len as usize) }
    }

    /// Length of the frame, as the program left it.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the frame is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Changes the length of the frame; returns whether there is room. Added bytes are those that were there before.
    pub fn resize(&mut self, len: u32) -> bool {
        let fits = len <= self.capacity;
        if fits {
            self.len = len;
        }
        fits
    }

    /// Bytes that it takes on the wire, with check sequence, preamble and gap.
    pub fn wire_bytes(&self) -> u32 {
        self.wire_bytes
    }

    /// The port by which it came in.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its virtual queue in the bump's map, if the map has one.
    pub fn mapped(&self) -> Option<u16> {
        (self.queue != u16::MAX).then_some(self.queue)
    }

    /// When it came in, in picoseconds.
    pub fn timestamp(&self) -> u64 {
        self.timestamp
    }

    /// The host's own, for the host.
    pub fn context(&self) -> *mut c_void {
        self.context
    }

    /// Where the IP header begins, behind at most one 802.1Q tag, and whether it is IPv6.
    fn ip(&self) -> Option<(usize, bool)> {
        let frame = self.bytes();
        let at = if frame.get(12..14)? == [0x81, 0x00] { 18 } else { 14 };
        match (frame.get(at - 2..at)?, frame.get(at)? >> 4) {
            ([0x08, 0x00], 4) if frame.len() >= at + 20 => Some((at, false)),
            ([0x86, 0xDD], 6) if frame.len() >= at + 40 => Some((at, true)),
            _ => None,
        }
    }

    /// The ECN field: 0 not capable, 1 ECT(1), 2 ECT(0), 3 congestion experienced.
    pub fn ecn(&self) -> u8 {
        self.ip().map_or(0, |(at, is_six)| self.bytes()[at + 1] >> if is_six { 4 } else { 0 } & 3)
    }

    /// Marks the packet with congestion experienced if its transport supports ECN; returns whether it does.
    pub fn mark(&mut self) -> bool {
        let (ecn, Some((at, is_six))) = (self.ecn(), self.ip()) else { return false };
        let header = &mut self.bytes_mut()[at..];
        match (ecn, is_six) {
            (0, _) => return false,
            (3, _) => {}
            (_, true) => header[1] |= 0x30,
            (_, false) => {
                header[1] |= 3;
                // RFC 1624, equation 3: one word of the header has changed, by 3 - ecn.
                let sum = u32::from(!u16::from_be_bytes([header[10], header[11]])) + u32::from(3 - ecn);
                let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
        }
        true
    }

    /// Sends a frame of the program's own by a port; returns whether it could be sent.
    pub fn send(&self, port: u16, frame: &[u8]) -> bool {
        let Ok(len) = u32::try_from(frame.len()) else { return false };
        // SAFETY: the host gives its calls, which live as long as the packet; the frame has `len` bytes.
        unsafe { ((*self.host).send)(self, port, frame.as_ptr(), len) == 0 }
    }

    /// A random number from 0 to below 1.
    pub fn random(&self) -> f64 {
        // SAFETY: as for `send`.
        f64::from(unsafe { ((*self.host).random)(self) }) / 4_294_967_296.0
    }

    /// The leaky bucket: the packet enters a virtual queue.
    pub fn enter(&self, queue: &mut VQueue) {
        // SAFETY: as for `send`; the host uses the queue only during the call.
        unsafe { ((*self.host).enter)(self, queue) }
    }
}

/// A program: the calls of Table 5.1.
pub trait Program: Sized + Send + Sync + 'static {
    /// What the program knows about a virtual queue.
    type Queue: Default;

    /// Whether `classify` is called. Otherwise packets have the virtual queues of the map, and each queue can have a process of
    /// its own.
    const CLASSIFIES: bool = false;

    /// The program with these arguments.
    ///
    /// # Errors
    /// What is wrong with the arguments, for the user.
    fn open(arguments: &[&str]) -> Result<Self, String>;

    /// `init`: a virtual queue begins, with its drain rate in bit/s.
    fn init(&self, _queue: &mut VQueue, _own: &mut Self::Queue) {}

    /// `classify`: the packet's virtual queue; a packet without one passes unseen. Called only with [`Program::CLASSIFIES`].
    fn classify(&self, packet: &mut Packet) -> Option<u16> {
        packet.mapped()
    }

    /// `vAQM`: the packet enters the virtual queue.
    fn vaqm(&self, packet: &mut Packet, queue: &mut VQueue, _own: &mut Self::Queue) {
        packet.enter(queue);
    }

    /// `estimateQlen`: bytes in the virtual queue at a time in picoseconds.
    fn estimate_qlen(&self, queue: &VQueue, now: u64) -> u64 {
        let drained = u128::from(now.saturating_sub(queue.last_update)) * u128::from(queue.rate) / 8_000_000_000_000;
        queue.tokens.saturating_sub(u64::try_from(drained).unwrap_or(u64::MAX))
    }

    /// `process`: the decision about a packet.
    fn process(&self, packet: &mut Packet, queue: &mut VQueue, own: &mut Self::Queue) -> Verdict;

    /// `forward`: the port by which a packet leaves.
    fn forward(&self, packet: &Packet) -> u16 {
        packet.port() ^ 1
    }
}

/// Exports a [`Program`] under the names of `netbump.h`.
#[macro_export]
macro_rules! program {
    ($program:ty) => {
        #[doc(hidden)]
        mod netbump_exports {
            use super::*;
            use std::ffi::{CStr, c_char};
            use std::sync::OnceLock;
            use $crate::{NO_QUEUE, Packet, Program, VERSION, VQueue};

            static PROGRAM: OnceLock<$program> = OnceLock::new();

            type Own = <$program as Program>::Queue;

            fn program() -> &'static $program {
                PROGRAM.get().expect("opened before it is used")
            }

            /// # Safety
            /// The queue was given to `netbump_init` before.
            unsafe fn own<'a>(queue: *const VQueue) -> &'a mut Own {
                // SAFETY: `netbump_init` has set the pointer, and one thread at a time uses a queue.
                unsafe { &mut *(*queue).user.cast::<Own>() }
            }

            #[unsafe(no_mangle)]
            pub static netbump_version: u32 = VERSION;

            // A library in Rust defines every call: this tells whether the program has a `classify` of its own.
            #[unsafe(no_mangle)]
            pub static netbump_classifies: u32 = <$program as Program>::CLASSIFIES as u32;

            #[unsafe(no_mangle)]
            unsafe extern "C" fn netbump_open(argc: i32, argv: *const *const c_char) -> i32 {
                // SAFETY: the host gives `argc` texts.
                let texts: Vec<&CStr> =
                    (0..argc.max(0) as usize).map(|i| unsafe { CStr::from_ptr(*argv.add(i)) }).collect();
                let arguments: Result<Vec<&str>, _> = texts.iter().map(|text| text.to_str()).collect();
                let opened =
                    arguments.map_err(|e| e.to_string()).and_then(|arguments| <$program as Program>::open(&arguments));
                match opened {
                    Ok(program) => i32::from(PROGRAM.set(program).is_err()),
                    Err(why) => {
                        eprintln!("{why}");
                        1
                    }
                }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn netbump_init(queue: *mut VQueue, _rate: u64) {
                let mut own = Box::<Own>::default();
                // SAFETY: the host gives a queue that lives as long as the program.
                unsafe {
                    program().init(&mut *queue, &mut own);
                    (*queue).user = Box::into_raw(own).cast();
                }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn netbump_classify(packet: *mut Packet) -> i32 {
                // SAFETY: the host gives a packet for the time of the call; so below.
                program().classify(unsafe { &mut *packet }).map_or(NO_QUEUE, i32::from)
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn netbump_vaqm(packet: *mut Packet, queue: *mut VQueue) {
                // SAFETY: as above.
                unsafe { program().vaqm(&mut *packet, &mut *queue, own(queue)) }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn netbump_estimate_qlen(queue: *const VQueue, now: u64) -> u64 {
                // SAFETY: as above.
                program().estimate_qlen(unsafe { &*queue }, now)
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn netbump_process(packet: *mut Packet, queue: *mut VQueue) -> i32 {
                // SAFETY: as above.
                unsafe { program().process(&mut *packet, &mut *queue, own(queue)) as i32 }
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn netbump_forward(packet: *const Packet) -> i32 {
                // SAFETY: as above.
                i32::from(program().forward(unsafe { &*packet }))
            }
        }
    };
}

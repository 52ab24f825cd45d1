//! A port in shared memory: the fast path for programs that speak it (`docs/shm.md` has the layout byte by byte).
//!
//! The memory holds buffers of equal size and four rings of entries that name them, as AF_XDP has: the program puts frames
//! into buffers and names them in `send`; the switch names them in `returned` when they are delivered or dropped. The
//! program names empty buffers in `free`; the switch fills them and names them in `receive`. A frame that cannot be
//! delivered keeps its buffer, so that a program that sends too fast runs out of buffers: that is the backpressure.

use crate::region::{BUFFER_BYTES, Buffers, Region, RingCells};
use crate::ring::{Broken, Consumer, Producer};
use crate::sync::Ordering;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// First bytes of the memory: `sluiceP` and the version of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sluiceP\x01");

/// Shortest and longest frame without its check sequence.
pub const FRAME_BYTES: std::ops::RangeInclusive<usize> = 14..=BUFFER_BYTES;

const AT_MAGIC: usize = 0;
const AT_BUFFERS: usize = 8;
const AT_RINGS: usize = 256;
/// Which of the four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Send,
    Returned,
    Receive,
    Free,
}

fn ring(region: &Arc<Region>, buffers: u32, role: Role) -> RingCells {
    RingCells::new(region, AT_RINGS + role as usize * RingCells::bytes(buffers), buffers)
}

fn buffers_at(buffers: u32) -> usize {
    (AT_RINGS + 4 * RingCells::bytes(buffers)).next_multiple_of(4096)
}

/// Bytes of memory a port with so many buffers takes.
pub fn region_bytes(buffers: u32) -> usize {
    buffers_at(buffers) + buffers as usize * BUFFER_BYTES
}

/// A frame in a buffer, as an entry of a ring: the number of the buffer and the length of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The buffer.
    pub buffer: u32,
    /// Bytes of the frame.
    pub len: u16,
}

impl Descriptor {
    #[inline(always)]
    fn to_entry(self) -> u64 {
        self.buffer as u64 | (self.len as u64) << 32
    }
    #[inline(always)]
    fn from_entry(entry: u64) -> Descriptor {
        Descriptor { buffer: entry as u32, len: (entry >> 32) as u16 }
    }
}

/// Why a port is no longer served: its program broke the rules of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenPort;

impl From<Broken> for BrokenPort {
    fn from(_: Broken) -> BrokenPort {
        BrokenPort
    }
}

/// The switch's end of a port.
#[derive(Debug)]
pub struct Port {
    region: Arc<Region>,
    buffers: Buffers,
    send: Consumer<RingCells>,
    returned: Producer<RingCells>,
    receive: Producer<RingCells>,
    free: Consumer<RingCells>,
    /// Frames taken from `send` and not yet named in `returned`.
    lent: u32,
    /// Entries that named no buffer, or a frame too short or too long.
    pub bad_entries: u64,
}

impl Port {
    /// A new port with `buffers` of them, a power of two from 2 to 65,536.
    pub fn create(name: &str, buffers: u32) -> io::Result<Port> {
        assert!(buffers.is_power_of_two() && (2..=1 << 16).contains(&buffers));
        let region = Arc::new(Region::create(name, region_bytes(buffers))?);
        region.word(AT_BUFFERS).store(buffers, Ordering::Relaxed);
        region.long(AT_MAGIC).store(MAGIC, Ordering::Release);
        Ok(Port {
            send: Consumer::new(ring(&region, buffers, Role::Send)),
            returned: Producer::new(ring(&region, buffers, Role::Returned)),
            receive: Producer::new(ring(&region, buffers, Role::Receive)),
            free: Consumer::new(ring(&region, buffers, Role::Free)),
            buffers: Buffers::new(&region, buffers_at(buffers), buffers),
            region,
            lent: 0,
            bad_entries: 0,
        })
    }

    /// The memory of the port.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Its buffers.
    #[inline(always)]
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The next frame the program sends; it stays the next until [`Port::accept`].
    #[inline(always)]
    pub fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        loop {
            let Some(entry) = self.send.peek()? else { return Ok(None) };
            // Each frame taken must have room in `returned`; a program that does not take its buffers back waits.
            if self.lent >= self.returned.known_room() && self.lent >= self.returned.room()? {
                return Ok(None);
            }
            let frame = Descriptor::from_entry(entry);
            if frame.buffer < self.buffers.count() && FRAME_BYTES.contains(&(frame.len as usize)) {
                return Ok(Some(frame));
            }
            self.bad_entries += 1;
            self.send.advance();
        }
    }

    /// Takes the frame that [`Port::next_frame`] showed: its buffer is lent until [`Port::give_back`].
    #[inline(always)]
    pub fn accept(&mut self) {
        self.send.advance();
        self.lent += 1;
    }

    /// Gives a lent buffer back to the program.
    #[inline(always)]
    pub fn give_back(&mut self, buffer: u32) {
        self.lent -= 1;
        self.returned.push(Descriptor { buffer, len: 0 }.to_entry());
    }

    /// An empty buffer of the program for a frame towards it, if it has given one.
    #[inline(always)]
    pub fn empty_buffer(&mut self) -> Result<Option<u32>, BrokenPort> {
        // As many frames as `receive` holds can be on their way at once, however many buffers were named.
        if self.receive.known_room() == 0 && self.receive.room()? == 0 {
            return Ok(None);
        }
        loop {
            let Some(entry) = self.free.pop()? else { return Ok(None) };
            let buffer = Descriptor::from_entry(entry).buffer;
            if buffer < self.buffers.count() {
                return Ok(Some(buffer));
            }
            self.bad_entries += 1;
        }
    }

    /// Whether a frame towards the program would find an empty buffer.
    pub fn has_room(&mut self) -> Result<bool, BrokenPort> {
        Ok(self.free.peek()?.is_some() && self.receive.room()? > 0)
    }

    /// Names a filled buffer to the program.
    #[inline(always)]
    pub fn deliver(&mut self, frame: Descriptor) {
        self.receive.push(frame.to_entry());
    }

    /// Shows the program what was done; whether it sleeps and has to be woken.
    #[inline(always)]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.send.publish();
        self.free.publish();
        let returned = self.returned.publish();
        self.receive.publish() | returned
    }

    /// Frames accepted and not yet given back.
    #[inline(always)]
    pub fn lent(&self) -> u32 {
        self.lent
    }

    /// Whether the program has to take buffers back before it can send.
    #[inline(always)]
    pub fn owes_room(&self) -> bool {
        self.lent >= self.returned.known_room()
    }

    /// Says that the switch is going to sleep; whether it may. What a `blocked` port sends keeps nobody awake.
    pub fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort> {
        Ok((blocked || self.send.fall_asleep()?) & self.free.fall_asleep()?)
    }

    /// The switch is awake again.
    pub fn wake_up(&mut self) {
        self.send.wake_up();
        self.free.wake_up();
    }
}

/// A program's end of a port.
#[derive(Debug)]
pub struct Client {
    buffers: Buffers,
    send: Producer<RingCells>,
    returned: Consumer<RingCells>,
    receive: Consumer<RingCells>,
    free: Producer<RingCells>,
    /// Buffers to send with.
    stock: Vec<u32>,
}

impl Client {
    /// Opens a port by the file of its memory. Half of the buffers are for sending, half for receiving.
    pub fn open(file: OwnedFd) -> io::Result<Client> {
        let region = Arc::new(Region::open(file)?);
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if region.len() < AT_RINGS || region.long(AT_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(wrong("not a port of this version of sluicenet"));
        }
        let buffers = region.word(AT_BUFFERS).load(Ordering::Relaxed);
        if !buffers.is_power_of_two() || !(2..=1 << 16).contains(&buffers) || region.len() != region_bytes(buffers) {
            return Err(wrong("a port whose memory has not the size that it says"));
        }
        let mut client = Client {
            send: Producer::new(ring(&region, buffers, Role::Send)),
            returned: Consumer::new(ring(&region, buffers, Role::Returned)),
            receive: Consumer::new(ring(&region, buffers, Role::Receive)),
            free: Producer::new(ring(&region, buffers, Role::Free)),
            buffers: Buffers::new(&region, buffers_at(buffers), buffers),
            stock: (0..buffers / 2).collect(),
        };
        for buffer in buffers / 2..buffers {
            client.free.push(Descriptor { buffer, len: 0 }.to_entry());
        }
        let _ = client.free.publish();
        Ok(client)
    }

    /// Takes back what the switch has done with.
    #[inline(always)]
    fn reap(&mut self) -> Result<(), BrokenPort> {
        while let Some(entry) = self.returned.pop()? {
            let buffer = Descriptor::from_entry(entry).buffer;
            if buffer >= self.buffers.count() || self.stock.len() >= self.buffers.count() as usize {
                return Err(BrokenPort);
            }
            self.stock.push(buffer);
        }
        self.returned.publish();
        Ok(())
    }

    /// Sends a frame; `false` when there is no buffer: the switch holds them all back.
    #[inline(always)]
    pub fn send(&mut self, frame: &[u8]) -> Result<bool, BrokenPort> {
        assert!(FRAME_BYTES.contains(&frame.len()), "a frame of {} bytes", frame.len());
        if self.stock.is_empty() {
            self.reap()?;
        }
        if self.send.known_room() == 0 && self.send.room()? == 0 {
            return Ok(false);
        }
        let Some(buffer) = self.stock.pop() else { return Ok(false) };
        self.buffers.write(buffer, frame);
        self.send.push(Descriptor { buffer, len: frame.len() as u16 }.to_entry());
        Ok(true)
    }

    /// Receives a frame into `into` and says how long it is; a longer one than `into` is cut off.
    #[inline(always)]
    pub fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, BrokenPort> {
        let Some(entry) = self.receive.pop()? else { return Ok(None) };
        let Descriptor { buffer, len } = Descriptor::from_entry(entry);
        if buffer >= self.buffers.count() || len as usize > BUFFER_BYTES {
            return Err(BrokenPort);
        }
        let copied = into.len().min(len as usize);
        self.buffers.read(buffer, &mut into[..copied]);
        if self.free.known_room() == 0 && self.free.room()? == 0 {
            return Err(BrokenPort);
        }
        self.free.push(Descriptor { buffer, len: 0 }.to_entry());
        Ok(Some(len as usize))
    }

    /// Shows the switch what was done; whether it sleeps and has to be woken.
    #[inline(always)]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.receive.publish();
        let sent = self.send.publish();
        self.free.publish() | sent
    }

    /// Says that the program is going to sleep until it can receive, or send; whether it may.
    pub fn fall_asleep(&mut self) -> Result<bool, BrokenPort> {
        Ok(self.receive.fall_asleep()? & (!self.stock.is_empty() || self.returned.fall_asleep()?))
    }
}

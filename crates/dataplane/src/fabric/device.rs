//! The device on the other side of an edge, which carries whole frames.

use rustix::event::{PollFd, PollFlags};
use std::io;
use std::os::unix::net::UnixDatagram;

/// A server's end of its link. It never blocks.
pub trait Device {
    /// Hands over frames from the server, without their check sequences: all there are, or at least 32. Returns how many.
    ///
    /// # Errors
    /// The device is gone.
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize>;

    /// Sends a frame, without its check sequence, to the server; returns whether the server had room.
    ///
    /// # Errors
    /// The device is gone.
    fn send(&mut self, frame: &[u8]) -> io::Result<bool>;

    /// Whether [`Device::keep`] takes a frame now.
    fn keeps(&self) -> bool {
        false
    }

    /// Takes a frame to be sent, as [`Device::send`] does, but without a copy. Its memory comes back from [`Device::spare`]
    /// once it is sent. An error hands the frame back: the device does not keep frames, or has no room.
    fn keep(&mut self, frame: Vec<u8>) -> Result<(), Vec<u8>> {
        Err(frame)
    }

    /// Memory of a frame that was kept and has been sent.
    fn spare(&mut self) -> Option<Vec<u8>> {
        None
    }

    /// Sends the frames that [`Device::send`] has collected, if the device sends many at once.
    ///
    /// # Errors
    /// The device is gone.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The events that wake the fabric: frames, and room if it waits `for_room`.
    fn wakers<'a>(&'a self, for_room: bool, fds: &mut Vec<PollFd<'a>>);

    /// The device's own counters, by name.
    fn counters(&self, show: &mut dyn FnMut(&'static str, u64));
}

/// One end of a pair of connected devices within a machine. Few frames fit in between.
#[derive(Debug)]
pub struct Local {
    socket: UnixDatagram,
    scratch: Box<[u8]>,
    received: u64,
    sent: u64,
    full: u64,
}

/// More bytes than any frame has.
const LONGEST: usize = 1 << 16;
/// Frames handed over in one call, since the clock goes on meanwhile.
const BATCH: usize = 32;

impl Local {
    /// Two ends.
    ///
    /// # Errors
    /// No more file descriptors.
    pub fn pair() -> io::Result<(Local, Local)> {
        let (a, b) = UnixDatagram::pair()?;
        let end = |socket: UnixDatagram| -> io::Result<Local> {
            socket.set_nonblocking(true)?;
            Ok(Local { socket, scratch: vec![0; LONGEST].into(), received: 0, sent: 0, full: 0 })
        };
        Ok((end(a)?, end(b)?))
    }
}

impl Device for Local {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        for n in 0..BATCH {
            match self.socket.recv(&mut self.scratch) {
                Ok(len) => take(&self.scratch[..len]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(n),
                Err(e) => return Err(e),
            }
            self.received += 1;
        }
        Ok(BATCH)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        match self.socket.send(frame) {
            Ok(_) => self.sent += 1,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.full += 1;
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    fn wakers<'a>(&'a self, for_room: bool, fds: &mut Vec<PollFd<'a>>) {
        let room = if for_room { PollFlags::OUT } else { PollFlags::empty() };
        fds.push(PollFd::new(&self.socket, PollFlags::IN | room));
    }

    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        show("rx_frames", self.received);
        show("tx_frames", self.sent);
        show("tx_full", self.full);
    }
}

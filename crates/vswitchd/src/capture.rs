//! Captures the frames at a port, as pcapng over the control connection. A separate thread of the switch writes the
//! capture; the client stores the frames with its own rights.

use super::control::{Answer, Request};
use super::served::Served;
use rustix::net::RecvFlags;
use sluicenet_dataplane::tap::{self, Capture, Captured};
use sluicenet_sim::pcapng::{Direction, Interface, InterfaceId, LinkType, Packet, PcapngWriter};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::info;

/// How often each end checks whether the capture is over.
const EVERY: Duration = Duration::from_millis(100);

/// The longest block that a switch writes: a frame of 128 KiB and the block's own fields.
const BLOCK_BYTES_MAX: usize = 1 << 18;

/// Enhanced Packet Block and Interface Statistics Block, and the latter's option with the number of missing frames.
const PACKET_BLOCK: u32 = 6;
const STATISTICS_BLOCK: u32 = 5;
const ISB_IFDROP: u16 = 5;

/// The origin of the times in a capture.
struct Epoch {
    start: Instant,
    /// The wall clock: seconds since 1970, and nanoseconds.
    seconds: u64,
    nanos: u64,
}

impl Epoch {
    fn now() -> Epoch {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Epoch { start: Instant::now(), seconds: wall.as_secs(), nanos: wall.subsec_nanos().into() }
    }
    fn time_ps(&self, at: Instant) -> u64 {
        (at.saturating_duration_since(self.start).as_nanos() as u64 + self.nanos).saturating_mul(1_000)
    }
}

/// Writes the frames at a port to `stream` until its other end stops, `count` frames are written, or the port is gone.
pub(super) fn serve(
    stream: &UnixStream,
    daemon: &impl Served,
    port: &str,
    capture: Capture,
    snaplen: u32,
    count: Option<u64>,
) -> io::Result<()> {
    info!(port, "capture started");
    let outcome = write(stream, daemon, port, &capture, snaplen, count);
    daemon.close(&capture);
    let capture_lost = capture.lost();
    info!(port, frames = *outcome.as_ref().unwrap_or(&0), capture_lost, "capture ended");
    outcome.map(drop)
}

fn write(
    stream: &UnixStream,
    daemon: &impl Served,
    port: &str,
    capture: &Capture,
    snaplen: u32,
    count: Option<u64>,
) -> io::Result<u64> {
    let epoch = Epoch::now();
    let mut file = PcapngWriter::new(BufWriter::with_capacity(1 << 16, stream))?;
    let snaplen = if snaplen == u32::MAX { 0 } else { snaplen };
    let interface = Interface { name: port, link: LinkType::Ethernet, speed_bps: 0, snaplen, epoch_s: epoch.seconds };
    let interface = file.interface(&interface)?;
    file.flush()?;
    let (mut written, mut ending) = (0, false);
    let mut looked = Instant::now();
    while count.is_none_or(|count| written < count) {
        match capture.next(if ending { Duration::ZERO } else { EVERY }) {
            Ok(frame) => {
                put(&mut file, interface, &epoch, &frame)?;
                written += 1;
            }
            Err(RecvTimeoutError::Timeout) => file.flush()?,
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if !ending && looked.elapsed() >= EVERY {
            looked = Instant::now();
            if is_shut(stream) {
                // The frames captured so far are still written.
                daemon.close(capture);
                ending = true;
            }
        }
    }
    file.statistics(interface, epoch.time_ps(Instant::now()), capture.passed(), capture.lost())?;
    file.flush()?;
    Ok(written)
}

fn put<W: Write>(
    file: &mut PcapngWriter<W>,
    interface: InterfaceId,
    epoch: &Epoch,
    frame: &Captured,
) -> io::Result<()> {
    let comment = frame.dropped.map(|reason| format!("dropped: {}", reason.name()));
    file.packet(&Packet {
        interface,
        time_ps: epoch.time_ps(frame.time),
        direction: match frame.direction {
            tap::Direction::In => Direction::Inbound,
            tap::Direction::Out => Direction::Outbound,
        },
        bytes: &frame.bytes,
        original_len: frame.len,
        comment: comment.as_deref(),
    })
}

/// Whether the other end has shut its side; any data from it is ignored.
fn is_shut(stream: &UnixStream) -> bool {
    let mut said = [0u8; 64];
    matches!(rustix::net::recv(stream, &mut said, RecvFlags::DONTWAIT), Ok((_, 0)))
}

/// The result of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Frames written.
    pub captured: u64,
    /// Frames that are missing because they arrived faster than the capture could write; unknown if the switch ended.
    pub lost: Option<u64>,
}

/// The settings of a capture.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The port's name.
    pub port: String,
    /// Bytes kept of each frame.
    pub snaplen: Option<u32>,
    /// Frames after which the capture ends.
    pub count: Option<u64>,
    /// Time after which the capture ends.
    pub time: Option<Duration>,
}

/// Captures the frames at a port of the switch at `path` until `is_over`, and writes them to `out` at once.
///
/// # Errors
/// No switch answers at `path`, the port cannot be captured, or `out` cannot be written. A closed pipe
/// ([`ErrorKind::BrokenPipe`]) is no error.
pub fn record(path: &Path, wanted: &Wanted, out: &mut impl Write, is_over: impl Fn() -> bool) -> io::Result<Summary> {
    let stream = UnixStream::connect(path)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}: nothing runs there", path.display())))?;
    let request = Request::Capture { port: wanted.port.clone(), snaplen: wanted.snaplen, count: wanted.count };
    let mut line = serde_json::to_vec(&request).map_err(io::Error::other)?;
    line.push(b'\n');
    (&mut &stream).write_all(&line)?;
    let mut lines = BufReader::with_capacity(1 << 16, &stream);
    let mut answer = String::new();
    lines.by_ref().take(1 << 16).read_line(&mut answer)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Ok(_)) => {}
        Ok(Answer::Error(text) | Answer::Refused { error: text, .. }) => {
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        _ => return Err(io::Error::new(ErrorKind::InvalidData, "not the answer of a switch")),
    }
    stream.set_read_timeout(Some(EVERY))?;
    let mut summary = Summary::default();
    let (started, mut shut) = (Instant::now(), false);
    let mut blocks: Vec<u8> = Vec::new();
    loop {
        if !shut && (is_over() || wanted.time.is_some_and(|time| started.elapsed() >= time)) {
            stream.shutdown(Shutdown::Write)?;
            shut = true;
        }
        let read = match lines.fill_buf() {
            Ok([]) => return Ok(summary),
            Ok(bytes) => {
                blocks.extend_from_slice(bytes);
                bytes.len()
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                continue;
            }
            Err(e) => return Err(e),
        };
        lines.consume(read);
        let whole = look_over(&blocks, &mut summary)?;
        match out.write_all(&blocks[..whole]).and_then(|()| out.flush()) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(summary),
            done => done?,
        }
        blocks.drain(..whole);
    }
}

/// Counts the contents of complete blocks; the length of these blocks in bytes.
fn look_over(bytes: &[u8], summary: &mut Summary) -> io::Result<usize> {
    let word = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default()));
    let mut at = 0;
    while let (Some(kind), Some(len)) = (word(at), word(at + 4)) {
        let len = len as usize;
        if !(12..=BLOCK_BYTES_MAX).contains(&len) || len % 4 != 0 {
            return Err(io::Error::new(ErrorKind::InvalidData, "the switch sent something else than blocks of pcapng"));
        }
        let Some(block) = bytes.get(at..at + len) else { break };
        match kind {
            PACKET_BLOCK => summary.captured += 1,
            STATISTICS_BLOCK => summary.lost = option(&block[20.min(len)..], ISB_IFDROP),
            _ => {}
        }
        at += len;
    }
    Ok(at)
}

/// A number among the options of a block.
fn option(mut options: &[u8], wanted: u16) -> Option<u64> {
    while let [c0, c1, l0, l1, rest @ ..] = options {
        let len = u16::from_le_bytes([*l0, *l1]) as usize;
        if u16::from_le_bytes([*c0, *c1]) == wanted {
            return rest.get(..len)?.try_into().ok().map(u64::from_le_bytes);
        }
        options = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lost: u64) -> Vec<u8> {
        let mut file = PcapngWriter::new(Vec::new()).unwrap();
        let interface =
            Interface { name: "a", link: LinkType::Ethernet, speed_bps: 0, snaplen: 60, epoch_s: 1_700_000_000 };
        let interface = file.interface(&interface).unwrap();
        let epoch = Epoch::now();
        for dropped in [None, Some(sluicenet_proto::loss::DropReason::Watchdog)] {
            let bytes = vec![7; 60].into_boxed_slice();
            let direction = tap::Direction::Out;
            put(&mut file, interface, &epoch, &Captured { time: epoch.start, direction, len: 99, bytes, dropped })
                .unwrap();
        }
        file.statistics(interface, 5_000, 2 + lost, lost).unwrap();
        file.into_inner().unwrap()
    }

    #[test]
    fn whole_blocks_are_counted_wherever_they_are_cut() {
        let file = file(3);
        for cut in 0..file.len() {
            let mut summary = Summary::default();
            let whole = look_over(&file[..cut], &mut summary).unwrap();
            assert!(whole <= cut);
            assert_eq!(look_over(&file[whole..], &mut summary).unwrap(), file.len() - whole);
            assert_eq!(summary, Summary { captured: 2, lost: Some(3) });
        }
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        for bytes in [[0xff; 16], [0; 16], [5; 16]] {
            assert!(look_over(&bytes, &mut Summary::default()).is_err());
        }
        assert_eq!(option(&[5, 0, 8, 0, 1], 5), None);
        assert_eq!(option(&[1, 0, 9, 0, 1], 5), None);
    }
}

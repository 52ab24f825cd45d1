//! Sender and sink, the same in a namespace and in a guest, and their reports.

use serde::{Deserialize, Serialize};
use sluicenet_dataplane::kernel::edge::StackCounters;
use sluicenet_dataplane::kernel::load::{Sender, Sink};
use std::io;
use std::time::{Duration, Instant};

/// The sink's UDP port.
pub const PORT: u16 = 7000;

/// Load of each sender.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of a datagram.
    pub payload: usize,
    /// For how long.
    pub time: Duration,
    /// Mb/s of datagrams' bytes; without it, as fast as `send()` takes them.
    pub rate: Option<f64>,
}

/// Report of a sender.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sent {
    /// Datagrams that `send()` took.
    pub sent: u64,
    /// How long it sent.
    pub seconds: f64,
}

/// Report of a sink.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Received {
    /// Datagrams that `recv()` returned.
    pub received: u64,
    /// Datagrams that came out of order, twice, or after a gap.
    pub disordered: u64,
    /// The time from the first to the last.
    pub seconds: f64,
}

/// Counters of a kernel at the device of a sender or a sink.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Stack {
    /// Frames that the device sent.
    pub sent: u64,
    /// Frames that it received.
    pub received: u64,
    /// Thrown away in its queue.
    pub qdisc: u64,
    /// Thrown away at the device.
    pub device: u64,
    /// Between the device and the stack.
    pub softnet: u64,
    /// At full sockets.
    pub sockets: u64,
}

impl From<StackCounters> for Stack {
    fn from(c: StackCounters) -> Stack {
        let device = c.not_sent + c.not_received;
        let StackCounters { sent, received, qdisc, softnet, sockets, .. } = c;
        Stack { sent, received, qdisc, device, softnet, sockets }
    }
}

impl Stack {
    /// Counts since `before`.
    pub fn since(self, before: Stack) -> Stack {
        Stack {
            sent: self.sent.wrapping_sub(before.sent),
            received: self.received.wrapping_sub(before.received),
            qdisc: self.qdisc.wrapping_sub(before.qdisc),
            device: self.device.wrapping_sub(before.device),
            softnet: self.softnet.wrapping_sub(before.softnet),
            sockets: self.sockets.wrapping_sub(before.sockets),
        }
    }
}

/// Sends until the time is over or `stop` says so.
pub fn send(sender: &mut Sender, load: &Load, stop: impl Fn() -> bool) -> io::Result<Sent> {
    let (started, before) = (Instant::now(), sender.sent());
    let a_second = load.rate.map(|mbps| mbps * 1e6 / 8.0 / load.payload as f64);
    loop {
        let elapsed = started.elapsed();
        if elapsed >= load.time || stop() {
            return Ok(Sent { sent: sender.sent() - before, seconds: elapsed.as_secs_f64() });
        }
        let Some(a_second) = a_second else {
            sender.send(u64::MAX)?;
            continue;
        };
        // A sender catches up on the datagrams that it could not send while it was held back.
        let (due, sent) = (elapsed.as_secs_f64() * a_second, sender.sent() - before);
        if due >= sent as f64 + 1.0 {
            sender.send(due as u64 - sent)?;
        } else {
            let next = Duration::from_secs_f64((sent as f64 + 1.0) / a_second);
            std::thread::sleep(next.min(load.time).saturating_sub(elapsed));
        }
    }
}

/// Receives until as many have come as `told` says were sent, or nothing more for `quiet` after it says so.
pub fn receive(sink: &mut Sink, quiet: Duration, mut told: impl FnMut() -> Option<u64>) -> io::Result<Received> {
    let before = sink.received();
    let (mut first, mut last, mut silent_since) = (None, None, None);
    loop {
        let now_received = sink.receive(64)? > 0;
        let now = Instant::now();
        if now_received {
            first.get_or_insert(now);
            last = Some(now);
            silent_since = None;
            continue;
        }
        if let Some(sent) = told() {
            let silent = now - *silent_since.get_or_insert(now);
            if sink.received() - before >= sent || silent >= quiet {
                break;
            }
        }
    }
    let seconds = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    Ok(Received { received: sink.received() - before, disordered: sink.disordered(), seconds })
}

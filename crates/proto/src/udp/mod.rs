//! UDP's two ends: the sender cuts bytes into datagrams, and the receiver counts datagrams, so that losses show as
//! gaps.

use crate::time::{Duration, Instant};
use crate::units::Rate;
use alloc::collections::VecDeque;

/// Cuts the application's messages into datagrams, at a steady rate if one is set. No datagram has bytes of two messages.
#[derive(Clone, Debug, Default)]
pub struct UdpSender {
    /// Bytes left of the message that is being sent.
    current: u64,
    /// The lengths of the messages behind it.
    behind: VecDeque<u64>,
    queued: u64,
    sent: u64,
    rate: Option<Rate>,
    next_at: Instant,
}

impl UdpSender {
    /// A sender without a rate: it sends whenever it is polled.
    pub fn new() -> UdpSender {
        UdpSender::default()
    }

    /// A sender that spaces its datagrams so that their payload makes `rate`.
    pub fn paced(rate: Rate) -> UdpSender {
        assert!(rate.0 != 0, "a rate of zero never sends");
        UdpSender { rate: Some(rate), ..UdpSender::default() }
    }

    /// The application queues a message of so many bytes.
    pub fn send(&mut self, bytes: u64) {
        self.queued = self.queued.saturating_add(bytes);
        match (self.current, bytes) {
            (0, _) => self.current = bytes,
            (_, 0) => {}
            _ => self.behind.push_back(bytes),
        }
    }

    /// The next datagram, as offset in the stream and length. The caller keeps the pace by `poll_timeout`.
    #[inline]
    pub fn poll_transmit(&mut self, max_payload: u16) -> Option<(u64, u16)> {
        let len = self.current.min(u64::from(max_payload)) as u16;
        if len == 0 {
            return None;
        }
        let offset = self.sent;
        self.queued -= u64::from(len);
        self.current -= u64::from(len);
        self.sent += u64::from(len);
        if self.current == 0 && self.queued > 0 {
            self.current = self.behind.pop_front().unwrap_or(self.queued);
        }
        Some((offset, len))
    }

    /// The next datagram if its time has come: `poll_transmit` at the set rate. A late call is not made up for.
    #[inline]
    pub fn poll_transmit_at(&mut self, now: Instant, max_payload: u16) -> Option<(u64, u16)> {
        if now < self.next_at {
            return None;
        }
        let datagram = self.poll_transmit(max_payload)?;
        if let Some(rate) = self.rate {
            self.next_at = now.saturating_add(rate.time_for(u64::from(datagram.1)));
        }
        Some(datagram)
    }

    /// When the next datagram may go out, if there is one and a rate.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.queued != 0 && self.rate.is_some()).then_some(self.next_at)
    }

    /// Bytes queued.
    #[inline]
    pub fn pending(&self) -> u64 {
        self.queued
    }

    /// Bytes sent.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Time a payload of `bytes` takes at the set rate; zero without one.
    pub fn spacing(&self, bytes: u64) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| rate.time_for(bytes))
    }
}

/// Counts datagrams that arrive.
#[derive(Clone, Debug, Default)]
pub struct UdpReceiver {
    datagrams: u64,
    bytes: u64,
    highest: u64,
}

impl UdpReceiver {
    /// Takes in a datagram.
    #[inline]
    pub fn receive(&mut self, offset: u64, len: u16) {
        self.datagrams += 1;
        self.bytes += u64::from(len);
        self.highest = self.highest.max(offset.saturating_add(u64::from(len)));
    }

    /// Datagrams received.
    pub fn datagrams(&self) -> u64 {
        self.datagrams
    }

    /// Bytes received.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// End of the furthest datagram seen.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Bytes missing below the furthest datagram: lost, or still on their way. Each duplicate byte hides a missing
    /// byte.
    pub fn missing(&self) -> u64 {
        self.highest.saturating_sub(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_cut_into_datagrams_and_losses_are_gaps() {
        let mut sender = UdpSender::new();
        let mut receiver = UdpReceiver::default();
        sender.send(3500);
        let datagrams: alloc::vec::Vec<_> = core::iter::from_fn(|| sender.poll_transmit(1472)).collect();
        assert_eq!(datagrams, [(0, 1472), (1472, 1472), (2944, 556)]);
        assert_eq!((sender.pending(), sender.sent()), (0, 3500));
        receiver.receive(datagrams[2].0, datagrams[2].1);
        receiver.receive(datagrams[0].0, datagrams[0].1);
        assert_eq!((receiver.datagrams(), receiver.bytes(), receiver.missing()), (2, 2028, 1472));
    }

    #[test]
    fn messages_do_not_share_a_datagram() {
        let mut sender = UdpSender::new();
        for bytes in [2000, 0, 100, 1500] {
            sender.send(bytes);
        }
        assert_eq!(sender.pending(), 3600);
        let datagrams: alloc::vec::Vec<_> = core::iter::from_fn(|| sender.poll_transmit(1472)).collect();
        assert_eq!(datagrams, [(0, 1472), (1472, 528), (2000, 100), (2100, 1472), (3572, 28)]);
        assert_eq!((sender.pending(), sender.sent()), (0, 3600));
        sender.send(10);
        assert_eq!(sender.poll_transmit(1472), Some((3600, 10)));
    }

    #[test]
    fn a_rate_spaces_datagrams() {
        let mut sender = UdpSender::paced(Rate::gbps(1));
        sender.send(3000);
        let t = Instant::ZERO;
        assert_eq!(sender.poll_transmit_at(t, 1250), Some((0, 1250)));
        assert_eq!(sender.poll_transmit_at(t, 1250), None);
        assert_eq!(sender.poll_timeout(), Some(t + Duration::from_us(10)));
        assert_eq!(sender.poll_transmit_at(t + Duration::from_us(10), 1250), Some((1250, 1250)));
    }
}

//! Congestion control: one file an algorithm, behind one small interface.
//!
//! An algorithm is one file that implements [`Control`] and one line in the list at the end of this file. An algorithm
//! sees the window and the acknowledged bytes, never the connection: loss detection and recovery are common to all.

mod cubic;
mod dctcp;
mod newreno;
mod vegas;

#[cfg(test)]
mod tests;

pub use cubic::Cubic;
pub use dctcp::Dctcp;
pub use newreno::NewReno;
pub use vegas::Vegas;

use crate::time::{Duration, Instant};

/// Limits of the bytes that a connection may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Congestion window.
    pub cwnd: u32,
    /// Slow start applies below this threshold, congestion avoidance from it on.
    pub ssthresh: u32,
}

/// Largest congestion window that window scaling can express (RFC 7323, 2.3); the sum of two stays within 32 bits.
pub const MAX_WINDOW: u32 = 1 << 30;

/// Segments' worth of window an acknowledgment may add in slow start (RFC 3465, 2.2; FreeBSD 9's default).
const ABC_LIMIT: u32 = 2;

impl Window {
    /// Whether slow start applies.
    #[inline(always)]
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Adds `bytes`, up to the largest window.
    #[inline(always)]
    pub fn grow(&mut self, bytes: u32) {
        self.cwnd = self.cwnd.saturating_add(bytes).min(MAX_WINDOW);
    }

    /// Slow start by counting bytes (RFC 3465, 2.2); one segment an acknowledgment after a timeout (RFC 3465, 2.3).
    #[inline(always)]
    pub fn slow_start(&mut self, ack: &Ack) {
        let limit = if ack.after_timeout { ack.mss } else { ABC_LIMIT * ack.mss };
        self.grow(ack.bytes.min(limit));
    }
}

/// An acknowledgment of new data.
#[derive(Clone, Copy, Debug)]
pub struct Ack {
    /// Arrival time.
    pub now: Instant,
    /// Bytes newly acknowledged.
    pub bytes: u32,
    /// Payload of a full segment.
    pub mss: u32,
    /// RTT sample of this acknowledgment.
    pub rtt: Option<Duration>,
    /// Smoothed RTT.
    pub srtt: Duration,
    /// Stream position up to which all is acknowledged.
    pub una: u64,
    /// Stream position up to which all has been sent.
    pub sent: u64,
    /// Whether the window was in full use: an unused window proves nothing about the path and does not grow.
    pub limited: bool,
    /// Whether bytes lost before a timeout are still being sent again.
    pub after_timeout: bool,
}

/// An acknowledgment of new data that echoes a mark (RFC 3168, 6.1.2).
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    /// Bytes newly acknowledged.
    pub bytes: u32,
    /// Stream position up to which all is acknowledged.
    pub una: u64,
    /// Stream position up to which all has been sent.
    pub sent: u64,
}

/// A sign of congestion.
#[derive(Clone, Copy, Debug)]
pub struct Congestion {
    /// Time of detection.
    pub now: Instant,
    /// Bytes in flight.
    pub flight: u32,
    /// Payload of a full segment.
    pub mss: u32,
    /// Kind of sign.
    pub signal: Signal,
}

/// The signs of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A segment was lost; fast recovery starts.
    Loss,
    /// The peer echoed a mark (RFC 3168, 6.1.2).
    Ecn,
    /// The retransmission timer ran out.
    Timeout,
}

/// An algorithm: how the window answers to acknowledgments and to congestion.
pub trait Control: Default {
    /// New data was acknowledged outside of fast recovery, without the echo of a mark.
    fn on_ack(&mut self, window: &mut Window, ack: &Ack);

    /// Returns the new slow start threshold; the connection sets `cwnd`: to it, or to one segment after a timeout.
    fn on_congestion(&mut self, window: &Window, congestion: &Congestion) -> u32;

    /// An acknowledgment echoed a mark; [`Control::on_congestion`] follows if it is the first of its window of data.
    fn on_echo(&mut self, _echo: &Echo) {}

    /// The retransmission timer ran out for data whose loss has already set the threshold; the threshold stays.
    fn on_repeated_timeout(&mut self) {}

    /// The window has been put back after idling since `since`: time then meant nothing to the algorithm.
    fn on_idle(&mut self, _since: Instant, _now: Instant) {}
}

/// Half of the bytes in flight, at least two segments (RFC 5681, 3.1, equation 4).
#[inline]
pub fn half_of_flight(congestion: &Congestion) -> u32 {
    (congestion.flight / 2).max(2 * congestion.mss)
}

macro_rules! algorithms {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Names of the algorithms.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Algorithm {
            $($(#[$doc])* $name),+
        }

        /// State of one of the algorithms: an enum and not a trait object, so that a connection stays in one piece.
        // Tag and counters of NewReno are the first 8 bytes.
        #[derive(Clone, Debug)]
        #[repr(u8)]
        pub(super) enum Controller {
            $($name($name)),+
        }

        impl Controller {
            pub(super) fn new(algorithm: Algorithm) -> Controller {
                match algorithm {
                    $(Algorithm::$name => Controller::$name($name::default())),+
                }
            }
            #[inline(always)]
            pub(super) fn on_ack(&mut self, window: &mut Window, ack: &Ack) {
                match self {
                    // Each algorithm has a copy: an acknowledgment that is lent to one of them had to be in memory for all.
                    $(Controller::$name(control) => {
                        let ack = *ack;
                        control.on_ack(window, &ack)
                    })+
                }
            }
            #[inline]
            pub(super) fn on_congestion(&mut self, window: &Window, congestion: &Congestion) -> u32 {
                match self {
                    $(Controller::$name(control) => control.on_congestion(window, congestion)),+
                }
            }
            #[inline]
            pub(super) fn on_echo(&mut self, echo: &Echo) {
                match self {
                    $(Controller::$name(control) => control.on_echo(echo)),+
                }
            }
            pub(super) fn on_repeated_timeout(&mut self) {
                match self {
                    $(Controller::$name(control) => control.on_repeated_timeout()),+
                }
            }
            #[inline]
            pub(super) fn on_idle(&mut self, since: Instant, now: Instant) {
                match self {
                    $(Controller::$name(control) => control.on_idle(since, now)),+
                }
            }
        }
    };
}

algorithms! {
    /// RFC 5681 with byte counting (RFC 3465).
    NewReno,
    /// RFC 9438.
    Cubic,
    /// Brakmo and Peterson 1995.
    Vegas,
    /// RFC 8257.
    Dctcp,
}

//! A port's side of the protocol with the agent in its guest, for all kinds of ports.

use rustix::rand::{GetRandomFlags, getrandom};
use sluicenet_proto::agent::lease::Lease;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::agent::{DESTINATION, ETHERTYPE, LEN, Message, PARTS_MAX, Repr};
use sluicenet_wire::ethernet::MacAddress;
use std::io;

/// The most frames of an agent in one round, so that no guest keeps the switch busy with them.
const WORDS_MOST: u32 = 64;
/// The source address of marks.
const SOURCE: MacAddress = MacAddress::local(0);

/// The agent behind a port.
#[derive(Debug)]
pub(crate) struct Agent {
    pub lease: Lease,
    words_left: u32,
    bad: u64,
    lost: bool,
}

impl Agent {
    pub fn new() -> io::Result<Agent> {
        let mut first = [0; 8];
        // Up to 256 bytes are never returned in part (getrandom(2)).
        getrandom(&mut first, GetRandomFlags::empty())?;
        let lease = Lease::new(u64::from_ne_bytes(first));
        Ok(Agent { lease, words_left: WORDS_MOST, bad: 0, lost: false })
    }

    /// Whether a frame with these first 16 bytes is a message of an agent.
    #[inline]
    pub fn is_word([low, high]: [u64; 2]) -> bool {
        const TYPE: u64 = ETHERTYPE.0.swap_bytes() as u64;
        let [a, b, c, d, e, f] = DESTINATION.0;
        low & 0xffff_ffff_ffff == u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) && high >> 32 & 0xffff == TYPE
    }

    /// To be called first in a round.
    pub fn on_round(&mut self, now: Instant, handed: u64) {
        self.words_left = WORDS_MOST;
        self.lost |= self.lease.poll(now, handed);
    }

    /// Whether another message may be taken in this round.
    pub fn may_speak(&mut self) -> bool {
        let may = self.words_left > 0;
        self.words_left = self.words_left.saturating_sub(1);
        may
    }

    /// Handles a message from the guest, which may not be from the agent.
    pub fn take(&mut self, now: Instant, bytes: &[u8]) {
        match Repr::parse(bytes) {
            Ok(Repr { message: Message::Grant { number, lifetime_ms, room }, .. }) => {
                self.lease.on_grant(now, number, room, Duration::from_ms(lifetime_ms.into()));
            }
            // Only the switch sends marks.
            Ok(Repr { message: Message::Mark { .. }, .. }) | Err(_) => self.bad += 1,
        }
    }

    /// The frame `part` of the `parts` frames of the next mark.
    pub fn mark(&self, part: u8, parts: u8) -> [u8; LEN] {
        const { assert!(crate::vhost::guest::MAX_PAIRS <= PARTS_MAX as usize) };
        Repr { source: SOURCE, message: Message::Mark { number: self.lease.next_mark(), part, parts } }.emit()
    }

    /// Whether the agent was lost since the last call.
    pub fn was_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    pub fn counters(&self, handed: u64, show: &mut dyn FnMut(&'static str, u64)) {
        let c = &self.lease.counters;
        let granted = self.lease.granted(handed);
        show("agent", granted.is_some().into());
        show("agent_granted", granted.unwrap_or(0));
        show("agent_grants", c.grants);
        show("agent_unmatched", c.unmatched);
        show("agent_marks", c.marks);
        show("agent_held", c.exhausted);
        show("agent_lost", c.lost);
        show("agent_bad", self.bad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_known_by_its_first_bytes() {
        let agent = Agent::new().unwrap();
        let mut frame = agent.mark(0, 1);
        let first_bytes =
            |frame: &[u8]| [&frame[..8], &frame[8..16]].map(|half| u64::from_le_bytes(half.try_into().unwrap()));
        assert!(Agent::is_word(first_bytes(&frame)));
        frame[14..].fill(0xff);
        assert!(Agent::is_word(first_bytes(&frame)));
        for at in [0, 5, 12, 13] {
            let mut other = frame;
            other[at] ^= 1;
            assert!(!Agent::is_word(first_bytes(&other)), "{at}");
        }
    }

    #[test]
    fn what_is_no_grant_is_counted_and_nothing_else() {
        let mut agent = Agent::new().unwrap();
        let mark = agent.mark(0, 1);
        agent.take(Instant::ZERO, &mark);
        agent.take(Instant::ZERO, &mark[..20]);
        agent.take(Instant::ZERO, &[0xff; 60]);
        assert_eq!((agent.bad, agent.lease.counters.grants), (3, 0));
        agent.on_round(Instant::ZERO, 0);
        assert_eq!((0..100).filter(|_| agent.may_speak()).count() as u32, WORDS_MOST);
    }
}

//! The host's switch: whether it runs, and when the host looks for a new one.

use super::{BATCH_MAX, Core, Socket, neighbour};
use rustix::io::Errno;
use sluicenet_dataplane::shm::Client;
use sluicenet_wire::ethernet::MacAddress;
use std::time::{Duration, Instant};

/// The first and the longest pause between attempts to find a new switch; each pause is twice as long as the last.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);
/// How long a switch may take to answer the request for the port.
const ANSWERS_IN: Duration = Duration::from_secs(10);

/// The state of the host's switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Attached,
    /// There is no switch; the time of the next attempt, and the number of failed ones.
    Away {
        tries: u32,
        at: Instant,
    },
    /// A switch was asked for the port; the deadline for its answer.
    Asked {
        tries: u32,
        until: Instant,
    },
    /// There is no switch, and no address to look for a new one.
    Gone,
}

impl Link {
    /// The switch has ended.
    fn end(&mut self, now: Instant, comes_back: bool) {
        *self = if comes_back { Link::Away { tries: 0, at: now + FIRST } } else { Link::Gone };
    }

    /// A switch was found and asked for the port.
    pub fn ask(&mut self, now: Instant) {
        if let Link::Away { tries, .. } = *self {
            *self = Link::Asked { tries, until: now + ANSWERS_IN };
        }
    }

    /// There is no switch, or it refused the port.
    pub fn refuse(&mut self, now: Instant) {
        if let Link::Away { tries, .. } | Link::Asked { tries, .. } = *self {
            let pause = FIRST.saturating_mul(2u32.saturating_pow(tries.saturating_add(1))).min(LONGEST);
            *self = Link::Away { tries: tries.saturating_add(1), at: now + pause };
        }
    }

    /// Tries the switch soon, because a caller needs it.
    pub fn hurry(&mut self, now: Instant) {
        if let Link::Away { at, .. } = self {
            *at = (*at).min(now + FIRST);
        }
    }

    /// The deadline of the next attempt or of the answer.
    pub fn deadline(&self) -> Option<Instant> {
        match *self {
            Link::Away { at, .. } => Some(at),
            Link::Asked { until, .. } => Some(until),
            Link::Attached | Link::Gone => None,
        }
    }

    /// The number of failed attempts.
    pub fn tries(&self) -> u32 {
        match *self {
            Link::Away { tries, .. } | Link::Asked { tries, .. } => tries,
            Link::Attached | Link::Gone => 0,
        }
    }
}

impl Core {
    /// Whether the host is attached to a switch.
    pub fn is_up(&self) -> bool {
        self.link == Link::Attached
    }

    /// Whether there will never be a switch again.
    pub(super) fn is_gone(&self) -> bool {
        self.link == Link::Gone
    }

    /// The switch has ended: takes in the frames that it had delivered.
    pub fn end(&mut self) {
        self.pump(BATCH_MAX);
        while self.held.is_some() {
            self.take_over_waiting();
            self.pump(BATCH_MAX);
        }
        self.fail();
    }

    /// There is no connection any more: the switch has ended, or broke the rules of the rings. Streams end, because their peers
    /// will not know them with a new switch. All other sockets stay as they are.
    pub fn fail(&mut self) {
        if !self.is_up() {
            return;
        }
        self.link.end(Instant::now(), self.comes_back);
        self.loopback.clear();
        self.announcements = 0;
        self.destinations = Default::default();
        for id in self.conns.ids() {
            let is_opening = self.conns.get(id).is_some_and(super::Conn::is_opening);
            self.lose(id, if is_opening { Errno::NETDOWN } else { Errno::CONNRESET });
        }
        self.by_key.clear();
        self.peers.clear();
        self.forget_neighbours(Errno::NETDOWN);
        self.take_over_waiting();
        self.parked.clear();
        for port in self.listeners.keys().copied().collect::<Vec<_>>() {
            self.touch(Socket::Listener(port));
        }
        self.retry_datagrams();
        self.link_changed.notify_all();
        self.rouse();
    }

    /// There was no switch, or it refused the port.
    pub fn find_none(&mut self) {
        self.link.refuse(Instant::now());
        self.link_changed.notify_all();
    }

    /// A new switch has granted the port: its memory, the host's address there, and the largest packet.
    pub fn revive(&mut self, client: Client, mac: Option<MacAddress>, mtu: u16) {
        (self.client, self.mac, self.config.mtu) = (client, mac.unwrap_or(self.mac), mtu);
        self.link = Link::Attached;
        self.counters.attached_again += 1;
        self.announcements = neighbour::ANNOUNCEMENTS;
        self.announce();
        self.retry_datagrams();
        self.link_changed.notify_all();
        self.look_soon();
    }

    /// Waiting senders of datagrams may try again, and get an error at once if that is impossible.
    fn retry_datagrams(&mut self) {
        for id in self.datagrams.ids() {
            self.datagram_mut(id).retry();
            self.touch(Socket::Datagram(id));
        }
    }

    /// Looks for the switch soon.
    pub fn hurry(&mut self) {
        if let Link::Away { at, .. } = self.link {
            self.link.hurry(Instant::now());
            if self.link.deadline() != Some(at) {
                self.rouse();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, link: &Link) -> Duration {
        link.deadline().unwrap() - start
    }

    #[test]
    fn a_switch_is_looked_for_ever_more_seldom_and_never_given_up() {
        let mut now = Instant::now();
        let mut link = Link::Attached;
        link.end(now, true);
        let mut pauses = Vec::new();
        for tries in 0..40 {
            assert_eq!(link.tries(), tries);
            pauses.push(after(now, &link).as_millis());
            now = link.deadline().unwrap();
            link.refuse(now);
        }
        assert_eq!(pauses[..9], [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert!(pauses[9..].iter().all(|&pause| pause == 1000), "{pauses:?}");
    }

    #[test]
    fn who_is_asked_has_its_time_and_who_does_not_answer_is_none() {
        let now = Instant::now();
        let mut link = Link::Attached;
        link.end(now, true);
        link.ask(now);
        assert_eq!((after(now, &link), link.tries()), (ANSWERS_IN, 0));
        // A caller does not shorten the wait for an answer.
        link.hurry(now);
        assert_eq!(after(now, &link), ANSWERS_IN);
        link.refuse(now);
        assert_eq!((after(now, &link), link.tries()), (2 * FIRST, 1));
    }

    #[test]
    fn who_wants_something_hurries_it_and_does_not_put_it_off() {
        let now = Instant::now();
        let mut link = Link::Attached;
        link.end(now, true);
        (0..10).for_each(|_| link.refuse(now));
        assert_eq!(after(now, &link), LONGEST);
        for later in [0, 1, 2, 9] {
            link.hurry(now + Duration::from_millis(later));
            assert_eq!(after(now, &link), FIRST, "{later}");
        }
    }

    #[test]
    fn without_a_place_to_look_it_is_gone() {
        let now = Instant::now();
        let mut link = Link::Attached;
        link.end(now, false);
        for change in [Link::ask, Link::refuse, Link::hurry] {
            change(&mut link, now);
            assert_eq!((link, link.deadline()), (Link::Gone, None));
        }
        let mut link = Link::Attached;
        for change in [Link::ask, Link::refuse, Link::hurry] {
            change(&mut link, now);
            assert_eq!((link, link.deadline()), (Link::Attached, None));
        }
    }
}

//! The host's switch: whether it is there, and when it is looked for where it is not.

use super::{BATCH_MAX, Core, Socket, neighbour};
use rustix::io::Errno;
use sluicenet_dataplane::shm::Client;
use sluicenet_wire::ethernet::MacAddress;
use std::time::{Duration, Instant};

/// How soon a switch that has ended is looked for, and how long it takes between two times at most: each time is twice as long as the last.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);
/// How long one that was asked for the port has to answer.
const ANSWERS_IN: Duration = Duration::from_secs(10);

/// How the host stands with its switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Attached,
    /// There is none; when it is looked for, and how often that has come to nothing.
    Away {
        tries: u32,
        at: Instant,
    },
    /// One was asked for the port, and has until then to answer.
    Asked {
        tries: u32,
        until: Instant,
    },
    /// There is none, and nobody knows where another one would be.
    Gone,
}

impl Link {
    /// The switch has ended.
    fn end(&mut self, now: Instant, comes_back: bool) {
        *self = if comes_back { Link::Away { tries: 0, at: now + FIRST } } else { Link::Gone };
    }

    /// A switch is there, and was asked.
    pub fn ask(&mut self, now: Instant) {
        if let Link::Away { tries, .. } = *self {
            *self = Link::Asked { tries, until: now + ANSWERS_IN };
        }
    }

    /// There is none, or none that gives the port.
    pub fn refuse(&mut self, now: Instant) {
        if let Link::Away { tries, .. } | Link::Asked { tries, .. } = *self {
            let pause = FIRST.saturating_mul(2u32.saturating_pow(tries.saturating_add(1))).min(LONGEST);
            *self = Link::Away { tries: tries.saturating_add(1), at: now + pause };
        }
    }

    /// Somebody wants something of the switch: it is looked for soon.
    pub fn hurry(&mut self, now: Instant) {
        if let Link::Away { at, .. } = self {
            *at = (*at).min(now + FIRST);
        }
    }

    /// When something is due: the switch is looked for, or has not answered.
    pub fn deadline(&self) -> Option<Instant> {
        match *self {
            Link::Away { at, .. } => Some(at),
            Link::Asked { until, .. } => Some(until),
            Link::Attached | Link::Gone => None,
        }
    }

    /// How often it was looked for in vain.
    pub fn tries(&self) -> u32 {
        match *self {
            Link::Away { tries, .. } | Link::Asked { tries, .. } => tries,
            Link::Attached | Link::Gone => 0,
        }
    }
}

impl Core {
    /// Whether frames go and come.
    pub fn is_up(&self) -> bool {
        self.link == Link::Attached
    }

    /// Whether nothing will ever go again.
    pub(super) fn is_gone(&self) -> bool {
        self.link == Link::Gone
    }

    /// The switch has ended; what it had brought before is taken in.
    pub fn end(&mut self) {
        self.pump(BATCH_MAX);
        while self.held.is_some() {
            self.take_over_waiting();
            self.pump(BATCH_MAX);
        }
        self.fail();
    }

    /// Nothing goes any more: the switch has ended, or broke the rules of the rings. Streams end, for their other ends will not know them when a switch
    /// is there again; all other sockets stay as they are.
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

    /// No switch was there, or none that gives the port.
    pub fn find_none(&mut self) {
        self.link.refuse(Instant::now());
        self.link_changed.notify_all();
    }

    /// A switch is there again: the port's new memory, the host's address there, and the largest packet.
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

    /// Who wanted to send a datagram may try again, and is told at once where it cannot be.
    fn retry_datagrams(&mut self) {
        for id in self.datagrams.ids() {
            self.datagram_mut(id).retry();
            self.touch(Socket::Datagram(id));
        }
    }

    /// Has the switch looked for soon.
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
        // Nobody else's wish makes that shorter.
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

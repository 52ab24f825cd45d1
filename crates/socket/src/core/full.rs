//! Datagram sockets that are full, or soon will be. Their datagrams wait in the port's memory, and the switch leaves later
//! ones with their senders. So a slow program holds up only its own senders. Datagrams that had arrived before the switch
//! heard of it may be more than the port's memory can keep for one socket: these are copied.

use super::Core;
use super::datagram::{Datagram, parse};
use super::receive::Taken;
use sluicenet_dataplane::port::Descriptor;
use std::collections::VecDeque;
use std::time::Instant;

/// Waiting datagrams leave one in this number of receive buffers free.
const KEPT: u32 = 8;

/// How full a socket is.
#[derive(Default)]
pub(super) struct Fullness {
    state: State,
    /// Frames that it has no room for, in order.
    aside: VecDeque<Aside>,
    /// Those of them in the port's memory.
    in_port: u32,
    /// Datagrams that it has no room for are lost, until its program reads.
    pub stalled: bool,
}

/// A frame that waits for a socket.
enum Aside {
    /// In the port's memory.
    InPort(Descriptor),
    /// A copy.
    Copied(Box<[u8]>),
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// The switch leaves new datagrams with their senders; since then, the program has read nothing.
    Pressed(Instant),
    /// The program has read nothing for too long: no sender waits for the socket.
    Overdue,
}

impl Datagram {
    /// Whether a datagram of `len` bytes may be put into a buffer of `buffer` now: none overtakes the waiting ones.
    pub(super) fn takes(&self, len: usize, buffer: usize) -> bool {
        self.fullness.aside.is_empty() && self.has_room(len, buffer)
    }
}

impl Core {
    /// A socket has taken a datagram: beyond half of its buffer, the next datagrams are left with their senders. Those on
    /// their way have the other half.
    pub(super) fn look_how_full(&mut self, id: usize) {
        let half = self.config.datagram_buffer as usize / 2;
        if self.datagrams.get(id).is_some_and(|d| d.bytes() > half && d.fullness.state == State::Free) {
            self.press(id);
        }
    }

    /// From now on its program has to read.
    fn press(&mut self, id: usize) {
        let now = Instant::now();
        if let Some(datagram) = self.datagrams.get_mut(id) {
            datagram.fullness.state = State::Pressed(now);
            self.pressed.push(id);
            self.list_full();
            self.rouse();
        }
    }

    /// Lets the senders of a socket go on.
    fn relieve(&mut self, id: usize, state: State) {
        if let Some(datagram) = self.datagrams.get_mut(id) {
            datagram.fullness.state = state;
        }
        self.pressed.retain(|&other| other != id);
        self.list_full();
        self.wakes_switch = true;
    }

    /// Tells the switch which sockets are full.
    fn list_full(&mut self) {
        let ports: Vec<u16> = self.pressed.iter().filter_map(|&id| Some(self.datagrams.get(id)?.port)).collect();
        self.client.set_full(&ports);
    }

    /// Takes in a frame in the port's memory; returns whether the next frame may be taken in, too.
    pub(super) fn take_in(&mut self, frame: Descriptor, bytes: &[u8]) -> bool {
        match self.take(bytes) {
            Taken::Done => self.done_with(frame),
            Taken::NoRoom(id) if self.may_set_aside(id) => self.set_aside(id, Aside::InPort(frame)),
            Taken::NoRoom(id) if self.copied < self.client.half() => {
                self.set_aside(id, Aside::Copied(bytes.into()));
                self.done_with(frame);
            }
            Taken::NoRoom(id) => {
                self.held = Some((frame, id));
                return false;
            }
        }
        true
    }

    /// Whether a socket may have one more frame where it is: as many as are left for others, so that the first one has no
    /// more than half of the buffers.
    fn may_set_aside(&self, id: usize) -> bool {
        let left = self.client.half().saturating_sub(self.aside);
        let own = self.datagrams.get(id).map_or(0, |datagram| datagram.fullness.in_port);
        left > self.client.half() / KEPT && own < left
    }

    fn set_aside(&mut self, id: usize, frame: Aside) {
        let Some(datagram) = self.datagrams.get_mut(id) else { return };
        match &frame {
            Aside::InPort(_) => {
                datagram.fullness.in_port += 1;
                self.aside += 1;
            }
            Aside::Copied(_) => self.copied += 1,
        }
        datagram.fullness.aside.push_back(frame);
        if !matches!(datagram.fullness.state, State::Pressed(_)) {
            self.press(id);
        }
    }

    /// The switch may fill its buffer again.
    fn done_with(&mut self, frame: Descriptor) {
        if self.client.give_back(frame.buffer).is_err() {
            self.fail();
        }
    }

    /// A frame waits no more, or not for its socket.
    fn discount(&mut self, frame: &Aside) {
        let counter = match frame {
            Aside::InPort(_) => &mut self.aside,
            Aside::Copied(_) => &mut self.copied,
        };
        // If the port broke meanwhile, nothing is counted any more.
        *counter = counter.saturating_sub(1);
    }

    /// A frame waits no more.
    fn leave_aside(&mut self, frame: Aside) {
        self.discount(&frame);
        if let Aside::InPort(frame) = frame {
            self.done_with(frame);
        }
    }

    /// Does something with a frame in the port's memory, of which it gets a copy.
    fn with_copy<R>(&mut self, frame: Descriptor, f: impl FnOnce(&mut Core, &[u8]) -> R) -> R {
        let mut scratch = std::mem::take(&mut self.scratch);
        let bytes = &mut scratch[..frame.len as usize];
        self.client.read(frame.buffer, bytes);
        let answer = f(self, bytes);
        self.scratch = scratch;
        answer
    }

    /// Tries the held frame again; returns whether none is held any more.
    pub(super) fn retry_held(&mut self) -> bool {
        let Some((frame, _)) = self.held.take() else { return true };
        self.with_copy(frame, |core, bytes| core.take_in(frame, bytes))
    }

    /// The program has read: waiting datagrams are taken in as far as there is room.
    pub(super) fn refill(&mut self, id: usize) {
        let now = Instant::now();
        let Some(datagram) = self.datagrams.get_mut(id) else { return };
        match &mut datagram.fullness.state {
            State::Free => return,
            State::Pressed(since) => *since = now,
            state @ State::Overdue => {
                *state = State::Free;
                datagram.fullness.stalled = false;
                return;
            }
        }
        let buffer = self.config.datagram_buffer as usize;
        let put = |core: &mut Core, bytes: &[u8]| {
            // The frame was valid when it came.
            let Some((from, _, payload)) = parse(bytes) else { return true };
            let datagram = core.datagram_mut(id);
            let has_room = datagram.has_room(payload.len(), buffer);
            if has_room {
                datagram.put(from, payload);
            }
            has_room
        };
        while let Some(frame) = self.datagram_mut(id).fullness.aside.pop_front() {
            let went = match &frame {
                Aside::InPort(frame) => self.with_copy(*frame, put),
                Aside::Copied(bytes) => put(self, bytes),
            };
            if !went {
                self.datagram_mut(id).fullness.aside.push_front(frame);
                break;
            }
            if let Aside::InPort(_) = frame {
                self.datagram_mut(id).fullness.in_port -= 1;
            }
            self.leave_aside(frame);
        }
        let datagram = self.datagram_mut(id);
        if datagram.fullness.aside.is_empty() && datagram.bytes() <= buffer / 4 {
            self.relieve(id, State::Free);
        }
    }

    /// A socket closes: datagrams that wait for it go to another socket at its port, or are dropped.
    pub(super) fn release(&mut self, id: usize, fullness: Fullness) {
        if matches!(fullness.state, State::Pressed(_)) {
            self.relieve(id, State::Free);
        }
        for frame in fullness.aside {
            let taken = match &frame {
                Aside::InPort(frame) => self.with_copy(*frame, |core, bytes| core.take(bytes)),
                Aside::Copied(bytes) => self.take(bytes),
            };
            match taken {
                Taken::Done => self.leave_aside(frame),
                // The frame stays in its place.
                Taken::NoRoom(other) => {
                    self.discount(&frame);
                    self.set_aside(other, frame);
                }
            }
        }
    }

    /// The port's memory is given up: datagrams that wait in it go into their sockets' buffers, beyond the usual limit.
    pub(super) fn take_over_waiting(&mut self) {
        for id in self.datagrams.ids() {
            let Fullness { aside, .. } = std::mem::take(&mut self.datagram_mut(id).fullness);
            aside.into_iter().for_each(|frame| self.take_over(id, frame));
        }
        if let Some((frame, id)) = self.held.take() {
            self.take_over(id, Aside::InPort(frame));
        }
        self.pressed.clear();
        (self.aside, self.copied) = (0, 0);
    }

    fn take_over(&mut self, id: usize, frame: Aside) {
        let bytes = match frame {
            Aside::InPort(frame) => {
                // The caller that found the port broken may be using the usual buffer for a copy.
                let mut bytes = vec![0; frame.len as usize];
                self.client.read(frame.buffer, &mut bytes);
                bytes.into()
            }
            Aside::Copied(bytes) => bytes,
        };
        if let Some((from, _, payload)) = parse(&bytes)
            && let Some(datagram) = self.datagrams.get_mut(id)
        {
            datagram.put(from, payload);
        }
    }

    /// Gives up on sockets whose programs have read nothing for too long: waiting datagrams are lost. A socket without
    /// waiting datagrams may be filled first.
    pub(super) fn find_stalled(&mut self) {
        let Some(stall) = self.config.stall.filter(|_| !self.pressed.is_empty()) else { return };
        for id in self.pressed.clone() {
            let holds = self.held.is_some_and(|(_, of)| of == id);
            let Some(Datagram { fullness, .. }) = self.datagrams.get_mut(id) else { continue };
            let State::Pressed(since) = fullness.state else { continue };
            if self.now.saturating_duration_since(since) < stall {
                continue;
            }
            let lost = std::mem::take(&mut fullness.aside);
            fullness.in_port = 0;
            fullness.stalled = holds || !lost.is_empty();
            self.relieve(id, State::Overdue);
            self.counters.stalled += lost.len() as u64;
            lost.into_iter().for_each(|frame| self.leave_aside(frame));
        }
    }

    /// When the next one is given up.
    pub(super) fn stalled_at(&self) -> Option<Instant> {
        let stall = self.config.stall?;
        let since = self.pressed.iter().filter_map(|&id| match self.datagrams.get(id)?.fullness.state {
            State::Pressed(since) => Some(since),
            State::Free | State::Overdue => None,
        });
        Some(since.min()? + stall)
    }
}

//! Notes between servers: what an application's header would say, and when a message has arrived.

use super::app::{Event, Io, Open};
use super::host::Host;
use crate::guest::{DATAGRAMS, ESTABLISHED, Incoming, LIGHT, NOTE_WORD, PRIORITY_SHIFT, SocketId, Topic, topic};
use crate::packet::{FlowKey, Packet};
use alloc::vec::Vec;
use sluicenet_proto::time::{Duration, Instant};

impl Host {
    /// Sends a note; to a guest of this very server it needs no time.
    pub(super) fn post(&mut self, now: Instant, packet: Packet) {
        if packet.dst().host() == self.id {
            self.receive_note(now, &packet);
        } else {
            self.notes.push(packet);
        }
    }

    /// Notes for other servers since the last call.
    pub fn take_notes(&mut self, into: &mut Vec<Packet>) {
        into.append(&mut self.notes);
    }

    /// Whether there are notes to take.
    #[inline(always)]
    pub fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// A note from another server, or from this one.
    pub fn receive_note(&mut self, now: Instant, packet: &Packet) {
        let words = packet.note_words();
        let local = packet.flow().reverse();
        let vm = local.src.vm();
        if vm as usize >= self.guests.len() {
            return;
        }
        match topic(&words) {
            Some(Topic::Announce) => {
                let third = words[2];
                let id = match self.guests[vm as usize].sockets.find(&local) {
                    Some(index) => SocketId { vm, index },
                    None => {
                        let priority = (third >> PRIORITY_SHIFT & 7) as u8;
                        if third & LIGHT != 0 && third & ESTABLISHED != 0 {
                            self.open(now, local, priority, Open::LightEstablished)
                        } else if third & LIGHT != 0 {
                            self.listen_light(local, priority)
                        } else if third & DATAGRAMS != 0 {
                            self.open(now, local, priority, Open::Datagrams(None))
                        } else if third & ESTABLISHED != 0 {
                            self.open(now, local, priority, Open::Established)
                        } else {
                            self.listen(local, priority)
                        }
                    }
                };
                let Some(s) = self.guests[vm as usize].sockets.get_mut(id.index) else { return };
                let begin = third & NOTE_WORD;
                s.expect(Incoming { tag: words[1], begin, end: words[0], received: 0 });
            }
            Some(Topic::Done) => self.confirmed(now, &local, words),
            Some(Topic::App) => {
                let words = [words[0], words[1], words[2] & NOTE_WORD];
                self.events.push_back(Event::Told { to: packet.dst(), from: packet.src(), words });
            }
            None => {}
        }
    }

    /// The receiver of a message has all of it.
    pub(super) fn confirmed(&mut self, now: Instant, flow: &FlowKey, words: [u64; 3]) {
        let vm = flow.src.vm();
        let Some(index) = self.guests[vm as usize].sockets.find(flow) else { return };
        let Some(s) = self.guests[vm as usize].sockets.get_mut(index) else { return };
        let Some(at) = s.outbox.iter().position(|m| m.end == words[0]) else { return };
        let Some(m) = s.outbox.remove(at) else { return };
        // A timeout delays every message behind it on the connection but counts once: to the one that waits in front.
        let counted = s.before(Duration::ZERO);
        if let Some(next) = s.outbox.get_mut(at) {
            next.before.timeouts = counted.timeouts;
            next.before.retransmissions = counted.retransmissions;
            next.before.timeout_wait = counted.timeout_wait;
        }
        let end = (words[1] != u64::MAX).then_some(Instant(words[1]));
        let s = &*s;
        let record = s.record(&m, end, words[2] & NOTE_WORD, s.paused(now, &self.adapter));
        self.flows.push(record);
        self.drop_light_if_over(now, SocketId { vm, index });
        if end.is_some() {
            self.events.push_back(Event::Delivered { tag: m.tag, socket: SocketId { vm, index } });
        }
    }
}

//! Message metadata between servers: the header of an application, and the arrival of a message.

use super::app::{Event, Io, Open};
use super::host::Host;
use crate::guest::{
    DATAGRAMS, ESTABLISHED, Incoming, LIGHT, METADATA_WORD, PRIORITY_SHIFT, QUEUE_PAIR, SocketId, Topic, topic,
};
use crate::packet::{FlowKey, Packet};
use alloc::vec::Vec;
use sluicenet_proto::time::{Duration, Instant};

impl Host {
    /// Sends metadata. It reaches a guest of the same server at once.
    pub(super) fn post_metadata(&mut self, now: Instant, packet: Packet) {
        if packet.dst().host() == self.id {
            self.receive_metadata(now, &packet);
        } else {
            self.metadata.push((now, packet));
        }
    }

    /// Metadata for other servers since the last call, each with the time at which it was sent.
    pub fn take_metadata(&mut self, into: &mut Vec<(Instant, Packet)>) {
        into.append(&mut self.metadata);
    }

    /// Whether there is metadata to take.
    #[inline(always)]
    pub fn has_metadata(&self) -> bool {
        !self.metadata.is_empty()
    }

    /// Receives metadata from another server, or from this one.
    pub fn receive_metadata(&mut self, now: Instant, packet: &Packet) {
        let words = packet.metadata_words();
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
                        if third & QUEUE_PAIR == QUEUE_PAIR {
                            self.open(now, local, priority, Open::QueuePair)
                        } else if third & LIGHT != 0 && third & ESTABLISHED != 0 {
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
                let begin = third & METADATA_WORD;
                s.expect(Incoming { tag: words[1], begin, end: words[0], received: 0 });
            }
            Some(Topic::Done) => self.confirmed(now, &local, words),
            Some(Topic::App) => {
                let words = [words[0], words[1], words[2] & METADATA_WORD];
                self.events.push_back(Event::Told { to: packet.dst(), from: packet.src(), words });
            }
            Some(Topic::Disconnect) => self.disconnected(now, &local),
            None => {}
        }
    }

    /// Handles the confirmation that the receiver of a message has all of it.
    pub(super) fn confirmed(&mut self, now: Instant, flow: &FlowKey, words: [u64; 3]) {
        let vm = flow.src.vm();
        let Some(index) = self.guests[vm as usize].sockets.find(flow) else { return };
        let Some(s) = self.guests[vm as usize].sockets.get_mut(index) else { return };
        let Some(at) = s.messages.outbox.iter().position(|m| m.end == words[0]) else { return };
        let Some(m) = s.messages.outbox.remove(at) else { return };
        // A timeout delays every later message on the connection but counts once: for the first message that waits.
        let counted = s.before(Duration::ZERO);
        if let Some(next) = s.messages.outbox.get_mut(at) {
            next.before.timeouts = counted.timeouts;
            next.before.retransmissions = counted.retransmissions;
            next.before.timeout_wait = counted.timeout_wait;
        }
        let end = (words[1] != u64::MAX).then_some(Instant(words[1]));
        let s = &*s;
        let record = s.record(&m, end, words[2] & METADATA_WORD, s.paused(now, &self.adapter));
        self.flows.push(record);
        self.drop_light_if_over(now, SocketId { vm, index });
        self.disconnect_if_over(now, SocketId { vm, index });
        if end.is_some() {
            self.events.push_back(Event::Delivered { tag: m.tag, socket: SocketId { vm, index } });
        }
    }
}

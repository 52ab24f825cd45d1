//! Frames for all ports.

use super::watchdog::Health;
use super::{Port, Ports, Vale};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::loss::{DropReason, Full};
use sluicenet_proto::time::Instant;

/// Copies of lossless datagrams for groups that may be queued for a port; beyond, their senders wait. Less than a burst of a
/// sender, so that no port gets many more frames than it was asked about.
const AHEAD_MOST: u32 = 32;

impl<F: Copy> Vale<F> {
    /// Of `members`, a port at whose queue a datagram of port `j` for a group has to wait in a lossless
    /// class, because copies for groups wait there.
    ///
    /// Nobody waits for a port that is stuck, nor for one that other senders overload: the copy for such a port is dropped,
    /// as any flooded one.
    pub fn flood_waits_for(&self, j: Port, p: Priority, members: &Ports) -> Option<Port> {
        let class = &self.classes[p as usize];
        let waits = |k: Port| {
            matches!(self.ports[k].health, Health::Moving(_))
                && class.output_len(k) >= AHEAD_MOST.min(self.config.slots)
                && !class.has_waiting_inputs(k)
        };
        (0..self.ports.len()).find(|&k| k != j && members.contains(k) && waits(k))
    }

    /// Queues a copy of a frame of port `j` for every other port of `members` with room; returns the number of
    /// copies.
    #[cold]
    #[inline(never)]
    pub fn flood(&mut self, now: Instant, j: Port, p: Priority, frame: F, members: &Ports) -> u32 {
        let mut copies = 0;
        for k in (0..self.ports.len()).filter(|&k| k != j && members.contains(k)) {
            match self.ports[k].health {
                Health::Moving(_) | Health::Stuck(_) => {}
                Health::Isolated(_) => {
                    self.turn_away(j, k, DropReason::Watchdog);
                    continue;
                }
                Health::Absent => continue,
            }
            self.ports[j].counters.accepted += 1;
            let port = &mut self.ports[k];
            match self.classes[p as usize].offer(k, frame) {
                Ok(()) => {
                    port.ready.insert(p);
                    if let Health::Moving(None) = port.health {
                        port.health = Health::Moving(Some(now));
                    }
                    copies += 1;
                }
                Err(Full(_)) => port.counters.dropped.count(DropReason::FloodNoRoom, 1),
            }
        }
        copies
    }
}

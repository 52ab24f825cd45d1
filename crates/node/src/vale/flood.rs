//! Frames for all ports.

use super::watchdog::Health;
use super::{Port, Ports, Vale};
use sluicenet_proto::frame::Priority;
use sluicenet_proto::loss::{DropReason, Full};
use sluicenet_proto::time::Instant;

impl<F: Copy> Vale<F> {
    /// Queues a copy of a frame of port `j` for every other port of `members` with room; returns the number of
    /// copies.
    #[cold]
    #[inline(never)]
    pub fn flood(&mut self, now: Instant, j: Port, p: Priority, frame: F, members: &Ports) -> u32 {
        let mut copies = 0;
        for k in (0..self.ports.len()).filter(|&k| k != j && members.contains(k)) {
            match self.ports[k].health {
                Health::Moving(_) => {}
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

//! Samples of queues at regular times.

use crate::world::NodeRef;
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_node::server::App;
use sluicenet_proto::time::{Duration, Instant};

/// Bytes in a queue at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueSample {
    /// Time of the sample, before the events of this instant.
    pub at: Instant,
    /// The box.
    pub node: NodeId,
    /// The box's port.
    pub port: PortId,
    /// Bytes in the queue, of all priorities.
    pub bytes: u64,
}

/// Samples queues.
#[derive(Debug)]
pub struct Sampler {
    interval: Duration,
    queues: Vec<(NodeId, PortId)>,
    next: Instant,
}

impl Sampler {
    /// Samples the queues of `ports` every `interval`.
    pub fn new(interval: Duration, mut ports: Vec<(NodeId, PortId)>) -> Sampler {
        ports.sort_unstable();
        Sampler { interval: interval.max(Duration(1)), queues: ports, next: Instant::ZERO }
    }

    /// Takes the samples that are due at `now`, by time, box and port. Returns when the next one is due.
    pub fn sample<'a, A: App + 'a>(
        &mut self,
        now: Instant,
        node_of: impl Fn(NodeId) -> NodeRef<'a, A>,
        samples: &mut Vec<QueueSample>,
    ) -> Instant {
        while self.next <= now {
            for &(node, port) in &self.queues {
                let bytes = match node_of(node) {
                    NodeRef::Switch(s) => (0..8).map(|p| s.queue_bytes(port, p) as u64).sum(),
                    NodeRef::Server(s) => s.host().adapter().used(port) as u64,
                    // Its ports have no queues: the number is that of a virtual queue.
                    NodeRef::Bump(bump) => bump.estimate_qlen(self.next, port),
                    NodeRef::Idle => 0,
                };
                samples.push(QueueSample { at: self.next, node, port, bytes });
            }
            self.next += self.interval;
        }
        self.next
    }
}

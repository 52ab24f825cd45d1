//! A marker that marks frames with a fixed probability, whatever the length of the queue.

use super::{Backlog, Mark, PortId, Verdict};
use sluicenet_proto::frame::Frame;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;

/// The marker of one output.
#[derive(Clone, Debug)]
pub struct FixedProbability {
    probability: f64,
    rng: Rng,
}

impl FixedProbability {
    /// The marker of a switch, which has this number; none if the probability is 0.
    pub fn new(probability: f64, seed: u64, switch: usize) -> Option<FixedProbability> {
        (probability > 0.0).then(|| FixedProbability { probability, rng: Rng::from_words(&[seed, switch as u64]) })
    }

    /// The same for one output, with random numbers of its own.
    pub fn of_port(&self, port: PortId) -> FixedProbability {
        let words = [self.rng.clone().next_u64(), u64::from(port)];
        FixedProbability { rng: Rng::from_words(&words), ..*self }
    }
}

impl<F: Frame> Mark<F> for FixedProbability {
    #[inline]
    fn on_arrival(&mut self, _now: Instant, _backlog: Backlog, frame: &mut F) -> Verdict<F> {
        if self.rng.unit_f64() < self.probability {
            frame.mark();
        }
        Verdict::Forward
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::cee::qcn::Message;
    use sluicenet_proto::frame::{HostId, Pause, Priority};

    /// Whether it is marked.
    #[derive(Clone, Copy)]
    struct Probe(bool);

    impl Frame for Probe {
        fn len(&self) -> u32 {
            1_000
        }
        fn priority(&self) -> Priority {
            0
        }
        fn source(&self) -> HostId {
            0
        }
        fn destination(&self) -> HostId {
            1
        }
        fn flow_hash(&self) -> u64 {
            0
        }
        fn frame_hash(&self) -> u64 {
            0
        }
        fn is_corrupt(&self) -> bool {
            false
        }
        fn is_pause(&self) -> bool {
            false
        }
        fn as_pause(&self) -> Option<Pause> {
            None
        }
        fn from_pause(_: Pause) -> Probe {
            Probe(false)
        }
        fn mark(&mut self) -> bool {
            self.0 = true;
            true
        }
        fn notification(&self, _: &Message, _: Priority) -> Probe {
            Probe(false)
        }
        fn as_notification(&self) -> Option<Message> {
            None
        }
    }

    /// The frames among the first 1,000 that the marker of a port marks.
    fn marked(seed: u64, port: PortId) -> [bool; 1_000] {
        let mut marker = FixedProbability::new(0.25, seed, 3).unwrap().of_port(port);
        let backlog = Backlog { port, class: 0, class_bytes: 0, port_bytes: 0 };
        [(); 1_000].map(|()| {
            let mut frame = Probe(false);
            assert!(matches!(marker.on_arrival(Instant::ZERO, backlog, &mut frame), Verdict::Forward));
            frame.0
        })
    }

    #[test]
    fn a_quarter_of_the_frames_is_marked() {
        let count = marked(1, 0).into_iter().filter(|&is_marked| is_marked).count();
        assert!((200..=300).contains(&count), "{count} of 1,000");
    }

    #[test]
    fn seed_and_port_alone_decide_which() {
        assert_eq!(marked(1, 0), marked(1, 0));
        assert_ne!(marked(1, 0), marked(2, 0));
        assert_ne!(marked(1, 0), marked(1, 1));
    }
}

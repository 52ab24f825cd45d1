//! Two ends of a channel and a network that does with their frames what the bytes say, beside a model that knows two numbers: what one end
//! sends arrives at the other, once and in order. Frames of nobody's come, too: those change nothing that was promised.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::zbridge::{Channel, ChannelConfig, Outgoing};
use sluicenet_wire::zbridge::{Header, Kind};

const CONFIG: ChannelConfig = ChannelConfig { buffer: 8, period: 3, timeout: Duration::from_ms(1), single_path: false };

struct World {
    now: Instant,
    ends: [Channel<u64>; 2],
    /// On their way from each end.
    wires: [Vec<Outgoing<u64>>; 2],
    sent: [u64; 2],
    came: [u64; 2],
}

impl World {
    fn collect(&mut self) {
        for at in 0..2 {
            while let Some(outgoing) = self.ends[at].poll_transmit(self.now) {
                self.wires[at].push(outgoing);
            }
        }
    }

    fn bring(&mut self, from: usize, frame: Outgoing<u64>) {
        let (came, sent) = (&mut self.came[from], self.sent[from]);
        let mut deliver = |number| {
            assert!(number == *came && number < sent, "{number} after {came}, of {sent}");
            *came += 1;
        };
        let _ = self.ends[1 - from].receive(self.now, &frame.header, frame.frame, &mut deliver, &mut |_| {});
        assert!(self.ends[1 - from].take_unacknowledged().is_none(), "an end forgot, and did not start again");
    }

    fn tick(&mut self) {
        let next = self.ends.iter().filter_map(Channel::poll_timeout).min();
        self.now = next.map_or(self.now + Duration::from_ms(1), |at| at.max(self.now));
        self.ends.iter_mut().for_each(|end| end.handle_timeout(self.now));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut ends = [1, 2].map(|n| Channel::new(CONFIG, Rng::from_words(&[n])));
    if bytes.first().is_some_and(|b| b & 1 == 1) {
        // Numbers that wrap.
        ends.iter_mut().for_each(|end| end.begin_at(u32::MAX - 3));
    }
    let mut w = World { now: Instant::ZERO, ends, wires: Default::default(), sent: [0; 2], came: [0; 2] };
    for pair in bytes.chunks_exact(2) {
        let (what, which) = (pair[0], usize::from(pair[1]));
        let from = usize::from(what >> 7);
        let place = which.checked_rem(w.wires[from].len());
        match (what & 7, place) {
            (0 | 1, _) => {
                if w.ends[from].send(w.now, w.sent[from]).is_ok() {
                    w.sent[from] += 1;
                }
            }
            (2, Some(at)) => _ = w.wires[from].remove(at),
            (3, Some(at)) => {
                let again = w.wires[from][at].clone();
                w.bring(from, again);
            }
            (4 | 5, Some(at)) => {
                let frame = w.wires[from].remove(at);
                w.bring(from, frame);
            }
            (6, _) => w.tick(),
            (7, _) if which & 1 == 0 => w.ends[from].close(w.now),
            (7, _) => {
                // Of a connection that neither of them has.
                let kind = [Kind::Ask, Kind::Ack, Kind::Close, Kind::Keep, Kind::Reset, Kind::SynAck][which % 6];
                let word = u32::from(what) << 8 | 0x5000_0000;
                w.bring(
                    from,
                    Outgoing {
                        header: Header { kind, connection: word, sequence: word, acknowledgement: word },
                        frame: None,
                    },
                );
            }
            _ => {}
        }
        w.collect();
    }
    // Nothing goes wrong any more.
    for _ in 0..2_000 {
        for from in 0..2 {
            for frame in std::mem::take(&mut w.wires[from]) {
                w.bring(from, frame);
            }
        }
        w.collect();
        if w.wires.iter().all(Vec::is_empty) {
            w.tick();
            w.collect();
        }
        if w.came == w.sent && w.ends.iter().all(Channel::is_empty) {
            return;
        }
    }
    panic!("{:?} of {:?} came", w.came, w.sent);
});

//! The events of a node, each as one number, and their order.
//!
//! Only the order within a node matters: nodes share nothing within a phase. At one instant a node first processes free
//! wires, by port. Then it processes arrivals in an order drawn anew for each instant from the seed, so that no port is
//! favoured and no result depends on the order of insertion. Then it runs its timers.

use sluicenet_node::device::TieBreak;

/// Bits of a key: time in the phase, class, port, number of the frame.
const TIME_BITS: u32 = 27;
const PORT_BITS: u32 = 12;
const FRAME_BITS: u32 = 23;
const CLASS_SHIFT: u32 = PORT_BITS + FRAME_BITS;
const TIME_SHIFT: u32 = CLASS_SHIFT + 2;

/// Longest phase, in picoseconds.
pub const MAX_PHASE: u64 = 1 << TIME_BITS;
/// Most ports of a node; the last number stands for message metadata, which arrives at no port.
pub const MAX_PORTS: u32 = (1 << PORT_BITS) - 1;
/// The port of message metadata.
pub const METADATA_PORT: u16 = MAX_PORTS as u16;
/// Most frames at the nodes of one thread.
pub const MAX_FRAMES: usize = 1 << FRAME_BITS;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The wire of a port is free.
    WireFree = 0,
    /// Message metadata arrives, before any frame that it announces.
    Metadata = 1,
    /// A frame arrives.
    Arrival = 2,
    /// A deadline of the node passes.
    Timer = 3,
}

/// An event of a node in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub u64);

impl Key {
    /// Later than any event: no timer has a port.
    pub const NEVER: Key = Key(u64::MAX);

    /// The event of `class` at `time` picoseconds into the phase.
    #[inline(always)]
    pub fn new(time: u64, class: Class, port: u16, frame: u32) -> Key {
        debug_assert!(time < MAX_PHASE && (frame as usize) < MAX_FRAMES);
        Key(time << TIME_SHIFT | (class as u64) << CLASS_SHIFT | (port as u64) << FRAME_BITS | frame as u64)
    }
    /// Picoseconds into the phase.
    #[inline(always)]
    pub fn time(self) -> u64 {
        self.0 >> TIME_SHIFT
    }
    /// The port.
    #[inline(always)]
    pub fn port(self) -> u16 {
        (self.0 >> FRAME_BITS) as u16 & (MAX_PORTS as u16)
    }
    /// The number of the frame in the pool: that of an arrival; for other events one that they will probably read.
    #[inline(always)]
    pub fn frame(self) -> usize {
        self.0 as usize & (MAX_FRAMES - 1)
    }
    /// Time and class: two events need a draw only if they share both.
    #[inline(always)]
    pub fn instant(self) -> u64 {
        self.0 >> CLASS_SHIFT
    }
    /// Whether two events share time and class, and so need a draw.
    #[inline(always)]
    pub fn shares_instant(self, other: Key) -> bool {
        (self.0 ^ other.0) >> CLASS_SHIFT == 0
    }
    /// Whether the event is of `class`, without decoding other classes.
    #[inline(always)]
    pub fn is(self, class: Class) -> bool {
        self.0 >> CLASS_SHIFT & 3 == class as u64
    }
}

/// Orders arrivals of one instant by the seed, the node, the instant and the ports alone. `content` orders arrivals at one
/// port: metadata, of which several can arrive at once, and a pause beside a frame.
#[cold]
pub fn draw_order(run: &mut [Key], seed: u64, node: u32, at: u64, content: impl Fn(Key) -> [u64; 4]) {
    let ties = TieBreak::new(seed, node, at);
    let rank = |k: Key| (ties.of(k.port()), k.port());
    if let [a, b] = run
        && a.port() != b.port()
    {
        if rank(*b) < rank(*a) {
            run.swap(0, 1);
        }
        return;
    }
    run.sort_unstable_by_key(|&k| (rank(k), content(k)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_time_class_and_port() {
        let k = |t, c, p| Key::new(t, c, p, 0);
        let sorted = [
            k(5, Class::WireFree, 9),
            k(5, Class::Arrival, 0),
            k(5, Class::Arrival, 1),
            k(5, Class::Timer, 0),
            k(6, Class::WireFree, 0),
        ];
        assert!(sorted.is_sorted());
        let x = Key::new(MAX_PHASE - 1, Class::Timer, METADATA_PORT, 8_000_000);
        assert_eq!((x.time(), x.port(), x.frame()), (MAX_PHASE - 1, METADATA_PORT, 8_000_000));
        assert!(x.is(Class::Timer) && !x.is(Class::Arrival));
    }

    #[test]
    fn nobody_is_favoured() {
        // Every port comes first about equally often, also if only some ports take part.
        for ports in [&[0u16, 1, 2][..], &[3, 4, 5, 6, 7, 8, 9], &[0, 64]] {
            let mut first = std::collections::BTreeMap::new();
            let rounds = 20_000;
            for at in 0..rounds {
                let mut run: Vec<Key> = ports.iter().map(|&p| Key::new(0, Class::Arrival, p, 0)).collect();
                draw_order(&mut run, 1, 2, at, |_| [0; 4]);
                *first.entry(run[0].port()).or_insert(0u64) += 1;
            }
            let fair = rounds / ports.len() as u64;
            assert!(first.values().all(|&n| n.abs_diff(fair) < fair / 10), "{first:?}");
        }
    }
}

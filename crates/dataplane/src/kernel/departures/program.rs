//! The program that gives a frame its departure time, in the instructions of BPF (RFC 9669).
//!
//! In words, for a frame to an address of the table:
//!
//! ```text
//! next = max(next, now - credit)           by compare and exchange
//! if next > now + limit: count it, drop
//! last = start = next; next += bytes * inverse    by fetch and add
//! bytes += the frame's
//! time stamp = max(start, now, time stamp)
//! ```
//!
//! Processors that send to one destination at the same time get different times, and lose none. TCP gives its segments time stamps of its
//! own, which are not made earlier.

use super::super::sys::bpf::{SharedArray, load_classifier, table};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

/// The name of the program and its maps, by which they are found again.
pub(super) const NAME: &str = "sluicenet_edt";
/// Fraction bits of the time of a byte: 100 Gb/s is then exact to 0.01 ‰.
pub(super) const INVERSE_BITS: u32 = 20;
/// The longest time of a byte. Multiplied by the largest frame of a kernel, of 512 KiB, it fits into 64 bits.
pub(super) const INVERSE_MAX: u64 = 1 << 44;

/// The words of a destination. The agent writes the first three, and the program the others.
pub(super) const WORDS: usize = 8;
/// The time of a byte, in nanoseconds, with [`INVERSE_BITS`].
pub(super) const INVERSE: usize = 0;
/// Nanoseconds that a destination without frames may catch up.
pub(super) const CREDIT: usize = 1;
/// Nanoseconds by which a frame may wait.
pub(super) const LIMIT: usize = 2;
/// When the next frame departs, by the kernel's clock.
pub(super) const NEXT: usize = 3;
/// Bytes of the frames that have a time.
pub(super) const BYTES: usize = 4;
/// Frames that would have waited for too long.
pub(super) const DROPPED: usize = 5;
/// When the last frame departs that has a time.
pub(super) const LAST: usize = 6;

/// The state of all destinations.
pub(super) type Flows = SharedArray<WORDS>;

/// Continues with the next program at the device; drops the frame (`TC_ACT_UNSPEC`, `TC_ACT_SHOT`).
const NEXT_PROGRAM: i32 = -1;
pub(super) const SHOT: i32 = 2;

/// Loads the program with a table of the addresses of each flow.
pub(super) fn load(flows: &Flows, destinations: &[Vec<Ipv4Addr>]) -> io::Result<OwnedFd> {
    let of = |(n, all): (u32, &Vec<Ipv4Addr>)| all.iter().map(move |at| (at.octets(), n)).collect::<Vec<_>>();
    let addresses: Vec<([u8; 4], u32)> = (0..).zip(destinations).flat_map(of).collect();
    // The program keeps the table.
    let table = table(NAME, &addresses)?;
    load_classifier(NAME, &instructions(table.as_raw_fd(), flows.map().as_raw_fd()))
}

/// Registers: results, arguments, and those that a call keeps; the last one is the stack's end.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
const FRAME: u8 = 6;
const FLOW: u8 = 7;
const NOW: u8 = 8;
const LENGTH: u8 = 9;
const STACK: u8 = 10;

/// Offsets in `__sk_buff`.
pub(super) const PROTOCOL_AT: i16 = 16;
pub(super) const TSTAMP_AT: i16 = 152;
pub(super) const WIRE_LEN_AT: i16 = 160;
/// Of the destination in a header of IPv4.
const DESTINATION_AT: i32 = 16;
/// `ETH_P_IP` as its bytes are in memory.
const IPV4: i32 = 0x0800u16.to_be() as i32;

/// Functions of the kernel.
const MAP_LOOKUP: i32 = 1;
const KTIME_GET_NS: i32 = 5;
const LOAD_BYTES_RELATIVE: i32 = 68;
const START_OF_NETWORK_HEADER: i32 = 1;

/// A step: an instruction, a place to jump to, or a jump to a place.
enum Step {
    Do(u64),
    Place(&'static str),
    Jump { op: u8, a: u8, b: u8, value: i32, to: &'static str },
}

const fn instruction(op: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    op as u64 | (to as u64) << 8 | (from as u64) << 12 | (offset as u16 as u64) << 16 | (value as u32 as u64) << 32
}

fn set(to: u8, value: i32) -> Step {
    Step::Do(instruction(0xb7, to, 0, 0, value))
}
fn copy(to: u8, from: u8) -> Step {
    Step::Do(instruction(0xbf, to, from, 0, 0))
}
/// `add`, `sub`, `mul`: 64 bits of two registers.
fn calculate(op: u8, to: u8, from: u8) -> Step {
    Step::Do(instruction(op, to, from, 0, 0))
}
const ADD: u8 = 0x0f;
const SUB: u8 = 0x1f;
const MUL: u8 = 0x2f;

fn shift_right(to: u8, bits: u32) -> Step {
    Step::Do(instruction(0x77, to, 0, 0, bits as i32))
}
fn load_word(to: u8, from: u8, offset: i16) -> Step {
    Step::Do(instruction(0x61, to, from, offset, 0))
}
fn store_word(to: u8, offset: i16, from: u8) -> Step {
    Step::Do(instruction(0x63, to, from, offset, 0))
}
/// A word of the destination.
fn load_of_flow(to: u8, word: usize) -> Step {
    Step::Do(instruction(0x79, to, FLOW, 8 * word as i16, 0))
}
fn store_in_flow(word: usize, from: u8) -> Step {
    Step::Do(instruction(0x7b, FLOW, from, 8 * word as i16, 0))
}
/// An atomic operation with a word of the destination.
fn atomic(op: i32, word: usize, from: u8) -> Step {
    Step::Do(instruction(0xdb, FLOW, from, 8 * word as i16, op))
}
const ATOMIC_ADD: i32 = 0;
const ATOMIC_FETCH_ADD: i32 = 1;
/// Expects the value of `r0`.
const ATOMIC_COMPARE_EXCHANGE: i32 = 0xf1;

/// The address of the word below the stack's end.
fn word_of_stack(to: u8) -> [Step; 2] {
    [copy(to, STACK), Step::Do(instruction(0x07, to, 0, 0, -4))]
}
fn map(to: u8, fd: i32) -> [Step; 2] {
    [Step::Do(instruction(0x18, to, 1, 0, fd)), Step::Do(0)]
}
fn call(function: i32) -> Step {
    Step::Do(instruction(0x85, 0, 0, 0, function))
}
/// Jumps if a register has this value, or not this one.
fn if_is(a: u8, value: i32, to: &'static str) -> Step {
    Step::Jump { op: 0x15, a, b: 0, value, to }
}
fn if_not(a: u8, value: i32, to: &'static str) -> Step {
    Step::Jump { op: 0x55, a, b: 0, value, to }
}
/// Jumps if `a >= b`, or `a > b`, without signs.
fn if_at_least(a: u8, b: u8, to: &'static str) -> Step {
    Step::Jump { op: 0x3d, a, b, value: 0, to }
}
fn if_more(a: u8, b: u8, to: &'static str) -> Step {
    Step::Jump { op: 0x2d, a, b, value: 0, to }
}
/// Ends with a result.
fn end(result: i32) -> [Step; 2] {
    [set(R0, result), Step::Do(0x95)]
}

fn instructions(addresses: i32, flows: i32) -> Vec<u64> {
    let mut steps = vec![copy(FRAME, R1)];
    let mut add = |more: Vec<Step>| steps.extend(more);
    // Which destination.
    add(vec![load_word(R2, FRAME, PROTOCOL_AT), if_not(R2, IPV4, "pass"), copy(R1, FRAME), set(R2, DESTINATION_AT)]);
    add(word_of_stack(R3).into());
    add(vec![set(R4, 4), set(R5, START_OF_NETWORK_HEADER), call(LOAD_BYTES_RELATIVE), if_not(R0, 0, "pass")]);
    add(map(R1, addresses).into());
    add(word_of_stack(R2).into());
    add(vec![call(MAP_LOOKUP), if_is(R0, 0, "pass"), load_word(R1, R0, 0), store_word(STACK, -4, R1)]);
    add(map(R1, flows).into());
    add(word_of_stack(R2).into());
    add(vec![call(MAP_LOOKUP), if_is(R0, 0, "pass"), copy(FLOW, R0)]);
    add(vec![call(KTIME_GET_NS), copy(NOW, R0), load_word(LENGTH, FRAME, WIRE_LEN_AT)]);
    // It catches up by its credit at most. The clock begins at 0.
    add(vec![load_of_flow(R1, CREDIT), set(R2, 0), if_more(R1, NOW, "earliest")]);
    add(vec![copy(R2, NOW), calculate(SUB, R2, R1), Step::Place("earliest")]);
    add(vec![load_of_flow(R0, NEXT), if_at_least(R0, R2, "ahead")]);
    // If another processor was faster, it has done the same.
    add(vec![atomic(ATOMIC_COMPARE_EXCHANGE, NEXT, R2), copy(R0, R2), Step::Place("ahead")]);
    add(vec![load_of_flow(R1, LIMIT), calculate(ADD, R1, NOW), if_more(R0, R1, "drop")]);
    add(vec![load_of_flow(R1, INVERSE), calculate(MUL, R1, LENGTH), shift_right(R1, INVERSE_BITS)]);
    add(vec![atomic(ATOMIC_FETCH_ADD, NEXT, R1), atomic(ATOMIC_ADD, BYTES, LENGTH), store_in_flow(LAST, R1)]);
    // The latest of three times.
    add(vec![if_at_least(R1, NOW, "later"), copy(R1, NOW), Step::Place("later")]);
    add(vec![Step::Do(instruction(0x79, R2, FRAME, TSTAMP_AT, 0)), if_at_least(R1, R2, "latest"), copy(R1, R2)]);
    add(vec![Step::Place("latest"), Step::Do(instruction(0x7b, FRAME, R1, TSTAMP_AT, 0)), Step::Place("pass")]);
    add(end(NEXT_PROGRAM).into());
    add(vec![Step::Place("drop"), set(R1, 1), atomic(ATOMIC_ADD, DROPPED, R1)]);
    add(end(SHOT).into());
    assemble(&steps)
}

/// The instructions, with the distances of jumps.
fn assemble(steps: &[Step]) -> Vec<u64> {
    let mut places = Vec::new();
    let mut at: i16 = 0;
    for step in steps {
        match step {
            Step::Place(name) => places.push((*name, at)),
            Step::Do(_) | Step::Jump { .. } => at += 1,
        }
    }
    let mut program = Vec::with_capacity(steps.len());
    for step in steps {
        match *step {
            Step::Place(_) => {}
            Step::Do(one) => program.push(one),
            Step::Jump { op, a, b, value, to } => {
                let place = places.iter().find(|(name, _)| *name == to).map(|&(_, at)| at);
                let offset = place.expect("every jump has its place") - program.len() as i16 - 1;
                program.push(instruction(op, a, b, offset, value));
            }
        }
    }
    program
}

#[cfg(test)]
mod tests {
    use super::super::super::sys::bpf::{CONTEXT_BYTES, test_run};
    use super::*;
    use crate::clock::monotonic_ns;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;

    const PASSED: u32 = NEXT_PROGRAM as u32;
    /// Longer than a test runs.
    const HOUR_NS: u64 = 3_600_000_000_000;

    struct Rig {
        flows: Flows,
        program: OwnedFd,
    }

    impl Rig {
        /// Flows 0 and 1, the second one with two addresses; none without the right to load programs.
        fn new() -> Option<Rig> {
            let flows = match Flows::new(NAME, 2) {
                Err(e) if [libc::EPERM, libc::ENOSYS].map(Some).contains(&e.raw_os_error()) => {
                    eprintln!("SKIPPED: programs in the kernel need root and CONFIG_BPF_SYSCALL ({e})");
                    return None;
                }
                other => other.unwrap(),
            };
            let destinations = [vec![[10, 0, 0, 1]], vec![[10, 0, 0, 2], [10, 0, 0, 3]]];
            let program = load(&flows, &destinations.map(|all| all.into_iter().map(Ipv4Addr::from).collect())).unwrap();
            Some(Rig { flows, program })
        }

        fn set(&self, n: usize, word: usize, value: u64) {
            self.flows.elements()[n][word].store(value, Relaxed);
        }
        fn get(&self, n: usize, word: usize) -> u64 {
            self.flows.elements()[n][word].load(Relaxed)
        }

        /// Sends a frame of `bytes` to an address, with a time stamp. Returns the result and the time stamp.
        fn send(&self, frame: &[u8], bytes: u32, tstamp: u64) -> (u32, u64) {
            let mut context = [0; CONTEXT_BYTES];
            let (stamp, length) = (TSTAMP_AT as usize, WIRE_LEN_AT as usize);
            context[stamp..stamp + 8].copy_from_slice(&tstamp.to_ne_bytes());
            context[length..length + 4].copy_from_slice(&bytes.to_ne_bytes());
            let result = test_run(self.program.as_fd(), frame, &mut context).unwrap();
            (result, u64::from_ne_bytes(context[stamp..stamp + 8].try_into().unwrap()))
        }
    }

    /// A frame of 60 bytes to an address.
    fn frame(ethertype: u16, to: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame[14] = 0x45;
        frame[30..34].copy_from_slice(&to);
        frame
    }

    #[test]
    fn frames_depart_at_the_rate_of_their_destination() {
        let Some(rig) = Rig::new() else { return };
        // 1 Gb/s is 8 ns a byte; 2.5 ns a byte for the other one.
        (0..2).for_each(|n| rig.set(n, LIMIT, HOUR_NS));
        rig.set(0, INVERSE, 8 << INVERSE_BITS);
        rig.set(1, INVERSE, 5 << (INVERSE_BITS - 1));
        let before = monotonic_ns();
        let first = rig.send(&frame(0x0800, [10, 0, 0, 1]), 1_514, 0);
        let after = monotonic_ns();
        assert!(first.0 == PASSED && (before..=after).contains(&first.1), "{first:?} in {before}..{after}");
        assert_eq!(rig.get(0, NEXT), first.1 + 1_514 * 8);
        // From now on frames wait: an hour ahead the clock does not matter.
        let start = after + HOUR_NS / 2;
        (0..2).for_each(|n| rig.set(n, NEXT, start));
        let times: Vec<u64> = (0..4).map(|_| rig.send(&frame(0x0800, [10, 0, 0, 1]), 1_514, 0).1).collect();
        assert_eq!(times, [0, 1, 2, 3].map(|k| start + k * 1_514 * 8));
        assert_eq!(rig.send(&frame(0x0800, [10, 0, 0, 2]), 1_001, 0).1, start);
        assert_eq!(rig.send(&frame(0x0800, [10, 0, 0, 3]), 65_000, 0).1, start + 2_502, "two addresses, one flow");
        assert_eq!((rig.get(1, LAST), rig.get(1, NEXT)), (start + 2_502, start + 2_502 + 162_500));
        assert_eq!([0, 1].map(|n| rig.get(n, BYTES)), [5 * 1_514, 66_001]);
        // A later time stamp of the sender remains.
        let late = rig.send(&frame(0x0800, [10, 0, 0, 1]), 60, start + HOUR_NS);
        assert_eq!(late, (PASSED, start + HOUR_NS));
    }

    #[test]
    fn other_frames_pass_untouched() {
        let Some(rig) = Rig::new() else { return };
        rig.set(0, INVERSE, 8 << INVERSE_BITS);
        for (ethertype, to) in [(0x0800, [10, 0, 0, 9]), (0x0806, [10, 0, 0, 1]), (0x86dd, [10, 0, 0, 1])] {
            assert_eq!(rig.send(&frame(ethertype, to), 60, 77), (PASSED, 77));
        }
        assert_eq!([BYTES, NEXT, DROPPED].map(|word| rig.get(0, word)), [0; 3]);
    }

    #[test]
    fn a_frame_beyond_the_limit_is_dropped_and_counted() {
        let Some(rig) = Rig::new() else { return };
        rig.set(0, INVERSE, 8 << INVERSE_BITS);
        rig.set(0, LIMIT, HOUR_NS);
        rig.set(0, NEXT, monotonic_ns() + 2 * HOUR_NS);
        let next = rig.get(0, NEXT);
        assert_eq!(rig.send(&frame(0x0800, [10, 0, 0, 1]), 60, 0).0, SHOT as u32);
        assert_eq!((rig.get(0, DROPPED), rig.get(0, BYTES), rig.get(0, NEXT)), (1, 0, next));
    }

    #[test]
    fn an_idle_destination_catches_up_by_its_credit() {
        let Some(rig) = Rig::new() else { return };
        // A second a byte: the clock hardly moves meanwhile.
        rig.set(0, INVERSE, 1_000_000_000 << 14);
        rig.set(0, LIMIT, HOUR_NS);
        rig.set(0, CREDIT, 1_000_000_000);
        let cost = ((1_000_000_000u64 << 14) * 64) >> INVERSE_BITS;
        assert_eq!(cost, 1_000_000_000);
        let times: Vec<u64> = (0..3).map(|_| rig.send(&frame(0x0800, [10, 0, 0, 1]), 64, 0).1).collect();
        // The first one pays with its credit, the second one departs at once too, and the third one waits.
        assert!(times[1] - times[0] < cost && times[2] - times[0] == cost, "{times:?}");
        // A credit longer than the kernel runs.
        rig.set(1, CREDIT, u64::MAX);
        rig.set(1, INVERSE, 8 << INVERSE_BITS);
        assert_eq!(rig.send(&frame(0x0800, [10, 0, 0, 2]), 64, 0).0, PASSED);
        assert_eq!(rig.get(1, NEXT), 512);
    }

    #[test]
    fn processors_that_send_at_once_lose_no_time() {
        let Some(rig) = Rig::new() else { return };
        rig.set(0, INVERSE, 8 << INVERSE_BITS);
        rig.set(0, LIMIT, 2 * HOUR_NS);
        let start = monotonic_ns() + HOUR_NS;
        rig.set(0, NEXT, start);
        let (threads, each) = (4, 2_000);
        let send = || (0..each).map(|_| rig.send(&frame(0x0800, [10, 0, 0, 1]), 100, 0).1).collect::<Vec<u64>>();
        let mut times: Vec<u64> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(send)).collect();
            all.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        times.sort_unstable();
        let expected: Vec<u64> = (0..threads * each).map(|k| start + k * 800).collect();
        assert!(times == expected, "every time is given once");
    }

    #[test]
    fn jumps_lead_to_their_places() {
        let steps = [if_is(R0, 0, "end"), set(R0, 1), Step::Place("end"), Step::Do(0x95)];
        assert_eq!(assemble(&steps), [0x0001_0015, 0x0000_0001_0000_00b7, 0x95]);
    }
}

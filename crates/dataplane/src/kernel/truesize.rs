//! The memory that the kernel charges a socket for a frame, which is not the frame's length.
//!
//! The charge depends on the kernel's version and build, so it is measured, on the path of the frames themselves. Frames of
//! every relevant length are sent to a packet socket at the other end, which reports their charges.

use super::error::{KernelError, Tried};
use super::sys;
use serde::{Deserialize, Serialize};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// 802: "local experimental", which no stack looks at.
const ETHERTYPE: u16 = 0x88b5;

/// The shortest frame.
const SHORTEST: u32 = 14;

/// How long all frames of a measurement may take, in which each takes microseconds: a tenant may hold or drop what it gets.
const MEASURES_WITHIN: Duration = Duration::from_secs(5);

/// The charge for a frame by its length: a step function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TrueSize {
    /// The longest frame of each step, and its charge in bytes; ascending.
    steps: Vec<(u32, u32)>,
}

impl TrueSize {
    /// The charge for a frame of `len` bytes; beyond the longest that was measured, that of the longest.
    pub fn of(&self, len: u32) -> u32 {
        self.steps.iter().find(|&&(longest, _)| len <= longest).or(self.steps.last()).map_or(0, |&(_, charge)| charge)
    }

    /// The charge for the longest frame.
    pub fn largest(&self) -> u32 {
        self.steps.last().map_or(0, |&(_, charge)| charge)
    }

    /// Finds the steps up to frames of `longest` bytes, asking `charge` as seldom as possible.
    pub fn find<E>(longest: u32, mut charge: impl FnMut(u32) -> Result<u32, E>) -> Result<TrueSize, E> {
        let mut steps = Vec::new();
        let (mut from, last) = (SHORTEST, charge(longest)?);
        while from <= longest {
            let here = charge(from)?;
            let (mut low, mut high) = (from, longest);
            if here != last {
                // The longest with the same charge is in low..high.
                while high - low > 1 {
                    let middle = low.midpoint(high);
                    if charge(middle)? == here { low = middle } else { high = middle }
                }
                high = low;
            }
            steps.push((high, here));
            from = high + 1;
        }
        Ok(TrueSize { steps })
    }

    /// Measures charges from a packet socket here to another one, `there`. The first requires a header in front of each
    /// frame. The second is not yet bound, at the device of this number.
    pub fn measure(
        from: BorrowedFd<'_>,
        there: BorrowedFd<'_>,
        device: u32,
        longest: u32,
    ) -> Result<TrueSize, KernelError> {
        let what = || "measuring what a frame is charged".to_owned();
        sys::bind_packet(there, device, ETHERTYPE).tried(what)?;
        let mut memory = vec![0u8; longest as usize];
        memory[..6].fill(0xff);
        memory[6] = 2;
        memory[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        let mut sink = vec![0u8; longest as usize];
        let deadline = Instant::now() + MEASURES_WITHIN;
        TrueSize::find(longest, |len| {
            sys::send(from, sys::Wait::No, &[&memory[..len as usize]], Some(&[[0; 12]])).tried(what)?;
            loop {
                let charge = sys::receive_memory(there).tried(what)?;
                if charge > 0 {
                    let mut received = [sys::Received::default(); sys::BATCH];
                    let range = sys::BufferRange { at: 0, len: sink.len(), rest: (0, 0) };
                    let memory = (&mut sink[..], &mut [][..]);
                    sys::receive(there, sys::Wait::No, false, memory, &[range], &mut received).tried(what)?;
                    return Ok(charge);
                }
                if Instant::now() > deadline {
                    let why = std::io::Error::new(std::io::ErrorKind::TimedOut, "a frame did not arrive");
                    return Err(KernelError::new(what(), why));
                }
                std::thread::yield_now();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linux(len: u32) -> u32 {
        match len {
            ..=214 => 832,
            215..=662 => 1280,
            663..=1686 => 2304,
            _ => 4352,
        }
    }

    #[test]
    fn every_step_is_found() {
        for longest in [60, 214, 215, 1514, 1686, 1687, 9014] {
            let mut asked = 0;
            let found = TrueSize::find(longest, |len| {
                asked += 1;
                Ok::<_, ()>(linux(len))
            });
            let found = found.unwrap();
            assert!((14..=longest).all(|len| found.of(len) == linux(len)), "{found:?}");
            assert!(asked < 60, "{asked}");
            assert_eq!(found.of(longest + 1), linux(longest));
            assert_eq!(found.largest(), linux(longest));
        }
    }
}

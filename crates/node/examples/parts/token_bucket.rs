//! A stage that limits the rate of each VM by a token bucket.

use super::{Context, Handle, Lane, Report, Stage, StageConfig};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluicenet_proto::frame::{Frame, HostId};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;

/// Bytes that an idle VM can send at once: about ten full Ethernet frames.
const BURST_BYTES: u64 = 15_000;
/// Frames of a VM that may wait here before its sockets stop.
const FRAMES_MAX: usize = 64;

/// The rate of every VM.
#[derive(Debug)]
struct TokenBucketConfig(Rate);

/// The settings of a stage that limits every VM to `rate`.
pub fn limit(rate: Rate) -> Arc<dyn StageConfig> {
    Arc::new(TokenBucketConfig(rate))
}

impl StageConfig for TokenBucketConfig {
    fn stage(&self, _host: HostId, vms: usize, _seed: u64) -> Box<dyn Stage> {
        let vms = (0..vms).map(|_| Vm::new(self.0)).collect();
        Box::new(TokenBuckets { vms, ready: 0 })
    }
}

/// A bucket of tokens. It is kept as the time when it will be full, so that it needs no refill and no fractions.
#[derive(Clone, Debug)]
struct Bucket {
    rate: Rate,
    full_at: Instant,
}

impl Bucket {
    fn new(rate: Rate) -> Bucket {
        Bucket { rate, full_at: Instant::ZERO }
    }

    /// When a frame may go: as soon as there is any token.
    fn next(&self, now: Instant) -> Instant {
        let missing = self.full_at.since(now);
        now + Duration(missing.0.saturating_sub(self.rate.time_for(BURST_BYTES).0))
    }

    /// Takes the tokens of a frame. The bucket may owe some of them afterwards.
    fn take(&mut self, now: Instant, bytes: u32) {
        self.full_at = self.full_at.max(now) + self.rate.time_for(bytes.into());
    }
}

/// The frames of one VM.
#[derive(Debug)]
struct Vm {
    bucket: Bucket,
    waiting: VecDeque<Handle>,
    has_timer: bool,
}

impl Vm {
    fn new(rate: Rate) -> Vm {
        Vm { bucket: Bucket::new(rate), waiting: VecDeque::new(), has_timer: false }
    }
}

/// The token buckets of a server.
#[derive(Debug)]
pub struct TokenBuckets {
    vms: Vec<Vm>,
    /// VMs that may have a frame to send, one bit each.
    ready: u64,
}

impl Stage for TokenBuckets {
    fn has_room(&self, lane: Lane, below: bool) -> bool {
        below && self.vms[lane].waiting.len() < FRAMES_MAX
    }

    fn send(&mut self, _now: Instant, lane: Lane, at: Handle, _cx: &mut Context<'_>) -> Option<Handle> {
        self.vms[lane].waiting.push_back(at);
        if !self.vms[lane].has_timer {
            self.ready |= 1 << lane;
        }
        None
    }

    fn ready(&self) -> u64 {
        self.ready
    }

    fn poll_transmit(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        let vm = &mut self.vms[lane];
        let next = vm.bucket.next(now);
        if vm.waiting.is_empty() || next > now {
            self.ready &= !(1 << lane);
            if !vm.waiting.is_empty() && !vm.has_timer {
                vm.has_timer = true;
                cx.set_timer(next, lane as u64);
            }
            return None;
        }
        let at = vm.waiting.pop_front()?;
        vm.bucket.take(now, cx.frame(at).len());
        Some(at)
    }

    fn handle_timer(&mut self, _now: Instant, _at: Instant, _slot: u8, token: u64, _cx: &mut Context<'_>) {
        self.vms[token as Lane].has_timer = false;
        self.ready |= 1 << token;
    }

    fn report(&self, report: &mut Report) {
        report.queued += self.vms.iter().map(|vm| vm.waiting.len() as u64).sum::<u64>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a VM with frames of 1,500 bytes sends each of them, in microseconds.
    fn departures(bucket: &mut Bucket, mut now: Instant, frames: usize) -> Vec<u64> {
        let mut times = Vec::new();
        for _ in 0..frames {
            now = bucket.next(now);
            bucket.take(now, 1_500);
            times.push(now.since(Instant::ZERO).as_us());
        }
        times
    }

    #[test]
    fn a_burst_goes_at_once_and_then_a_frame_each_time_its_tokens_are_there() {
        // At 1 Gb/s a frame takes 12 us. Ten frames empty the bucket, and the eleventh leaves it in debt.
        let mut bucket = Bucket::new(Rate::gbps(1));
        let times = departures(&mut bucket, Instant::ZERO, 14);
        assert_eq!(times, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 24, 36]);
        // The bucket is full again when the debt is paid and 15,000 bytes have passed.
        let later = Instant::ZERO + Duration::from_us(1_000);
        assert_eq!(departures(&mut bucket, later, 12)[10..], [1_000, 1_012]);
    }
}

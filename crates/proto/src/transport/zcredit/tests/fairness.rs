//! Fairness: each source's share of a receiver.

use super::{SMALL, Wire, ms, sender, talk};
use crate::time::{Duration, Instant};
use crate::transport::zcredit::{Reception, ReceptionConfig, Transmission};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Slots of a round trip over links of 10 Gb/s and 1 us.
const NEAR: u64 = 8;

/// Returns how many frames of each source come in the last 30,000 slots. Sources have endless frames. Each source is
/// behind its own link, which takes a frame every `every` slots, or all but the first source are behind one link. A
/// slot is a frame's time on the last link. A frame with a credit arrives there `delay` slots later if it meets no
/// other frame. The first source begins when the others have long had all the capacity.
fn rates(delay: u64, queue: u32, every: &[u64], is_one_link: bool, weights: &[u32]) -> Vec<u64> {
    const SLOTS: u64 = 90_000;
    const BEGINS: u64 = 10_000;
    let config = ReceptionConfig { queue, batch: 8.min(queue), sources: every.len(), ..SMALL };
    let mut r = Reception::new(config);
    let mut ends: Vec<Transmission> = every.iter().map(|_| sender(1)).collect();
    weights.iter().enumerate().for_each(|(name, &weight)| r.set_weight(ms(0), name as u8, weight));
    // One source after the other, not all at once.
    let all = every.len() as u64;
    let mut leaves: Vec<u64> = (0..).zip(every).map(|(name, every)| name * every / all).collect();
    let (mut link, mut last): (Wire<u8>, VecDeque<u8>) = (Wire::new(), VecDeque::new());
    let mut came = alloc::vec![0; every.len()];
    for slot in 0..SLOTS {
        let now = Instant::ZERO.saturating_add(Duration::from_us(slot));
        while let Some(name) = link.pop_arrived(now) {
            last.push_back(name);
        }
        if let Some(name) = last.pop_front() {
            r.on_frame(now, name).unwrap();
            r.on_departure(now);
            came[usize::from(name)] += u64::from(slot >= SLOTS - 30_000);
        }
        for (name, t) in ends.iter_mut().enumerate() {
            while (name > 0 || slot >= BEGINS) && t.waiting() < 256 {
                t.on_arrival();
            }
            while let Some((channel, message)) = t.poll_message(now) {
                r.receive(now, name as u8, channel, &message);
            }
            // A frame with a credit waits in front of its link.
            let at = if is_one_link { name.min(1) } else { name };
            while t.may_send() {
                t.on_sent();
                leaves[at] = leaves[at].max(slot) + every[name];
                link.send(Instant::ZERO.saturating_add(Duration::from_us(leaves[at] + delay)), name as u8);
            }
        }
        while let Some((to, channel, message)) = r.poll_message() {
            ends[usize::from(to)].receive(now, channel, &message);
        }
        assert!(r.is_sound() && r.queued_max() <= queue);
    }
    came
}

#[test]
fn senders_that_are_slow_leave_a_fast_one_its_share() {
    const SLOTS: u64 = 30_000;
    for queue in [64, 512] {
        for slow in [1, 2, 8, 30] {
            for pace in [100, 1_000] {
                let mut every = alloc::vec![pace; slow + 1];
                every[0] = 1;
                let came = rates(NEAR, queue, &every, false, &[]);
                let fair = SLOTS - slow as u64 * SLOTS / pace;
                // With hardly two credits for each source and one round trip for the fast source, every source waits
                // for a credit in flight now and then.
                let [fast, least] = if queue < 4 * slow as u32 { [85, 50] } else { [88, 92] };
                assert!(came[0] * 100 >= fair * fast, "{queue} {slow} {pace}: {} of {fair}", came[0]);
                let is_well = |&n: &u64| n * 100 >= SLOTS / pace * least;
                assert!(came[1..].iter().all(is_well), "{queue} {slow} {pace}: {came:?}");
            }
        }
    }
    // A fifth of the speed is not slow enough to be held against a source.
    let came = rates(NEAR, 64, &[1, 5], false, &[]);
    assert!(came[0] * 100 >= SLOTS * 8 / 10 * 95 && came[1] * 100 >= SLOTS / 5 * 95, "{came:?}");
}

/// Two sources that could each fill the link, two of a tenth of its speed, and twenty of a hundredth; near and far.
#[test]
fn of_sources_of_all_speeds_nobody_has_much_less_than_the_others_leave() {
    for (delay, queue) in [(NEAR, 128), (NEAR, 512), (32, 512), (85, 512)] {
        let every: Vec<u64> = [1, 1, 10, 10].into_iter().chain([100; 20]).collect();
        let came = rates(delay, queue, &every, false, &[]);
        assert!(came[0].abs_diff(came[1]) * 7 <= came[0], "{delay} {queue}: twins have {came:?}");
        for (name, &pace) in every.iter().enumerate() {
            let (fair, percent) = match pace {
                1 => (30_000 * 6 / 10 / 2, 88),
                10 => (3_000, if queue < 512 { 45 } else { 70 }),
                _ => (300, 90),
            };
            assert!(came[name] * 100 >= fair * percent, "{delay} {queue}: {name} has less than {fair} in {came:?}");
        }
        let every: Vec<u64> = [1].into_iter().chain([10; 8]).collect();
        let came = rates(delay, queue, &every, false, &[]);
        assert!(came[0] >= 5_700 && came.iter().sum::<u64>() >= 28_000, "{delay} {queue}: {came:?}");
    }
}

/// As many sources as the queue has frames, all behind one slow link, and one quick source.
#[test]
fn sources_as_many_as_credits_do_not_have_them_all() {
    let every: Vec<u64> = [1].into_iter().chain([100; 64]).collect();
    let came = rates(NEAR, 64, &every, true, &[]);
    assert!(came[0] * 100 >= 29_700 * 95, "{came:?}");
    assert!(came[1..].iter().sum::<u64>() >= 290, "{came:?}");
}

#[test]
fn sources_that_all_want_more_have_shares_by_weight() {
    for queue in [64, 512] {
        let came = rates(NEAR, queue, &[1; 5], false, &[4, 1, 1, 2, 1]);
        let sum: u64 = came.iter().sum();
        assert!(sum * 100 >= 30_000 * 99, "{queue}: {came:?}");
        for (name, weight) in [4, 1, 1, 2, 1].into_iter().enumerate() {
            let fair = sum * weight / 9;
            // A turn of the first source is longer than the window of a queue of 64.
            let percent = if queue == 64 { 20 } else { 8 };
            assert!(came[name].abs_diff(fair) * 100 <= percent * fair, "{queue} {name}: {came:?}");
        }
    }
}

#[test]
fn who_stops_with_all_it_may_hold_leaves_the_others_room() {
    let mut r = Reception::new(ReceptionConfig { queue: 64, batch: 8, ..SMALL });
    let mut ends = [sender(1), sender(1)];
    for (name, t) in ends.iter_mut().enumerate() {
        (0..200).for_each(|_| t.on_arrival());
        talk(ms(0), t, &mut r, name as u8);
    }
    assert_eq!((ends[0].credits(), ends[1].credits()), (32, 16));
    // The first source does nothing any more. The other gets its own credits back with each frame, and no more than are
    // free.
    for _ in 0..100 {
        ends[1].on_sent();
        r.on_frame(ms(1), 1).unwrap();
        r.on_departure(ms(1));
        talk(ms(1), &mut ends[1], &mut r, 1);
        assert!(ends[1].credits() >= 8 && r.promised() <= 64, "{}", ends[1].credits());
    }
}

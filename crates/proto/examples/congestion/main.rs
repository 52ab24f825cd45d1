//! A congestion control in one file, tried out by itself: how long a loss takes to be made good.
//!
//! `cargo run -p sluicenet-proto --example congestion`
//!
//! `docs/extending.md` puts `scalable.rs` into the crate as it stands; here it finds the same names one level up.

use sluicenet_proto::tcp::congestion::{Ack, Congestion, Control, NewReno, Signal, Window, half_of_flight};
use sluicenet_proto::time::{Duration, Instant};

mod scalable;

const MSS: u32 = 1_448;
const RTT: Duration = Duration::from_us(100);

fn main() {
    println!("round trips until a loss is made good");
    println!("{:>10} {:>10} {:>10}", "segments", "NewReno", "Scalable");
    for segments in [16, 100, 1_000, 10_000] {
        let reno = rounds_to_recover(NewReno::default(), segments);
        let scalable = rounds_to_recover(scalable::Scalable::default(), segments);
        println!("{segments:>10} {reno:>10} {scalable:>10}");
    }
}

/// Loses one segment of a window of so many and counts the round trips until the window is back.
fn rounds_to_recover(mut control: impl Control, segments: u32) -> u32 {
    let full = segments * MSS;
    let mut now = Instant::ZERO;
    let mut window = Window { cwnd: full, ssthresh: full };
    window.ssthresh = control.on_congestion(&window, &Congestion { now, flight: full, mss: MSS, signal: Signal::Loss });
    window.cwnd = window.ssthresh;
    let mut rounds = 0;
    while window.cwnd < full {
        for _ in 0..window.cwnd / MSS {
            let ack = Ack {
                now,
                bytes: MSS,
                mss: MSS,
                rtt: Some(RTT),
                srtt: RTT,
                una: 0,
                sent: 0,
                limited: true,
                after_timeout: false,
            };
            control.on_ack(&mut window, &ack);
        }
        now += RTT;
        rounds += 1;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_takes_as_long_to_make_good_whatever_the_window() {
        // Kelly 2003, 3: log(1 - b) / log(1 + a) = 13.4 round trips.
        for segments in [100, 1_000, 10_000] {
            let rounds = rounds_to_recover(scalable::Scalable::default(), segments);
            assert!((13..=15).contains(&rounds), "{segments} segments: {rounds}");
            assert!(rounds_to_recover(NewReno::default(), segments) >= segments / 2);
        }
    }

    #[test]
    fn a_small_window_is_that_of_reno() {
        for segments in [4, 10, 16] {
            let (scalable, reno) = (scalable::Scalable::default(), NewReno::default());
            let rounds = [rounds_to_recover(scalable, segments), rounds_to_recover(reno, segments)];
            assert!(rounds[0].abs_diff(rounds[1]) <= 1, "{segments} segments: {rounds:?}");
        }
    }
}

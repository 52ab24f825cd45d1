use super::*;
use crate::rng::Rng;
use crate::time::Instant;

const CONFIG: Config = Config::ZHU_2015;
const LINE: Rate = Rate::gbps(40);

fn us(us: u64) -> Instant {
    Instant(us * 1_000_000)
}

/// Current rate, target rate, both in Mb/s.
fn rates(limiter: &ReactionPoint) -> (u64, u64) {
    (limiter.current_rate().0 / 1_000_000, limiter.target_rate().0 / 1_000_000)
}

/// A limiter after two CNPs: 40 Gb/s, cut to a half twice because alpha is still 1.
fn cut_twice() -> ReactionPoint {
    let mut limiter = ReactionPoint::new(&CONFIG, us(0), LINE);
    assert_eq!(rates(&limiter), (20_000, 40_000));
    assert_eq!(limiter.alpha(&CONFIG, us(0)), 1.0, "255/256 + 1/256");
    limiter.on_cnp(&CONFIG, us(50));
    assert_eq!(rates(&limiter), (10_000, 20_000));
    limiter
}

/// Zhu et al. 2015, 3.1, by hand: cycles end 55 us after the last CNP, and every 55 us.
#[test]
fn time_alone_recovers_in_five_halvings_and_then_in_steps() {
    let mut limiter = cut_twice();
    let mut seen = [(0, 0); 8];
    for (n, seen) in seen.iter_mut().enumerate() {
        let end = 50 + 55 * (n as u64 + 1);
        let before = rates(&limiter);
        limiter.handle_timeout(&CONFIG, Instant(us(end).0 - 1));
        assert_eq!(rates(&limiter), before, "not before its end");
        limiter.handle_timeout(&CONFIG, us(end));
        *seen = rates(&limiter);
    }
    // Fast recovery: 10 -> 15 -> 17.5 -> 18.75 -> 19.375 -> 19.6875; then the target rises by 40 Mb/s each time.
    let by_hand = [
        (15_000, 20_000),
        (17_500, 20_000),
        (18_750, 20_000),
        (19_375, 20_000),
        (19_687, 20_000),
        (19_863, 20_040),
        (19_971, 20_080),
        (20_045, 20_120),
    ];
    assert_eq!(seen, by_hand);
}

/// Equation 2: alpha falls by 1/256 after each 55 us without CNP, and a CNP cuts by half of it.
#[test]
fn alpha_follows_the_hand_written_values() {
    let mut limiter = cut_twice();
    let kept = 255.0 / 256.0;
    assert_eq!(limiter.alpha(&CONFIG, Instant(us(105).0 - 1)), 1.0);
    assert_eq!(limiter.alpha(&CONFIG, us(105)), kept);
    assert!((limiter.alpha(&CONFIG, us(50 + 10 * 55)) - 0.961_617).abs() < 1e-6, "(255/256)^10");
    // A CNP after ten cycles: the rate is at the target, 20 Gb/s and five steps; the cut is 48.08 %.
    limiter.handle_timeout(&CONFIG, us(600));
    let before = limiter.current_rate().0 as f64;
    limiter.on_cnp(&CONFIG, us(600));
    let left = limiter.current_rate().0 as f64 / before;
    assert!((left - (1.0 - 0.961_617 / 2.0)).abs() < 1e-6, "{left}");
    let raised = 0.961_617 * kept + 1.0 / 256.0;
    assert!((limiter.alpha(&CONFIG, us(600)) - raised).abs() < 1e-6);
    assert_eq!(limiter.target_rate().0, before as u64);
}

#[test]
fn bytes_end_cycles_too_and_both_together_are_hyper_increase() {
    // Cycles of 1 us and of one packet: each packet of 1,000 B ends one of bytes.
    let config = Config { rpg_byte_reset: 1_000, rpg_time_reset: Duration::from_us(1), ..CONFIG };
    let mut limiter = ReactionPoint::new(&config, us(0), LINE);
    limiter.on_transmit(&config, us(0), 1_000);
    assert_eq!(rates(&limiter), (30_000, 40_000), "a cycle of bytes");
    let mut limiter = ReactionPoint::new(&config, us(0), LINE);
    limiter.on_cnp(&config, us(0));
    for n in 1..=6 {
        limiter.handle_timeout(&config, us(n));
        if n < 6 {
            limiter.on_transmit(&config, us(n), 1_000);
        }
    }
    // Six cycles of time, five of bytes: the first rise was 40 Mb/s.
    assert_eq!(limiter.target_rate(), Rate::mbps(20_040));
    limiter.on_transmit(&config, us(6), 1_000);
    assert_eq!(limiter.target_rate(), Rate::mbps(20_440), "one cycle beyond fast recovery: 400 Mb/s");
    limiter.handle_timeout(&config, us(7));
    limiter.on_transmit(&config, us(7), 1_000);
    assert_eq!(limiter.target_rate(), Rate::mbps(20_440 + 400 + 800), "the smaller count is 6, then 7");
}

#[test]
fn a_limiter_without_notifications_ends_at_line_rate_and_needs_no_timer() {
    let mut limiter = cut_twice();
    limiter.handle_timeout(&CONFIG, us(1_000_000));
    assert!(limiter.is_at_line_rate() && limiter.current_rate() == LINE);
    limiter.on_transmit(&CONFIG, us(1_000_000), 1_000);
    assert_eq!(limiter.poll_timeout(), limiter.next_transmit(), "only the pace of the line");
    // Alpha has been falling all the while: the next cut is small.
    limiter.on_cnp(&CONFIG, us(1_000_001));
    assert_eq!(rates(&limiter), (40_000, 40_000));
    assert!(!limiter.is_at_line_rate());
}

#[test]
fn packets_leave_at_the_rate_and_a_waiting_one_profits_from_a_rise() {
    let mut limiter = cut_twice();
    limiter.on_transmit(&CONFIG, us(50), 1_250);
    assert_eq!(limiter.next_transmit(), us(51), "1,250 B at 10 Gb/s");
    limiter.on_transmit(&CONFIG, us(51), 125_000);
    // At 105 us 46 us are left at 10 Gb/s, which are 30.67 us at 15 Gb/s.
    assert_eq!(limiter.next_transmit(), us(151));
    assert_eq!(limiter.poll_timeout(), us(105));
    limiter.handle_timeout(&CONFIG, us(105));
    assert_eq!(limiter.next_transmit().0 / 1_000, us(105).0 / 1_000 + 30_666);
}

#[test]
fn each_setting_has_its_effect() {
    let first = |config: &Config| rates(&ReactionPoint::new(config, us(0), LINE));
    assert_eq!(first(&Config { initial_alpha_value: 512, ..CONFIG }), (30_000, 40_000));
    assert_eq!(first(&Config { rpg_gd: 10, rpg_min_dec_fac: 25, ..CONFIG }), (10_000, 40_000), "at most to a quarter");
    assert_eq!(first(&Config { rpg_min_rate: Rate::gbps(30), ..CONFIG }), (30_000, 40_000));
    let config = Config { rate_to_set_on_first_cnp: Some(Rate::gbps(5)), ..CONFIG };
    assert_eq!(first(&config), (5_000, 5_000));
    // Without clamping, a second CNP in the same cycle keeps the target.
    let config = Config { clamp_tgt_rate: false, ..CONFIG };
    let mut limiter = ReactionPoint::new(&config, us(0), LINE);
    limiter.on_cnp(&config, us(50));
    assert_eq!(rates(&limiter), (10_000, 40_000));
    limiter.on_cnp(&config, us(110));
    assert_eq!(rates(&limiter), (12_548, 25_000), "a cycle had ended: 25 Gb/s, and alpha was 255/256");
    // g = 1/4: alpha is 0.75 after one period.
    let config = Config { dce_tcp_g: 768, dce_tcp_rtt: Duration::from_us(10), ..CONFIG };
    assert_eq!(ReactionPoint::new(&config, us(0), LINE).alpha(&config, us(10)), 0.75);
}

#[test]
fn a_notification_point_sends_one_cnp_in_50_us() {
    let mut point = NotificationPoint::default();
    let marked = [0, 1, 49, 50, 51, 99, 100, 500, 549, 550].map(us);
    let answered = marked.map(|at| point.on_marked(&CONFIG, at));
    assert_eq!(answered, [true, false, false, true, false, false, true, true, false, true]);
}

/// The mean rate of a sender of 1,000 B packets that are marked with a fixed probability, in bit/s.
fn mean_rate(probability: f64) -> f64 {
    let (mut now, mut limiter, mut point) = (us(0), None::<ReactionPoint>, NotificationPoint::default());
    let mut rng = Rng::from_words(&[2015, probability.to_bits()]);
    let (mut bits, settled, end) = (0u64, us(400_000), us(2_000_000));
    while now < end {
        if rng.unit_f64() < probability && point.on_marked(&CONFIG, now) {
            match &mut limiter {
                Some(limiter) => limiter.on_cnp(&CONFIG, now),
                None => limiter = Some(ReactionPoint::new(&CONFIG, now, LINE)),
            }
        }
        bits += if now >= settled { 8_000 } else { 0 };
        now = match &mut limiter {
            None => now + LINE.time_for(1_000),
            Some(limiter) => {
                limiter.on_transmit(&CONFIG, now, 1_000);
                while limiter.next_transmit() > limiter.poll_timeout() {
                    limiter.handle_timeout(&CONFIG, limiter.poll_timeout());
                }
                limiter.next_transmit()
            }
        };
    }
    bits as f64 / end.since(settled).as_secs_f64()
}

/// The rate at which the fluid model of Zhu et al. 2015 (section 5, equations 5 to 9) stands still at marking probability `p`,
/// in bit/s. Rates are packets a second; `b` is the byte counter in packets.
fn fixed_point(p: f64) -> f64 {
    let (tau, alpha_time, t, b, f) = (50e-6, 55e-6, 55e-6, 10_000.0, 5.0);
    let step = 40e6 / 8_000.0;
    let marked = |packets: f64| 1.0 - libm::pow(1.0 - p, packets);
    // Growth of the current rate at R_C, with the alpha and the target at which these stand still.
    let growth = |rate: f64| {
        let alpha = marked(alpha_time * rate);
        let (byte, time) = (libm::pow(1.0 - p, -b) - 1.0, libm::pow(1.0 - p, -t * rate) - 1.0);
        let raised = libm::pow(1.0 - p, f * b) / byte + libm::pow(1.0 - p, f * t * rate) / time;
        // The target falls to the rate at each notification, and rises by a step after fast recovery.
        let above = step * rate * p * raised / (marked(tau * rate) / tau);
        let falls = rate * alpha / (2.0 * tau) * marked(tau * rate);
        above / 2.0 * rate * p * (1.0 / byte + 1.0 / time) - falls
    };
    let (mut low, mut high) = (1e3, 5e6);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if growth(middle) > 0.0 { low = middle } else { high = middle }
    }
    low * 8_000.0
}

#[test]
fn at_a_fixed_marking_probability_the_rate_is_near_the_fluid_models() {
    for p in [0.001, 0.003, 0.01] {
        let (measured, model) = (mean_rate(p), fixed_point(p));
        let ratio = measured / model;
        assert!((0.8..1.25).contains(&ratio), "p = {p}: {measured:.3e} b/s, the model {model:.3e} b/s");
    }
    // More marks, a lower rate.
    assert!(mean_rate(0.001) > 1.5 * mean_rate(0.003) && mean_rate(0.003) > 1.5 * mean_rate(0.01));
}

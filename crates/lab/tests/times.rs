//! Completion times in an empty network equal the closed form to the picosecond.

mod common;
mod worlds;

use sluicenet_proto::rng::Rng;
use worlds::flows;

#[test]
fn a_datagram_takes_the_time_of_the_closed_form() {
    // One UDP datagram of 1,000 B through one switch at 10 Gb/s: every figure by hand.
    let text = r#"
        [scenario]
        parameters = "plain"
        [topology]
        kind = "single-switch"
        hosts = 2
        link_delay = "1 us"
        [switch]
        delay = "300 ns"
        [adapter]
        delay = "500 ns"
        [[workload]]
        kind = "flow"
        src = 0
        dst = 1
        bytes = "1000 B"
        transport = "udp"
    "#;
    let f = &flows(text, "closed")[0];
    // 1000 + 28 + 18 B of frame and 8 B of preamble, twice; two cables; two adapters; one switch.
    let bits = (1000 + 28 + 18 + 8) * 800;
    assert_eq!(f.fct_ps, Some(2 * bits + 2 * 1_000_000 + 2 * 500_000 + 300_000));
    assert_eq!(f.slowdown, Some(1.0));
}

#[test]
fn streams_in_an_empty_network_meet_their_ideal_to_the_picosecond() {
    // Datagrams at line rate, over trees of any shape, cut-through and not, with and without a virtual network.
    let mut rng = Rng::from_words(&[11]);
    for case in 0..24 {
        let (m, w) = [("[4]", "[1]"), ("[4, 3]", "[2, 2]"), ("[2, 3, 2]", "[1, 2, 3]")][case % 3];
        let hosts = [4, 12, 12][case % 3];
        let (src, dst) = (rng.below(hosts), rng.below(hosts));
        let dst = if dst == src { (dst + 1) % hosts } else { dst };
        let bytes = 1 + rng.below(200_000);
        let forwarding = ["cut-through", "store-and-forward"][case / 3 % 2];
        let set = ["plain", "crisan2014-ch2", "crisan2014-ch3"][case / 6 % 3];
        let text = format!(
            r#"
            [scenario]
            parameters = "{set}"
            [topology]
            kind = "xgft"
            m = {m}
            w = {w}
            [switch]
            forwarding = "{forwarding}"
            [[workload]]
            kind = "flow"
            src = {src}
            dst = {dst}
            bytes = "{bytes} B"
            transport = "udp"
            "#
        );
        let f = &flows(&text, &format!("ideal-{case}"))[0];
        assert_eq!(f.fct_ps, f.ideal_ps, "case {case}: {text}");
    }
}

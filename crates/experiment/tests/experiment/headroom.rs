//! The computed headroom against the worst case of a simulated link.

use super::worlds::execute;
use sluicenet_scenario::Scenario;

/// Bytes of a frame in a buffer, and on the wire.
const FRAME: u64 = 1_518;
const WIRE: u64 = FRAME + 20;

/// A host sends at 100 Gb/s to one whose link takes 500 Mb/s, over cables of this length: next to nothing leaves the switch
/// while frames arrive. Its own link back is full, so that pauses wait for whole frames. It responds as late as allowed, and
/// XOFF is a whole number of frames, so that a frame crosses it whole.
fn slow_receiver(cable: &str, headroom: &str) -> String {
    let flow = |src: u32, dst: u32| {
        format!("[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = {dst}\ntransport = \"udp\"\nrate = \"100 Gb/s\"\n")
    };
    let flows: String = [(0, 1), (2, 0)].map(|(src, dst)| flow(src, dst)).concat();
    format!(
        "[scenario]\nduration = \"20 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 3\nlink_rate = \"100 Gb/s\"\n\
         cable = \"{cable}\"\n[[slowdown]]\nport = \"host 1\"\nrate = \"500 Mb/s\"\n\
         [pfc]\nenabled = true\nxoff = \"{} B\"\nxon = \"{} B\"\n\
         response = \"2017.28 ns\"\nheadroom = {headroom}\n{flows}",
        64 * FRAME,
        62 * FRAME
    )
}

/// At 100 Gb/s and 40 m: the frame across XOFF, the frame before the pause and the frame after it, 1,538 B each; the pause,
/// 84 B; 2 x 200 ns of cable and 394 quanta of 5.12 ns at 12.5 B/ns, 5,000 B and 25,216 B: 34,914 B. At 300 m the cable holds
/// 2 x 1,500 ns, 37,500 B: 67,414 B.
///
/// A buffer holds whole frames without preamble and gap. After the pause arrives 2,424 ns of frames and up to one frame
/// before it and after it: 20 or 21 frames beside the one across XOFF, 33,396 B. At 300 m it is 5,024 ns: 42 and one, 65,274 B.
#[test]
fn the_headroom_is_enough_and_two_frames_less_are_not() {
    for (cable, metres, frames) in [("40 m", 40, 22), ("300 m", 300, 43)] {
        let needed = 3 * WIRE + 84 + 2 * metres * 5 * 25 / 2 + 394 * 64;
        let auto = Scenario::parse(&slow_receiver(cable, "\"auto\""), "t").unwrap().scenario;
        let kinds = sluicenet_experiment::build::link_kinds(&auto).unwrap();
        assert!(kinds.iter().all(|kind| kind.headroom_bytes == Some(needed)), "{kinds:?}");
        let lost = |bytes: u64| {
            let o = execute(&slow_receiver(cable, &format!("\"{bytes} B\"")), 1, None);
            assert!(o.pauses > 10, "{} pauses", o.pauses);
            o.violations
        };
        assert_eq!((lost(needed), lost(frames * FRAME)), (0, 0), "{cable}");
        assert!(frames * FRAME <= needed && needed < (frames + 2) * FRAME);
        assert!(lost(needed - 2 * FRAME) > 0 && lost(frames * FRAME - 1) > 0, "{cable}");
    }
}

#[test]
fn links_without_a_row_and_rows_that_are_too_small_are_named() {
    let warned = |cable: &str, headroom: &str| -> Vec<String> {
        let row = format!("[[pfc.link]]\nrate = \"100 Gb/s\"\ncable = \"{cable}\"\nheadroom = \"{headroom}\"\n");
        let text = slow_receiver("40 m", "\"auto\"").replacen("[[workload]]", &format!("{row}[[workload]]"), 1);
        let scenario = Scenario::parse(&text.replacen("headroom = \"auto\"\n", "", 1), "t").unwrap().scenario;
        let all = sluicenet_experiment::build::outline(&scenario).unwrap().warnings;
        all.iter().map(ToString::to_string).filter(|warning| warning.contains("headroom")).collect()
    };
    assert_eq!(warned("40 m", "34914 B"), Vec::<String>::new());
    let [unlisted] = &warned("300 m", "90 KB")[..] else { panic!() };
    let says = "no row of [[pfc.link]] is for links of 100 Gb/s with 200 ns of cable: they have the computed headroom";
    assert!(unlisted.contains(says), "{unlisted}");
    let [small] = &warned("40 m", "34913 B")[..] else { panic!() };
    assert!(small.contains("frames can be lost there"), "{small}");
}

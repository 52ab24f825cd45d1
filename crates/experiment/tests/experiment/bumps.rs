//! Bumps in whole worlds: estimates beside the true queues, the applications, updates between bumps, and lossless links.

use crate::worlds::{assert_same_bytes, attempt, execute, load};
use sluicenet_proto::loss::DropReason;
use sluicenet_records::{BumpRow, EstimateRow, FlowRow, QueueRow, read};
use sluicenet_testkit::{Dir, netbump_program, repository};
use std::collections::BTreeMap;

/// A frame on the wire.
const MTU: u64 = 1_538;

/// Two racks of four hosts at 1 Gb/s, whose switches 0 and 1 have uplinks of 10 Gb/s (port 4) to switch 2, and long flows to
/// host 4.
fn racks(senders: &[u32], transport: &str, sections: &str) -> String {
    let flow = |src: &u32| {
        format!(
            "[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = 4\ntransport = \"{transport}\"\nstart = \"{src} us\"\n"
        )
    };
    let flows: String = senders.iter().map(flow).collect();
    format!(
        "[scenario]\nduration = \"100 ms\"\n[topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 1]\nlink_rate = \"1 Gb/s\"\n\
         [[topology.level]]\nlevel = 2\nrate = \"10 Gb/s\"\n{sections}\n{flows}\
         [record]\nqueues = \"10 us\"\nqueue_ports = [\"switch 1 port 0\"]\n"
    )
}

/// A bump in the uplink of the second rack, with an application.
fn bump(app: &str) -> String {
    format!("[[bump]]\nlinks = [\"switch 1 port 4\"]\n{app}\n")
}

/// The queue and its estimates, at each time.
fn samples(dir: &Dir) -> Vec<(u64, Vec<u64>)> {
    let mut estimates: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for row in read::<EstimateRow>(&dir.0).unwrap() {
        assert_eq!((row.node.as_ref(), row.port), ("switch 1", 0));
        estimates.entry(row.time_ps).or_default().push(row.bytes);
    }
    let queues: Vec<QueueRow> = read(&dir.0).unwrap();
    queues.iter().map(|row| (row.bytes, estimates.remove(&row.time_ps).unwrap_or_default())).collect()
}

/// The share of samples whose estimate by bump `i` is within `mtus` of the queue.
fn share_within(samples: &[(u64, Vec<u64>)], i: usize, mtus: u64) -> f64 {
    let close = samples.iter().filter(|(truth, estimates)| truth.abs_diff(estimates[i]) <= mtus * MTU).count();
    close as f64 / samples.len() as f64
}

#[test]
fn the_estimate_is_within_two_frames_of_the_queue() {
    for app in ["", "app = [{ kind = \"dctcp\" }]", "app = [{ kind = \"red\" }]"] {
        let dir = Dir::new("bumps-estimate");
        let sections =
            format!("[tcp]\necn = true\n[switch]\nbuffer = \"60 KB\"\n{}", bump("buffer = \"60 KB\"\n") + app);
        let outcome = execute(&racks(&[0, 1, 2], "tcp", &sections), 1, Some(dir.0.clone()));
        assert_eq!(outcome.violations, 0);
        let samples = samples(&dir);
        let busy: Vec<_> = samples.into_iter().filter(|s| s.0 > 0).collect();
        assert!(busy.len() > 5_000, "{} samples", busy.len());
        let share = share_within(&busy, 0, 2);
        assert!(share > 0.95, "{share} with `{app}`");
    }
}

#[test]
fn marks_of_a_bump_keep_the_queue_short_and_lose_nothing() {
    let run = |congestion: &str, app: &str| {
        let dir = Dir::new("bumps-marks");
        let sections = format!("[tcp]\ncongestion = \"{congestion}\"\n[switch]\nbuffer = \"300 KB\"\n{}", bump(app));
        let outcome = execute(&racks(&[0, 1, 2], "tcp", &sections), 1, Some(dir.0.clone()));
        let rows: Vec<QueueRow> = read(&dir.0).unwrap();
        let late: Vec<u64> = rows.iter().filter(|r| r.time_ps > 50_000_000_000).map(|r| r.bytes).collect();
        (outcome.marked, late.iter().sum::<u64>() / late.len() as u64, outcome.totals.dropped)
    };
    let none = run("newreno", "");
    let dctcp = run("dctcp", "app = [{ kind = \"dctcp\" }]");
    let red = run("newreno", "app = [{ kind = \"red\" }]");
    assert!(none.0 == 0 && none.1 > 150_000, "{none:?}");
    // K is 20 frames.
    assert!(dctcp.0 > 100 && dctcp.2 == 0 && (10_000..40_000).contains(&dctcp.1), "{dctcp:?}");
    // It drops above its maximum threshold, which slow start exceeds.
    assert!(red.0 > 10 && red.2 < 100 && red.1 < 60 * 1_538, "{red:?}");
}

#[test]
fn two_bumps_with_qcn_hold_line_rate_senders_to_the_port_behind_them() {
    // Figure 5.17: the reaction point is nearer to the senders.
    let sections = "[switch]\nbuffer = \"100 KB\"\n\
                    [[bump]]\nlinks = [\"switch 0 port 4\"]\napp = [{ kind = \"qcn-reaction-point\" }]\n\
                    [[bump]]\nlinks = [\"switch 1 port 4\"]\napp = [{ kind = \"qcn-congestion-point\" }]\n";
    let dir = Dir::new("bumps-qcn");
    let text = racks(&[0, 1, 2], "udp", sections).replace("100 ms", "2 s").replace("10 us", "100 us");
    let outcome = execute(&text, 1, Some(dir.0.clone()));
    let bumps: Vec<BumpRow> = read(&dir.0).unwrap();
    let policed = outcome.switch_drops.frames(DropReason::Policed);
    assert!(policed > 1_000, "{policed}");
    assert_eq!(bumps.iter().map(|b| b.dropped).sum::<u64>(), policed);
    assert_eq!(bumps.iter().map(|b| b.notifications).sum::<u64>(), outcome.notifications);
    let queues: Vec<QueueRow> = read(&dir.0).unwrap();
    // At first each sender has its full rate; then the rates recover in small steps.
    let of = |from_ms: u64| {
        let late = queues.iter().filter(move |r| r.time_ps > from_ms * 1_000_000_000).map(|r| r.bytes);
        (late.clone().max().unwrap(), late.clone().sum::<u64>() / late.count() as u64)
    };
    assert!(of(30).0 <= 40_000, "{:?}", of(30));
    assert!(of(1_500).1 > 1_000, "the port is not left idle: {:?}", of(1_500));
    let unlimited = execute(&racks(&[0, 1, 2], "udp", "[switch]\nbuffer = \"100 KB\"\n"), 1, None);
    assert!(unlimited.switch_drops.frames(DropReason::SwitchBuffer) > 10_000);
    assert!(outcome.switch_drops.frames(DropReason::SwitchBuffer) < 300, "{:?}", outcome.switch_drops);
}

/// Two racks over two switches in the middle, by the source, with a bump before each way into the second rack.
fn two_ways(neighbours: bool) -> String {
    let tell =
        |other: u32| if neighbours { format!("neighbours = [{other}]\nupdate_packets = 4\n") } else { String::new() };
    let bump = |port: u32, other: u32| {
        format!("[[bump]]\nlinks = [\"switch 1 port {port}\"]\nbuffer = \"40 KB\"\n{}", tell(other))
    };
    let sections = format!("[tcp]\necn = true\n[switch]\nbuffer = \"40 KB\"\n{}{}", bump(4, 1), bump(5, 0));
    racks(&[0, 1, 2, 3], "tcp", &sections).replace("w = [1, 1]", "w = [1, 2]\nrouting = \"s-mod-k\"")
}

#[test]
fn bumps_that_see_a_part_each_estimate_the_whole_by_updates() {
    let run = |neighbours| {
        let dir = Dir::new("bumps-neighbours");
        execute(&two_ways(neighbours), 1, Some(dir.0.clone()));
        let busy: Vec<_> = samples(&dir).into_iter().filter(|s| s.0 > 0).collect();
        let reported: u64 = read::<BumpRow>(&dir.0).unwrap().iter().map(|b| b.reported).sum();
        ([0, 1].map(|i| share_within(&busy, i, 3)), reported)
    };
    let (alone, none) = run(false);
    let (together, reported) = run(true);
    assert_eq!(none, 0);
    assert!(reported > 1_000, "{reported}");
    assert!(alone.iter().all(|&share| share < 0.8), "each sees a part: {alone:?}");
    assert!(together.iter().all(|&share| share > 0.9), "{together:?}");
}

#[test]
fn a_lossless_link_stays_lossless_with_bumps_in_it() {
    // Pauses pass, and the headroom is for what is under way: 30 us each way in each of two bumps.
    let sections = "[pfc]\nenabled = true\n[switch]\nbuffer = \"100 KB\"\n\
                    [[bump]]\nlinks = [\"switch 1 port 4\"]\nlatency = \"30 us\"\n\
                    [[bump]]\nlinks = [\"switch 1 port 4\"]\nlatency = \"30 us\"\n\
                    [[bump]]\nlinks = [\"host 2\", \"switch 1 port 0\"]\nlatency = \"10 us\"\n";
    let outcome = execute(&racks(&[0, 1, 2, 3], "udp", sections), 1, None);
    assert_eq!((outcome.totals.dropped, outcome.violations), (0, 0));
    assert!(outcome.pauses > 100, "{}", outcome.pauses);
}

#[test]
fn the_time_of_a_message_counts_the_bumps() {
    let text = racks(&[], "tcp", "").replace(
        "[record]",
        "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 4\nbytes = \"1 KB\"\ntransport = \"udp\"\n[record]",
    );
    let run = |bumps: &str| {
        let dir = Dir::new("bumps-ideal");
        execute(&format!("{text}{bumps}"), 1, Some(dir.0.clone()));
        let flows: Vec<FlowRow> = read(&dir.0).unwrap();
        (flows[0].fct_ps.unwrap(), flows[0].slowdown.unwrap())
    };
    let (plain, one) = run("");
    let bump = "[[bump]]\nlinks = [\"switch 1 port 4\"]\nlatency = \"30 us\"\n";
    let (bumped, still_one) = run(bump);
    let (twice, also_one) = run(&format!("{bump}{}", bump.replace("switch 1 port 4", "host 0")));
    assert_eq!([one, still_one, also_one], [1.0; 3]);
    // 30 us, and the frame of 1,046 B and its preamble stored once more: at 10 Gb/s, and at 1 Gb/s.
    let stored = |ps_per_byte: u64| (1_000 + 28 + 18 + 8) * ps_per_byte;
    assert_eq!((bumped - plain, twice - bumped), (30_000_000 + stored(800), 30_000_000 + stored(8_000)));
}

#[test]
fn bumps_give_the_same_bytes_on_any_number_of_threads() {
    let qcn = "[[bump]]\nlinks = [\"switch 0 port 4\", \"host 5\"]\napp = [{ kind = \"qcn-reaction-point\" }]\n\
               [[bump]]\nlinks = [\"switch 1 port 4\"]\napp = [{ kind = \"qcn-congestion-point\" }, { kind = \"red\" }]\n";
    for (case, text) in [two_ways(true), racks(&[0, 1, 2, 5], "udp", qcn)].iter().enumerate() {
        let text = text.replace("100 ms", "10 ms");
        assert_same_bytes(&format!("bumps-{case}"), |threads, dir| drop(execute(&text, threads, Some(dir.0.clone()))));
    }
}

/// A scenario with a program in C in its bump.
fn with_program(dir: &Dir, name: &str, source: &str, arguments: &str) -> String {
    let library = netbump_program(dir, name, source);
    let app = format!("{{ kind = \"program\", file = \"{}\", arguments = \"{arguments}\" }}", library.display());
    let sections = format!("[tcp]\ncongestion = \"dctcp\"\n{}", bump(&format!("app = [{app}]")));
    racks(&[0, 1, 2], "tcp", &sections).replace("100 ms", "20 ms")
}

#[test]
fn a_program_in_c_gives_the_results_of_the_application_that_it_repeats() {
    let dir = Dir::new("bumps-program");
    let source = std::fs::read_to_string(repository("crates/netbump/examples/dctcp.c")).unwrap();
    let ours = "[tcp]\ncongestion = \"dctcp\"\n";
    let ours =
        racks(&[0, 1, 2], "tcp", &format!("{ours}{}", bump("app = [{ kind = \"dctcp\", threshold = \"20 KB\" }]")));
    let ours = execute(&ours.replace("100 ms", "20 ms"), 1, None);
    let theirs = execute(&with_program(&dir, "dctcp", &source, "20000"), 1, None);
    assert!(ours.marked > 50, "{}", ours.marked);
    // A threshold in bytes or as a time: the same packets exceed it.
    assert_eq!((ours.totals, ours.tcp_bytes), (theirs.totals, theirs.tcp_bytes));
    assert_eq!(theirs.warnings, []);
    let text = with_program(&dir, "dctcp", &source, "20000");
    assert_same_bytes("bumps-program", |threads, dir| drop(execute(&text, threads, Some(dir.0.clone()))));
}

#[test]
fn a_program_can_notify_senders_and_is_told_on_if_it_does_the_impossible() {
    let dir = Dir::new("bumps-impossible");
    // A copy of each hundredth frame goes back, one more frame that cannot be, and a payload.
    let source = "#include <netbump.h>\nNETBUMP_PROGRAM\n
        int netbump_process(Packet *p, vQueue *vq)
        {
            static int n;
            static const uint8_t frame[60];
            (void)vq;
            if (++n % 100 == 0 && (netbump_send(p, p->port, p->data, p->len) != 0 || netbump_send(p, 0, frame, 60) == 0))
                return NETBUMP_DROP;
            p->data[p->len - 1] = n % 100 == 50;
            return NETBUMP_FORWARD;
        }";
    let outcome = execute(&with_program(&dir, "impossible", source, ""), 1, None);
    assert_eq!(outcome.switch_drops.frames(DropReason::Extension), 0);
    let warning = outcome.warnings.iter().find(|w| w.message.contains("simulated packets do not have")).unwrap();
    assert!(warning.message.contains("frames") && warning.line > 0, "{warning:?}");
}

#[test]
fn a_bump_that_cannot_be_is_refused_with_its_line() {
    let error = |bumps: &str| {
        let here = sluicenet_testkit::repository("crates/scenario");
        let loaded = load(&racks(&[0], "tcp", bumps), "test", &here).unwrap();
        attempt(&loaded, 1, None).unwrap_err().to_string()
    };
    let twice = error("[[bump]]\nlinks = [\"switch 1 port 4\", \"switch 2 port 1\"]\n");
    assert!(twice.contains("the link of `switch 2 port 1` is listed twice"), "{twice}");
    let none = error("[[bump]]\nlinks = [\"switch 1 port 5\"]\n");
    assert!(none.contains("switch 1 has ports 0 to 4, not 5"), "{none}");
    let missing = load(&racks(&[0], "tcp", &bump("app = [{ kind = \"program\" }]")), "test", &repository("crates"));
    assert!(missing.unwrap_err().to_string().contains("file"));
    let text = error(&bump("app = [{ kind = \"program\", file = \"Cargo.toml\" }]"));
    assert!(text.contains("`Cargo.toml` is no program for a bump") && text.contains("test:"), "{text}");
    let slow = error("[[bump]]\nlinks = [\"host 4\"]\n[[slowdown]]\nport = \"switch 1 port 0\"\nrate = \"1 Mb/s\"\n");
    assert!(slow.contains("a bump is in a link of `switch 1 port 0`"), "{slow}");
}

//! A synthetic sweep and a plain run through the page.
//!
//! `SLUICENET_REPORT_DIR=/tmp cargo test -p sluicenet-report` leaves the pages there to be looked at.

use sluicenet_proto::rng::Rng;

use super::*;
use sluicenet_experiment::run::{Stream, Streams};
use sluicenet_records::{DropRow, Input, PortRow, Profile, StageShare, Text};
use sluicenet_testkit::Dir;
use std::path::Path;

const MS: f64 = 1e9;

/// Milliseconds that most often are near `typical`, and with probability `late` after a retransmission timer of `timer`.
fn completion_ps(rng: &mut Rng, typical: f64, late: f64, timer: f64) -> f64 {
    let near = typical * (0.75 + 0.5 * rng.unit_f64() - 0.25 * rng.unit_f64().ln());
    let timeouts = (0..4).take_while(|_| rng.unit_f64() < late).count();
    (near + (0..timeouts).map(|i| timer * f64::from(1 << i) * (0.9 + 0.2 * rng.unit_f64())).sum::<f64>()) * MS
}

fn port(node: &str, level: u8, paused_ms: u64, max_queue_bytes: u64, utilisation: f64) -> PortRow {
    let (paused_ps, xoff_sent) = (paused_ms * 1_000_000_000, paused_ms / 2);
    let node = Text::from(node.to_owned());
    PortRow { node, level, paused_ps, xoff_sent, max_queue_bytes, utilisation, ..PortRow::default() }
}

fn drop_of(node: &str, reason: &'static str, frames: u64) -> DropRow {
    DropRow { node: Text::from(node.to_owned()), reason: reason.into(), frames, ..DropRow::default() }
}

fn info(axes: &[(&str, &str)], seed: u64) -> RunInfo {
    let parameters = [
        ("topology", "XGFT, 256 servers, 16 per edge switch, 3 levels"),
        ("links", "10 Gb/s, 100 m, switch delay 100 ns"),
        ("workload", "partition-aggregate, 10,000 queries, MLA fan-out 15"),
        ("retransmission timer", "base 10 ms"),
    ];
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    RunInfo {
        tool_version: "0.1.0".into(),
        defaults: 2,
        scenario: "partition-aggregate".into(),
        scenario_sha256: sluicenet_records::sha256_hex(b"scenario"),
        seed,
        warmup_ps: 0,
        axes: axes.iter().map(|(key, value)| (last(key), value.to_string())).collect(),
        axis_keys: axes.iter().map(|(key, _)| key.to_string()).collect(),
        parameters: parameters.map(|(name, value)| (name.into(), value.into())).to_vec(),
        inputs: vec![Input::of("websearch.cdf", b"1 0.5 2 1")],
        ..RunInfo::default()
    }
}

/// LL, LZ, ZL, ZZ for three TCPs and two seeds each.
fn sweep() -> Vec<CellInput> {
    let mut cells = Vec::new();
    for (congestion, busy) in [("newreno", 1.0f64), ("cubic", 1.2), ("vegas", 0.8)] {
        for (flow_control, typical, late) in [("LL", 4.0, 0.75), ("LZ", 4.4, 0.45), ("ZL", 4.2, 0.6), ("ZZ", 4.6, 0.0)]
        {
            for seed in 1..=2 {
                let axes = [("tcp.congestion", congestion), ("scenario.flow_control", flow_control)];
                let mut rng = Rng::from_words(&[seed, (typical * 10.0) as u64, (busy * 10.0) as u64]);
                cells.push(cell(&axes, &mut rng, seed, (typical, late * busy.min(1.0)), flow_control));
            }
        }
    }
    cells
}

fn cell(axes: &[(&str, &str)], rng: &mut Rng, seed: u64, (typical, late): (f64, f64), fc: &str) -> CellInput {
    let queries: Vec<QueryRow> = (0..1000)
        .map(|query_id| {
            let completion_ps = Some(completion_ps(rng, typical, late, 20.0) as u64);
            let timeouts = (late * 4.0) as u32;
            QueryRow { query_id, completion_ps, timeouts, warmup: query_id < 50, ..QueryRow::default() }
        })
        .collect();
    let mut flows = FlowSamples::default();
    let background: Vec<FlowRow> = (0..2000)
        .map(|flow_id| {
            let bytes = 10f64.powf(3.0 + 4.0 * rng.unit_f64()) as u64;
            let ideal_ps = bytes * 800 + 20_000_000;
            let fct = completion_ps(rng, ideal_ps as f64 * 1.8 / MS, late / 4.0, 20.0);
            let slowdown = Some(fct / ideal_ps as f64);
            let kind = "background".into();
            FlowRow {
                flow_id,
                kind,
                bytes: Some(bytes),
                ideal_ps: Some(ideal_ps),
                fct_ps: Some(fct as u64),
                slowdown,
                ..FlowRow::default()
            }
        })
        .collect();
    background.iter().for_each(|flow| flows.add(flow));
    let lossy = |letter: usize| fc.as_bytes()[letter] == b'L';
    let (virtually, physically) = (lossy(0) as u64, lossy(1) as u64);
    let pause = 1 - physically;
    let ports = vec![
        port("host 1", 0, 180 * pause, 512_000 / (1 + virtually), 0.31),
        port("switch 1", 1, 920 * pause, 100_000, 0.34),
        port("switch 20", 2, 410 * pause, 97_000, 0.28),
        port("switch 30", 3, 60 * pause, 64_000, 0.2),
    ];
    let drops = vec![
        drop_of("host 1", "vswitch_uplink", 18_432 * virtually),
        drop_of("switch 1", "switch_buffer", 5_120 * physically),
        drop_of("switch 20", "switch_buffer", 2_048 * physically),
        drop_of("switch 30", "switch_buffer", 96 * physically),
    ];
    let reasons = summary::reasons(&drops);
    let (drops, levels) = summary::loss_locations(&ports, &drops);
    CellInput {
        run: info(axes, seed),
        status: Status::Complete,
        timeouts: queries.iter().map(|query| u64::from(query.timeouts)).sum(),
        retransmissions: 0,
        queries: summary::queries(&queries),
        flows: flows.summarise(),
        streams: Default::default(),
        drops,
        reasons,
        levels,
        over_time: over_time(late, pause > 0),
        profile: None,
        packets: (0, 0),
    }
}

/// A course of 160 intervals, with a queue in the middle; pauses only where there are any.
fn over_time(late: f64, has_pauses: bool) -> OverTime {
    let course = |height: f64| (0..160).map(|i| height * (1.0 + (f64::from(i) / 9.0).sin())).collect();
    OverTime {
        end_ps: 40.0 * MS,
        payload_gbps: course(90.0 + 40.0 * late),
        paused: if has_pauses { course(12.0) } else { Vec::new() },
        queue_bytes: course(30_000.0 * (1.0 + late)),
    }
}

/// A run of flows without queries, whose drops are bit errors.
fn incast() -> CellInput {
    let mut rng = Rng::from_words(&[9]);
    let mut input = cell(&[], &mut rng, 9, (1.0, 0.1), "ZZ");
    input.queries = None;
    input.run.parameters.clear();
    input.run.scenario = "incast <32 to 1>".into();
    let drops = [drop_of("switch 1", "bad_crc", 3)];
    (input.drops, input.reasons) = (summary::loss_locations(&[], &drops).0, summary::reasons(&drops));
    input
}

/// The page, also left where the environment says.
fn page(name: &str, inputs: &[CellInput], options: &Options) -> String {
    let page = html(inputs, options);
    if let Some(dir) = std::env::var_os("SLUICENET_REPORT_DIR") {
        std::fs::write(Path::new(&dir).join(name), &page).unwrap();
    }
    page
}

/// Every element that is opened is closed, in order.
fn assert_balanced(page: &str) {
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let Some((tag, _)) = tag.split_once('>') else { panic!("<{tag} is never completed") };
        let name = tag.split_whitespace().next().unwrap_or_default();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed");
        } else if !tag.ends_with('/') && !["meta", "!doctype"].contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
}

#[test]
fn flows_without_an_end_have_rates_and_no_times() {
    let stream = |src_host, mbps| Stream {
        src_host,
        src_vm: 0,
        dst_host: src_host + 2,
        dst_vm: 0,
        transport: "<udp>".into(),
        mbps,
        course_mbps: Vec::new(),
    };
    let runs = [("false", 94.4), ("true", 8987.7)].map(|(credits, victim)| {
        let mut input = incast();
        input.flows = FlowSamples::default().summarise();
        input.run.axes = vec![("enabled".into(), credits.into())];
        input.run.axis_keys = vec!["zcredit.enabled".into()];
        input.streams = Streams {
            count: 20,
            total_mbps: victim + 96.9,
            min_mbps: 94.4,
            max_mbps: victim,
            jain: 0.5,
            interval_ms: None,
            each: (0..20).map(|i| stream(i, if i == 0 { victim } else { 96.9 })).collect(),
        };
        input
    });
    let page = page("streams.html", &runs, &Options::default());
    assert_balanced(&page);
    assert!(page.contains("<h1>Flows without an end: 94.4 to 8987.7 Mb/s.</h1>"), "{page}");
    assert!(
        page.contains("<h3>zcredit.enabled true</h3>") && page.contains("&lt;udp&gt; 0.0 to 2.0</th><td>8987.7 Mb/s")
    );
    assert!(page.contains("20 flows, 4 of them not shown: 94.4 to 8987.7 Mb/s") && !page.contains("16.0 to 18.0"));
    // Bars are to one scale.
    assert!(page.contains("<rect width=\"300.0\"") && page.contains("<rect width=\"3.2\""));
}

#[test]
fn a_sweep_of_flow_controls() {
    let options = Options {
        title: Some("Partition-aggregate on a 256-server fat tree".into()),
        rerun: vec!["sluicenet sweep scenarios/partition-aggregate.toml --seeds 2".into()],
    };
    let page = page("sweep.html", &sweep(), &options);
    assert_balanced(&page);
    assert!(page.contains("<h1>Lossless end to end, a query completes "));
    assert!(page.contains(", ZZ none."));
    // Three panels of four curves each, twice: distributions and slowdown, where p99 and the median are two.
    // Over time three panels each of throughput, pauses and queues.
    assert_eq!(page.matches("<figcaption>").count(), 18);
    for part in ["<h2>Over time</h2>", "<h3>Throughput</h3>", "<h3>Pauses</h3>", "<h3>Queues</h3>", "together, in Gb/s"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert!(page.contains("Dotted: p99.9") && page.contains("the course is that of the first"));
    for name in
        ["NewReno ZZ", "CUBIC LL", "Vegas LZ", "edge switch", "aggregation switch", "core switch", "lost, virtual"]
    {
        assert!(page.contains(name), "{name}");
    }
    // Two seeds of 950 queries after the warm-up, all of them shown as one configuration.
    assert_eq!(page.matches("<td>1,900</td><td>0</td></tr>").count(), 12);
    // Timeouts are those of all queries, the warm-up's 50 queries too: 3 a query of LL with NewReno.
    assert!(
        page.contains(">6,000</td>") && page.contains("timeouts and segments sent again are those of all messages")
    );
    // Two seeds: an interval, and the name of its method.
    assert!(page.contains("&#177; 95") && page.contains("Student's t"));
    // 18,432 frames a seed in the vSwitch of LL and LZ.
    assert!(page.contains(">36,864</td>"));
    assert!(!page.contains("NaN") && !page.contains("inf"), "numbers that are none");
    assert!(!page.contains("http"), "nothing is fetched");
    assert!(page.len() < 400_000, "{} bytes", page.len());
}

#[test]
fn a_run_of_flows_has_no_queries() {
    let page = page("incast.html", &[incast()], &Options::default());
    assert_balanced(&page);
    assert!(page.contains("<h1>2,000 flows completed in "));
    assert!(page.contains("3 frames were lost."));
    assert!(page.contains("Slowdown by flow size"));
    assert!(!page.contains("query") && !page.contains("queries"), "no word of queries");
    assert!(page.contains("incast &lt;32 to 1&gt;") && !page.contains("<32"));
}

#[test]
fn a_result_directory_becomes_a_cell() {
    let scratch = Dir::new("report");
    let dir = scratch.0.join("out");
    let run = RunInfo { scenario: "incast".into(), axes: vec![("load".into(), "0.5".into())], ..RunInfo::default() };
    let options = sluicenet_records::Options { part_rows: 3, csv: false };
    let mut records = sluicenet_records::RecordWriter::create(&dir, run, options).unwrap();
    let flow =
        |start_ps| FlowRow { kind: "incast".into(), start_ps, fct_ps: Some(7), timeouts: 1, ..FlowRow::default() };
    records.write(&(0..10).map(flow).collect::<Vec<_>>()).unwrap();
    records.write(&[port("switch 1", 1, 5, 64, 0.5)]).unwrap();
    records.finish(Status::Complete).unwrap();
    let cell = CellInput::read(&dir, 4).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!((cell.run.scenario.as_str(), cell.run.axes.len(), cell.levels[&1].ports), ("incast", 1, 1));
    assert_eq!(cell.flows.kinds[&Text::from("incast")].flows, 6, "those of the warm-up are left out");
    assert_eq!(cell.timeouts, 10, "those of the warm-up too");
    assert!(CellInput::read(&dir, 0).unwrap_err().to_string().contains("manifest.json: cannot read"));
}

#[test]
fn what_is_missing_is_said() {
    let mut input = incast();
    input.status = Status::InterruptedAt { at_ps: 2_500_000_000 };
    input.flows.times.unfinished += 7;
    let page = page("interrupted.html", &[input], &Options::default());
    assert!(page.contains("(seed 9): interrupted at 2.50\u{202f}ms of simulated time."));
    assert!(page.contains("7 flows had not finished when the runs ended."));
}

#[test]
fn one_tcp_stands_beside_its_distribution() {
    let cells: Vec<CellInput> = sweep().into_iter().filter(|cell| cell.run.axes[0].1 == "cubic").collect();
    let page = page("cubic.html", &cells, &Options::default());
    assert_balanced(&page);
    let all = "bars, distributions, slowdown; throughput, pauses, queues";
    assert_eq!(page.matches("<figure>").count(), 6, "{all}");
    assert_eq!(page.matches("<figcaption>").count(), 0);
    assert!(page.contains("<span>LL 127\u{202f}ms \u{2192} ZZ"), "a single group needs no name");
}

#[test]
fn values_stand_with_their_keys() {
    let mut rng = Rng::from_words(&[3]);
    let mut of = |slots, typical| cell(&[("vswitch.slots", slots)], &mut rng, 1, (typical, 0.0), "ZZ");
    let page = page("slots.html", &[of("1024", 2.0), of("64", 9.0)], &Options::default());
    assert_balanced(&page);
    assert!(page.contains("<h1>vswitch.slots 1024 completes its queries soonest"), "the headline");
    assert!(page.contains("vswitch.slots 64 takes longest"), "the sentence below");
    // Under the bars the values alone, and once which key they are of.
    assert!(page.contains(">1024</text>") && page.contains(">vswitch.slots</text>"));
    let mut of = |pfc| cell(&[("vswitch.slots", "64"), ("pfc.enabled", pfc)], &mut rng, 1, (2.0, 0.0), "ZZ");
    let page = html(&[of("true"), of("false")], &Options::default());
    assert!(page.contains("pfc.enabled true") && !page.contains("slots"), "only what varies is named");
}

#[test]
fn equal_configurations_say_why() {
    let mut cells: Vec<CellInput> = sweep().into_iter().filter(|cell| cell.run.axes[0].1 == "cubic").collect();
    let said = "ZL equals LL";
    assert!(!html(&cells, &Options::default()).contains(said));
    let ll: Vec<CellInput> = cells.iter().filter(|cell| cell.run.axes[1].1 == "LL").cloned().collect();
    cells.retain(|cell| cell.run.axes[1].1 != "ZL");
    for mut cell in ll {
        cell.run.axes[1].1 = "ZL".into();
        cells.push(cell);
    }
    assert!(!html(&cells, &Options::default()).contains(said), "equal, but LL lost frames in the vSwitch");
    cells.iter_mut().for_each(|cell| cell.drops.retain(|location, _| *location != LossLocation::Vswitch));
    let page = page("equal.html", &cells, &Options::default());
    assert!(page.contains("ZL equals LL: the vSwitch of LL lost nothing") && page.contains("switch.policy"));
}

#[test]
fn worse_is_called_worse() {
    let mut cells = sweep();
    for cell in &mut cells {
        let name = &mut cell.run.axes[1].1;
        *name = match name.as_str() {
            "LL" => "ZZ".into(),
            "ZZ" => "LL".into(),
            _ => continue,
        };
    }
    assert!(html(&cells, &Options::default()).contains("<h1>Lossless end to end, a query takes "));
    assert!(html(&cells, &Options::default()).contains(" longer.</h1>"));
}

#[test]
fn no_winner_is_named_where_queries_are_unfinished() {
    let headline = |cells: &[CellInput]| {
        let page = html(cells, &Options::default());
        page.split_once("<h1>").unwrap().1.split_once("</h1>").unwrap().0.to_owned()
    };
    let mut rng = Rng::from_words(&[4]);
    let mut of = |slots, typical| cell(&[("vswitch.slots", slots)], &mut rng, 1, (typical, 0.0), "ZZ");
    let mut cells = [of("1024", 2.0), of("64", 9.0)];
    assert!(headline(&cells).contains("soonest"));
    cells[1].queries.as_mut().unwrap().unfinished = 3;
    assert_eq!(headline(&cells), "No winner is named: 3 queries had not finished when the runs ended.");
    // Least of all where one finished nothing.
    cells[1].queries = Some(Times { unfinished: 1, ..Times::default() });
    assert_eq!(headline(&cells), "No winner is named: 1 query had not finished when the runs ended.");
    // Of several groups, comparable ones are compared.
    let mut cells = sweep();
    let of = |cell: &&mut CellInput, name| cell.run.axes[0].1 == name && cell.run.axes[1].1 == "LL";
    cells.iter_mut().filter(|cell| of(cell, "cubic")).for_each(|cell| cell.queries.as_mut().unwrap().unfinished = 2);
    let page = html(&cells, &Options::default());
    assert!(page.contains("<h1>Lossless end to end, a query completes "));
    assert!(page.contains("That leaves out CUBIC: 4 queries had not finished"), "{}", headline(&cells));
    assert!(!page.contains("<span>CUBIC: LL"), "no gain of it");
    cells.iter_mut().for_each(|cell| cell.queries.as_mut().unwrap().unfinished = 1);
    assert_eq!(headline(&cells), "No winner is named: 4 queries had not finished when the runs ended.");
}

#[test]
fn no_winner_is_named_where_confidence_intervals_overlap() {
    let mut rng = Rng::from_words(&[5]);
    let mut of = |key, value, seed, typical| cell(&[(key, value)], &mut rng, seed, (typical, 0.0), "ZZ");
    let slots = "vswitch.slots";
    // Means of 2 and 6 against 3 and 9, of two seeds each: intervals of tens of milliseconds.
    let cells = [of(slots, "64", 1, 2.0), of(slots, "64", 2, 6.0), of(slots, "8", 1, 3.0), of(slots, "8", 2, 9.0)];
    let page = html(&cells, &Options::default());
    assert!(page.contains(
        "<h1>No winner is named: the 95\u{202f}% confidence intervals of vswitch.slots 64 and vswitch.slots 8 overlap.</h1>"
    ));
    assert!(!page.contains("soonest") && !page.contains("takes longest") && page.contains("lie between"));
    let key = "scenario.flow_control";
    let cells = [of(key, "LL", 1, 3.0), of(key, "LL", 2, 9.0), of(key, "ZZ", 1, 2.0), of(key, "ZZ", 2, 6.0)];
    let page = html(&cells, &Options::default());
    assert!(page.contains("<h1>No winner is named: the 95\u{202f}% confidence intervals of LL and ZZ overlap.</h1>"));
}

#[test]
fn a_profile_is_a_section_with_a_bar_for_each_stage() {
    let mut input = incast();
    assert!(!page("unprofiled.html", &[input.clone()], &Options::default()).contains("CPU time"));
    let stage = |stage: &str, samples: u64| StageShare { stage: stage.into(), samples, share: samples as f64 / 400.0 };
    input.profile = Some(Profile { samples: 400, stages: vec![stage("TCP", 300), stage("events & <wires>", 100)] });
    input.packets = (9_000, 1_500);
    let page = page("profile.html", &[input], &Options::default());
    assert_balanced(&page);
    assert!(page.contains("<h2>Where the CPU time went</h2>") && page.contains("400 samples"), "{page}");
    assert!(page.contains("75.0\u{202f}%") && page.contains("events &amp; &lt;wires&gt;"), "{page}");
    assert!(page.contains("<dt>packets from end to end</dt><dd>1,500</dd>"), "{page}");
    assert!(page.contains("<dt>packet-hops</dt><dd>9,000</dd>"), "{page}");
}

#[test]
fn nothing_at_all_is_still_a_page() {
    let page = html(&[CellInput::default()], &Options::default());
    assert_balanced(&page);
    assert!(page.contains("<h1>No flow finished.</h1>"));
    assert_balanced(&html([], &Options::default()));
}

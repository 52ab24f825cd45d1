//! The lines and packets of a small run, each with its arithmetic.

use super::perfetto::proto::{self, InternedName, Trace, TrackEvent};
use super::*;
use prost::Message;
use sluicenet_records::tables::Row;
use sluicenet_records::{
    FlowRow, Options, PauseRow, PortRow, QueueRow, RecordError, RecordWriter, RunInfo, Status, Text,
};
use sluicenet_testkit::Dir;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

const US: u64 = 1_000_000;
const MS: u64 = 1_000 * US;

/// Three hosts on two switches, which two links join: each port with its peer.
const PORTS: [(&str, u16, &str); 10] = [
    ("host 0", 0, "switch 0"),
    ("host 1", 0, "switch 0"),
    ("host 2", 0, "switch 1"),
    ("switch 0", 0, "host 0"),
    ("switch 0", 1, "host 1"),
    ("switch 0", 2, "switch 1"),
    ("switch 0", 3, "switch 1"),
    ("switch 1", 0, "host 2"),
    ("switch 1", 1, "switch 0"),
    ("switch 1", 2, "switch 0"),
];

fn text(name: &str) -> Text {
    Text::from(name.to_string())
}

/// The ports, of which the second switch's second one sent so many pauses.
fn ports(xoff_sent: u64) -> Vec<PortRow> {
    let of = |&(node, port, peer): &(&str, u16, &str)| {
        let xoff_sent = if (node, port) == ("switch 1", 1) { xoff_sent } else { 0 };
        PortRow { node: text(node), port, peer: text(peer), xoff_sent, ..PortRow::default() }
    };
    PORTS.iter().map(of).collect()
}

/// A flow of 4,000 bytes with an ideal time of 3 us.
fn flow(flow_id: u64, (src_host, dst_host): (u32, u32), start_ps: u64, fct_ps: Option<u64>) -> FlowRow {
    let (bytes, ideal_ps) = (Some(4_000), Some(3 * US));
    FlowRow {
        flow_id,
        src_host,
        dst_host,
        start_ps,
        fct_ps,
        bytes,
        ideal_ps,
        kind: "flow".into(),
        ..FlowRow::default()
    }
}

fn flows() -> Vec<FlowRow> {
    vec![
        // Finishes last of its pair, and starts first of those that finish.
        FlowRow { kind: "incast".into(), ..flow(7, (0, 2), US + 500, Some(9 * US + 1)) },
        flow(8, (0, 2), 2 * US, Some(4 * US)),
        FlowRow { dst_vm: 3, src_vm: 1, ..flow(9, (1, 2), 2 * US, Some(4 * US)) },
        // Does not finish, but was the first of its pair.
        flow(6, (0, 2), US, None),
        // Without an end.
        FlowRow { bytes: None, ideal_ps: None, ..flow(5, (0, 2), 0, None) },
    ]
}

fn pause(pause_id: u64, (node, port): (&str, u16), start_ps: u64, duration_ps: Option<u64>) -> PauseRow {
    let peer = PORTS.iter().find(|p| (p.0, p.1) == (node, port)).unwrap().2;
    let (node, peer, cause_peer) = (text(node), text(peer), text("host 2"));
    PauseRow { pause_id, node, port, priority: 3, start_ps, duration_ps, peer, cause_peer, ..PauseRow::default() }
}

/// Written when they end: those that do not come last.
fn pauses() -> Vec<PauseRow> {
    let first = ("switch 1", 1);
    vec![
        pause(0, first, 5 * US + 999, Some(2 * US)),
        pause(3, first, 8 * US, Some(0)),
        PauseRow { parent_pause_id: Some(0), ..pause(1, ("switch 0", 1), 6 * US, Some(3 * US)) },
        // Begins when the first one ends, on the same port.
        PauseRow { parent_pause_id: Some(1), ..pause(2, first, 7 * US + 999, Some(100)) },
        PauseRow { parent_pause_id: Some(0), ..pause(4, ("switch 0", 0), 6 * US + 500, None) },
    ]
}

fn queue(time_ps: u64, node: &str, port: u16, bytes: u64) -> QueueRow {
    QueueRow { time_ps, node: text(node), port, bytes }
}

fn queues() -> Vec<QueueRow> {
    vec![
        queue(0, "host 0", 0, 9_000),
        queue(0, "switch 0", 2, 0),
        queue(0, "switch 1", 0, 999),
        queue(100 * MS, "switch 0", 2, 3_999),
        queue(100 * MS, "switch 1", 0, 999),
        queue(100 * MS + US, "switch 0", 2, 1_000),
    ]
}

struct Records {
    ports: Vec<PortRow>,
    flows: Vec<FlowRow>,
    pauses: Vec<PauseRow>,
    queues: Vec<QueueRow>,
    status: Status,
}

fn all() -> Records {
    Records { ports: ports(3), flows: flows(), pauses: pauses(), queues: queues(), status: Status::Complete }
}

fn save(dir: &Dir, records: Records) -> PathBuf {
    let path = dir.0.join("run");
    let _ = fs::remove_dir_all(&path);
    let info = RunInfo { scenario: "small".into(), ..RunInfo::default() };
    let mut writer = RecordWriter::create(&path, info, Options::default()).unwrap();
    fn put<R: Row>(writer: &mut RecordWriter, rows: &[R]) {
        writer.write(rows).unwrap();
    }
    put(&mut writer, &records.ports);
    put(&mut writer, &records.flows);
    put(&mut writer, &records.pauses);
    put(&mut writer, &records.queues);
    writer.finish(records.status).unwrap();
    path
}

fn hpcc_files(dir: &Dir, records: Records, files: &[hpcc::File]) -> Result<Vec<String>, ExportError> {
    let run = Run::open(&save(dir, records), false)?;
    let written = hpcc::write(&run, files, &dir.0, None, &mut |_| {})?;
    Ok(written
        .into_iter()
        .map(|(path, lines)| {
            let text = fs::read_to_string(path).unwrap();
            assert_eq!(text.lines().count() as u64, lines);
            text
        })
        .collect())
}

#[test]
fn hpccs_completion_times() {
    let dir = Dir::new("export-fct");
    let files = hpcc_files(&dir, all(), &[hpcc::File::Fct]).unwrap();
    // Host n is 0b00_0001 + n * 0x100, and VM v on it adds v. Of the pair 0 to 2 the unfinished flow took port 10000.
    // Ends: 2 + 4 = 6 us twice, the smaller number first; 1.0005 + 9.000001 us. Start 1,000,500 ps is 1,000 ns, rounded
    // down; 9,000,001 ps is 9,001 ns, rounded up.
    let want = "0b000001 0b000201 10002 100 4000 2000 4000 3000\n\
                0b000102 0b000204 10000 100 4000 2000 4000 3000\n\
                0b000001 0b000201 10001 200 4000 1000 9001 3000\n";
    assert_eq!(files, [want]);
}

#[test]
fn hpccs_pauses() {
    let dir = Dir::new("export-pfc");
    let files = hpcc_files(&dir, all(), &[hpcc::File::Pfc]).unwrap();
    // Switch s is node 3 + s. Port 1 of switch 1 is the first of two to switch 0, whose first one to it is port 2, and
    // ns-3 counts it as interface 3. Host 1 has its only port as interface 1.
    let want = "5000 3 1 3 1\n\
                6000 1 0 1 1\n\
                6000 0 0 1 1\n\
                7000 3 1 3 0\n\
                7000 3 1 3 1\n\
                7001 3 1 3 0\n\
                8000 3 1 3 1\n\
                8000 3 1 3 0\n\
                9000 1 0 1 0\n";
    assert_eq!(files, [want]);
}

#[test]
fn hpccs_lengths_of_queues() {
    let dir = Dir::new("export-qlen");
    let files = hpcc_files(&dir, all(), &[hpcc::File::Qlen]).unwrap();
    // Counts since the first sample, in bins of 1,000 B, at every 100 ms and at the last sample. Hosts are left out.
    let want = "time: 0\n3 3 1\n4 1 1\n\
                time: 100000000\n3 3 1 0 0 1\n4 1 2\n\
                time: 100001000\n3 3 1 1 0 1\n4 1 2\n";
    assert_eq!(files, [want]);
}

#[test]
fn a_host_beyond_hpccs_addresses_is_named() {
    let dir = Dir::new("export-address");
    let flows = vec![flow(1, (65_536, 0), 0, Some(1))];
    let e = hpcc_files(&dir, Records { flows, ..all() }, &[hpcc::File::Fct]).unwrap_err().to_string();
    assert!(e.ends_with("run: host 65536: HPCC's addresses have room for 65536 hosts, from 0"), "{e}");
    let flows = vec![FlowRow { src_vm: 255, ..flow(1, (2, 0), 0, Some(1)) }];
    let e = hpcc_files(&dir, Records { flows, ..all() }, &[hpcc::File::Fct]).unwrap_err().to_string();
    assert!(e.ends_with("run: vm 255 of host 2: its address has room for VMs up to 254"), "{e}");
    // 65,535 is the last one: 0b00_0001 + 0xffff * 0x100.
    let flows = vec![flow(1, (65_535, 0), 0, Some(1))];
    let files = hpcc_files(&dir, Records { flows, ..all() }, &[hpcc::File::Fct]).unwrap();
    assert_eq!(files, ["0bffff01 0b000001 10000 100 4000 0 1 3000\n"]);
}

#[test]
fn the_source_port_of_a_pair_wraps_as_hpccs() {
    let dir = Dir::new("export-wrap");
    let flows = (0..55_537).map(|i| flow(i, (0, 2), i, Some(1))).collect();
    let files = hpcc_files(&dir, Records { flows, ..all() }, &[hpcc::File::Fct]).unwrap();
    // 10,000 + 55,536 is 2^16.
    let last: Vec<&str> = files[0].lines().skip(55_535).map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(last, ["65535", "0"]);
}

#[test]
fn htsims_log() {
    let dir = Dir::new("export-htsim");
    let run = Run::open(&save(&dir, all()), false).unwrap();
    let path = dir.0.join(htsim::FILE);
    assert_eq!(htsim::write(&run, &path, None, &mut |_| {}).unwrap(), (path.clone(), 8));
    // Numbered by start, then by the number in the records: 5, 6, 7, 8, 9. The third ends at 1.0005 + 9.000001 us.
    let want = "startflow ndp_0_2 CWND - rts - at 0.000000\n\
                startflow ndp_0_2 CWND - rts - at 1.000000\n\
                startflow ndp_0_2 CWND - rts - at 1.000500\n\
                startflow ndp_0_2 CWND - rts - at 2.000000\n\
                startflow ndp_1_2 CWND - rts - at 2.000000\n\
                Flow ndp_0_2 flow_id 4 finished at 6.000000 total bytes 4000\n\
                Flow ndp_1_2 flow_id 5 finished at 6.000000 total bytes 4000\n\
                Flow ndp_0_2 flow_id 3 finished at 10.000501 total bytes 4000\n";
    assert_eq!(fs::read_to_string(path).unwrap(), want);
}

#[test]
fn flows_have_the_numbers_of_their_file() {
    let dir = Dir::new("export-given");
    // In the order of their starts, as in the records; the size tells flows of two hosts apart.
    let sizes = [(0, 2, 5_000), (0, 2, 4_000), (1, 2, 4_000), (0, 2, 4_000)];
    let flows = sizes
        .iter()
        .zip(0..)
        .map(|(&(src, dst, bytes), i)| FlowRow { bytes: Some(bytes), ..flow(i, (src, dst), i * US, Some(US)) });
    let run = Run::open(&save(&dir, Records { flows: flows.collect(), ..all() }), false).unwrap();
    // `src dst group port size start`: not in the order of starts.
    let file = dir.file("flow.txt", "4\n0 2 3 200 4000 0.3\n0 2 3 100 4000 0.1\n0 2 3 77 5000 0.2\n1 2 3 55 4000 0\n");
    let ports = || Given::ports(file.as_ref());
    let written = hpcc::write(&run, &[hpcc::File::Fct], &dir.0, Some(ports().unwrap()), &mut |_| {}).unwrap();
    let text = fs::read_to_string(&written[0].0).unwrap();
    let ports: Vec<&str> = text.lines().map(|line| line.split(' ').nth(3).unwrap()).collect();
    assert_eq!(ports, ["77", "100", "55", "200"]);
    let matrix = "Nodes 3\nConnections 4\n0->2 id 9 start 0 size 4000\n0->2 id 4 start 5 size 5000\n1->2 start 0 size 4000\n\
                  0->2 id 6 start 7 size 4000\n";
    let file = dir.file("flows.cm", matrix);
    let log = dir.0.join("log");
    htsim::write(&run, &log, Some(Given::ids(file.as_ref()).unwrap()), &mut |_| {}).unwrap();
    let text = fs::read_to_string(&log).unwrap();
    let finished = text.lines().filter(|line| line.contains("finished"));
    // The one without an id has the first that is free.
    assert_eq!(finished.map(|line| line.split(' ').nth(3).unwrap()).collect::<Vec<_>>(), ["4", "9", "10", "6"]);
    // A file of other flows.
    let file = dir.file("other.cm", "Nodes 3\nConnections 1\n0->2 id 9 start 0 size 4000\n");
    fs::remove_file(&log).unwrap();
    let e = htsim::write(&run, &log, Some(Given::ids(file.as_ref()).unwrap()), &mut |_| {}).unwrap_err().to_string();
    assert!(e.contains(&file) && e.contains("the run has a flow of 5000 B from host 0 to 2 that is not here"), "{e}");
    assert!(!log.exists());
    let e = Given::ids(dir.0.join("none").as_ref()).unwrap_err().to_string();
    assert!(e.contains("none") && e.contains("there is no such file"), "{e}");
    let e = Given::ports(file.as_ref()).unwrap_err().to_string();
    assert!(e.contains("other.cm:1"), "{e}");
}

fn trace(dir: &Dir, records: Records) -> (perfetto::Counts, Trace) {
    let run = Run::open(&save(dir, records), false).unwrap();
    let path = dir.0.join("trace");
    let counts = perfetto::write(&run, &path, &mut |_| {}).unwrap();
    (counts, Trace::decode(&fs::read(path).unwrap()[..]).unwrap())
}

/// The names of tracks with those of their processes, by number.
fn names(trace: &Trace) -> BTreeMap<u64, String> {
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    for track in trace.packet.iter().filter_map(|packet| packet.track_descriptor.as_ref()) {
        let name = match &track.process {
            Some(process) => process.process_name.clone(),
            None => format!("{}, {}", names[&track.parent_uuid], track.name),
        };
        assert_eq!(names.insert(track.uuid, name), None, "a number has one track");
    }
    names
}

/// What happens on tracks: time in nanoseconds, track, event.
fn events(trace: &Trace, sequence: u32) -> Vec<(u64, String, TrackEvent)> {
    let names = names(trace);
    let of_sequence = trace.packet.iter().filter(|packet| packet.trusted_packet_sequence_id == sequence);
    let event = |packet: &proto::TracePacket| {
        let event = packet.track_event.clone()?;
        Some((packet.timestamp?, names[&event.track_uuid].clone(), event))
    };
    of_sequence.filter_map(event).collect()
}

#[test]
fn a_trace_has_pauses_with_their_causes() {
    let dir = Dir::new("export-trace");
    let (counts, trace) = trace(&dir, all());
    // Boxes: three hosts, two switches. Tracks: three ports that paused, three queues. Three pauses have a cause. Of six
    // samples one is equal to the one before.
    let want = perfetto::Counts { processes: 5, tracks: 6, slices: 5, arrows: 3, values: 5 };
    assert_eq!(counts, want);
    let shown = |(time, track, event): &(u64, String, TrackEvent)| {
        let kind = if event.r#type == proto::SLICE_BEGIN { "begins" } else { "ends" };
        (*time, format!("{track} {kind}"), event.flow_ids.clone(), event.terminating_flow_ids.clone())
    };
    let pauses: Vec<_> = events(&trace, 1).iter().map(shown).collect();
    let up = |what: &str| format!("switch 1, port 1 priority 3 {what}");
    // The arrow to pause n has the number n + 1. At 7,000 ns one pause ends and the next one begins.
    let want = [
        (5_000, up("begins"), vec![2, 5], vec![]),
        (6_000, "switch 0, port 1 priority 3 begins".into(), vec![3], vec![2]),
        (6_000, "switch 0, port 0 priority 3 begins".into(), vec![], vec![5]),
        (7_000, up("ends"), vec![], vec![]),
        (7_000, up("begins"), vec![], vec![3]),
        (7_001, up("ends"), vec![], vec![]),
        (8_000, up("begins"), vec![], vec![]),
        (8_000, up("ends"), vec![], vec![]),
        (9_000, "switch 0, port 1 priority 3 ends".into(), vec![], vec![]),
    ];
    assert_eq!(pauses, want);
    let value = |(time, track, event): (u64, String, TrackEvent)| (time, track, event.counter_value.unwrap());
    let values: Vec<_> = events(&trace, 2).into_iter().map(value).collect();
    let want = [
        (0, "host 0, port 0 queue".to_string(), 9_000),
        (0, "switch 0, port 2 queue".into(), 0),
        (0, "switch 1, port 0 queue".into(), 999),
        (100_000_000, "switch 0, port 2 queue".into(), 3_999),
        (100_001_000, "switch 0, port 2 queue".into(), 1_000),
    ];
    assert_eq!(values, want);
}

#[test]
fn a_traces_names_are_interned_once_and_before_they_are_used() {
    let dir = Dir::new("export-names");
    let (_, trace) = trace(&dir, all());
    let mut known: BTreeMap<(&str, u64), String> = BTreeMap::new();
    let mut texts = BTreeSet::new();
    let mut first = BTreeSet::new();
    for packet in &trace.packet {
        let is_first = first.insert(packet.trusted_packet_sequence_id);
        assert_eq!(packet.first_packet_on_sequence, is_first);
        assert_eq!(packet.sequence_flags & proto::INCREMENTAL_STATE_CLEARED != 0, is_first);
        let new = packet.interned_data.clone().unwrap_or_default();
        let kinds: [(&str, &[InternedName]); 4] = [
            ("category", &new.event_categories),
            ("event", &new.event_names),
            ("argument", &new.debug_annotation_names),
            ("value", &new.debug_annotation_string_values),
        ];
        for (kind, names) in kinds {
            for name in names {
                assert!(texts.insert((kind, name.name.clone())), "{name:?} twice");
                assert_eq!(known.insert((kind, name.iid), name.name.clone()), None);
            }
        }
        let Some(event) = packet.track_event.as_ref().filter(|event| event.r#type == proto::SLICE_BEGIN) else {
            continue;
        };
        assert_ne!(packet.sequence_flags & proto::NEEDS_INCREMENTAL_STATE, 0);
        assert_eq!(known[&("category", event.category_iids[0])], "pfc");
        assert!(known[&("event", event.name_iid)].starts_with("pauses "));
        for argument in &event.debug_annotations {
            let name = known[&("argument", argument.name_iid)].as_str();
            match argument.string_value_iid {
                Some(value) => assert_eq!((name, known[&("value", value)].as_str()), ("cause_peer", "host 2")),
                None => assert_ne!(argument.uint_value, None, "{name}"),
            }
        }
    }
    // A pause of 2 us that began at 5,000,999 ps: to the picosecond.
    let begin = trace.packet.iter().filter_map(|packet| packet.track_event.as_ref()).next().unwrap();
    let value = |name: &str| {
        let is_it = |a: &&proto::DebugAnnotation| known[&("argument", a.name_iid)] == name;
        begin.debug_annotations.iter().find(is_it).and_then(|a| a.uint_value)
    };
    assert_eq!(
        [value("start_ps"), value("duration_ps"), value("parent_pause_id")],
        [Some(5_000_999), Some(2 * US), None]
    );
}

#[test]
fn missing_records_are_named_with_their_setting() {
    let dir = Dir::new("export-lacks");
    let none = || Records { flows: vec![], pauses: vec![], queues: vec![], ..all() };
    let told = |records: Records, file| hpcc_files(&dir, records, &[file]).unwrap_err().to_string();
    for (e, setting) in [
        (told(none(), hpcc::File::Fct), "run the scenario again with `record.flows = true`"),
        (told(none(), hpcc::File::Pfc), "run the scenario again with `record.pauses = true`"),
        (told(none(), hpcc::File::Qlen), "run the scenario again with `record.queues = \"10 us\"`"),
        (
            told(Records { ports: vec![], ..all() }, hpcc::File::Pfc),
            "run the scenario again with `record.ports = true`",
        ),
        (
            told(Records { ports: vec![], ..all() }, hpcc::File::Qlen),
            "run the scenario again with `record.ports = true`",
        ),
    ] {
        assert!(e.starts_with(&dir.path("run")) && e.contains(setting), "{e}");
    }
    // Without any pause the file is empty, and right.
    assert_eq!(hpcc_files(&dir, Records { ports: ports(0), ..none() }, &[hpcc::File::Pfc]).unwrap(), [""]);
    // Of several files all that is missing is named, and the file that needs nothing more.
    let e = hpcc_files(&dir, Records { flows: flows(), ..none() }, &hpcc::File::ALL).unwrap_err().to_string();
    let want = "the records have no pauses and no lengths of queues: run the scenario again with `record.pauses = true` and \
                `record.queues = \"10 us\"`, or export what is there: --only fct";
    assert!(e.ends_with(want), "{e}");
    // No file of several is left where one lacks something.
    for name in ["hpcc-fct.txt", "hpcc-pfc.txt", "hpcc-qlen.txt"] {
        let _ = fs::remove_file(dir.0.join(name));
    }
    hpcc_files(&dir, Records { queues: vec![], ..all() }, &hpcc::File::ALL).unwrap_err();
    let left: Vec<_> = fs::read_dir(&dir.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["run"]);
    let open = |records| Run::open(&save(&dir, records), false).unwrap();
    let e = perfetto::check(&open(none())).unwrap_err().to_string();
    assert!(e.contains("`record.pauses = true`") && e.contains("`record.queues = \"10 us\"`"), "{e}");
    let e = perfetto::check(&open(Records { ports: ports(0), ..none() })).unwrap_err().to_string();
    assert!(e.contains("`record.queues = \"10 us\"`") && !e.contains("record.pauses"), "{e}");
    let note = perfetto::check(&open(Records { pauses: vec![], ..all() })).unwrap();
    assert!(note.unwrap().1.contains("record.pauses"), "{note:?}");
    assert_eq!(perfetto::check(&open(all())).unwrap(), None);
}

#[test]
fn a_folder_that_is_no_complete_run_is_refused() {
    let dir = Dir::new("export-runs");
    let e = |path: &std::path::Path| Run::open(path, false).unwrap_err().to_string();
    let missing = dir.0.join("missing");
    assert_eq!(e(&missing), format!("{}: holds no result: it has no manifest.json of sluicenet", missing.display()));
    let at = Status::InterruptedAt { at_ps: 7 };
    let run = save(&dir, Records { status: at, ..all() });
    assert_eq!(
        e(&run),
        format!(
            "{}/manifest.json: the run is incomplete (interrupted at 7 ps): run it again, or export its records with \
             --partial",
            run.display()
        )
    );
    assert!(!Run::open(&run, true).unwrap().is_complete());
    // A killed run has no ports yet: no setting would help.
    let killed = save(&dir, Records { ports: vec![], status: Status::Running, ..all() });
    let killed = Run::open(&killed, true).unwrap();
    let told = hpcc::write(&killed, &hpcc::File::ALL, &dir.0, None, &mut |_| {}).unwrap_err().to_string();
    assert!(told.contains("killed before it wrote its ports") && told.ends_with("what is there: --only fct"), "{told}");
    // A sweep holds several, and the first is an example.
    assert!(e(&dir.0).ends_with(&format!("name it, as {}", run.display())), "{}", e(&dir.0));
    let manifest = run.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"format\": 2", "\"format\": 1")).unwrap();
    assert!(e(&run).contains("result format 1, of an earlier version of sluicenet"), "{}", e(&run));
    // A part of a table that is not as it was written.
    let run = save(&dir, all());
    let part = run.join("pauses-00000.parquet");
    let mut bytes = fs::read(&part).unwrap();
    bytes[20] ^= 1;
    fs::write(&part, bytes).unwrap();
    let damaged = Run::open(&run, false).unwrap();
    let e = perfetto::write(&damaged, &dir.0.join("trace"), &mut |_| {}).unwrap_err();
    assert!(matches!(&e, ExportError::Records(RecordError::Corrupt { path, .. }) if *path == part), "{e}");
    assert!(!dir.0.join("trace").exists());
}

#[test]
fn a_pause_that_comes_before_its_cause_is_damage() {
    let dir = Dir::new("export-cause");
    let write = |parent, status, partial| {
        let pauses = vec![PauseRow { parent_pause_id: parent, ..pause(1, ("switch 1", 1), 5, Some(1)) }];
        let run = Run::open(&save(&dir, Records { pauses, status, ..all() }), partial).unwrap();
        perfetto::write(&run, &dir.0.join("trace"), &mut |_| {}).map_err(|e| e.to_string())
    };
    let e = write(Some(0), Status::Complete, false).unwrap_err();
    assert!(e.ends_with("pause 1 is caused by pause 0, which did not begin before"), "{e}");
    // A killed run has no row of a pause that was still held: then there is no arrow.
    assert_eq!(write(Some(0), Status::Running, true).unwrap().arrows, 0);
}

//! Properties that users rely on: same rows, same bytes; a kill or a full disk keeps flushed rows; errors name damaged
//! files.

use std::fs;
use std::path::Path;

use super::*;
use serde_json::json;
use sluicenet_proto::rng::Rng;
use sluicenet_testkit::{Dir, mutated};

fn flow(i: u64) -> FlowRow {
    FlowRow {
        flow_id: i,
        kind: if i % 3 == 0 { "query".into() } else { "background".into() },
        transport: "tcp".into(),
        src_host: (i * 7919 % 256) as u32,
        dst_host: u32::MAX - i as u32,
        priority: (i % 8) as u8,
        bytes: (i % 7 != 0).then_some(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
        start_ps: i * 1_000_003,
        fct_ps: (i % 5 != 0).then_some(u64::MAX - i),
        slowdown: (i % 5 != 0).then_some(1.0 + i as f64 / 3.0),
        query_id: (i % 2 == 0).then_some(i / 2),
        ..FlowRow::default()
    }
}

fn pause(i: u64) -> PauseRow {
    let switch = |i| Text::from(format!("switch {i}"));
    let (node, peer) = (switch(i % 4), switch(i % 3));
    PauseRow { pause_id: i, node, peer, parent_pause_id: i.checked_sub(1), ..PauseRow::default() }
}

fn run() -> RunInfo {
    RunInfo { scenario: "incast".into(), scenario_sha256: sha256_hex(b"x"), seed: 7, ..RunInfo::default() }
}

fn write_sample(dir: &Path, options: Options) -> Manifest {
    let mut records = RecordWriter::create(dir, run(), options).unwrap();
    for i in 0..250 {
        records.write(&[flow(i)]).unwrap();
        records.write(&[pause(i)]).unwrap();
    }
    records.finish(Status::Complete).unwrap().0
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entry = |e: std::io::Result<fs::DirEntry>| {
        let path = e.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())
    };
    let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(entry).collect();
    all.sort();
    all
}

#[test]
fn rows_come_back_as_they_were() {
    let dir = Dir::new("records-roundtrip");
    let manifest = write_sample(&dir.0, Options { part_rows: 100, csv: false });
    assert_eq!(read::<FlowRow>(&dir.0).unwrap(), (0..250).map(flow).collect::<Vec<_>>());
    assert_eq!(read::<PauseRow>(&dir.0).unwrap(), (0..250).map(pause).collect::<Vec<_>>());
    assert_eq!(read::<QueryRow>(&dir.0).unwrap(), []);
    assert_eq!(Manifest::read(&dir.0).unwrap(), manifest);
    // One of an earlier version names no defaults.
    let file = dir.0.join(crate::files::MANIFEST);
    let text = std::fs::read_to_string(&file).unwrap();
    let mut earlier: serde_json::Value = serde_json::from_str(&text).unwrap();
    earlier.as_object_mut().unwrap().remove("defaults").unwrap();
    std::fs::write(&file, earlier.to_string()).unwrap();
    assert_eq!(Manifest::read(&dir.0).unwrap().run.defaults, 1);
    let rows: Vec<_> = manifest.parts.iter().filter(|p| p.table == "flows").map(|p| p.rows).collect();
    assert_eq!(rows, [100, 100, 50]);
}

#[test]
fn same_rows_give_the_same_bytes() {
    let (a, b) = (Dir::new("records-bytes-a"), Dir::new("records-bytes-b"));
    let options = Options { part_rows: 64, csv: true };
    write_sample(&a.0, options);
    write_sample(&b.0, options);
    let (a, b) = (files(&a.0), files(&b.0));
    assert_eq!(a.len(), 1 + 2 * (4 + 4 + 7), "a manifest; four parts of two tables and one of seven, each twice");
    for ((name, bytes), (other, other_bytes)) in a.iter().zip(&b) {
        assert!(name == other && bytes == other_bytes, "{name} differs from {other}");
    }
}

#[test]
fn the_last_parts_are_read_from_memory() {
    let dir = Dir::new("records-last");
    let options = Options { part_rows: 100, ..Options::default() };
    let mut records = RecordWriter::create(&dir.0, run(), options).unwrap();
    let flows: Vec<FlowRow> = (0..250).map(flow).collect();
    records.write(&flows).unwrap();
    let (_, last) = records.finish(Status::Complete).unwrap();
    fs::write(dir.0.join("flows-00002.parquet"), "damaged").unwrap();
    assert_eq!(read::<FlowRow>(Source::written(&dir.0, &last)).unwrap(), flows);
    assert!(read::<FlowRow>(&dir.0).unwrap_err().to_string().contains("flows-00002.parquet: damaged"));
}

#[test]
fn csv_has_the_same_columns_and_quotes_what_it_must() {
    let dir = Dir::new("records-csv");
    let mut records = RecordWriter::create(&dir.0, run(), Options { csv: true, ..Options::default() }).unwrap();
    let node = Text::from("leaf \"7\", rack 2".to_owned());
    records.write(&[DropRow { node, port: 3, priority: 1, reason: "bad_crc".into(), frames: 2, bytes: 128 }]).unwrap();
    records.write(&[FlowRow { slowdown: Some(1.5), ..FlowRow::default() }]).unwrap();
    records.finish(Status::Complete).unwrap();
    let drops = fs::read_to_string(dir.0.join("drops-00000.csv")).unwrap();
    assert_eq!(drops, "node,port,priority,reason,frames,bytes\n\"leaf \"\"7\"\", rack 2\",3,1,bad_crc,2,128\n");
    let flows = fs::read_to_string(dir.0.join("flows-00000.csv")).unwrap();
    assert_eq!(flows.lines().nth(1).unwrap(), "0,,,0,0,0,0,0,,0,,0,,1.5,0,0,0,0,0,");
}

#[test]
fn a_killed_run_reads_up_to_its_last_flush() {
    let dir = Dir::new("records-killed");
    let mut records = RecordWriter::create(&dir.0, run(), Options { part_rows: 100, csv: false }).unwrap();
    records.write(&(0..130).map(flow).collect::<Vec<_>>()).unwrap();
    records.flush().unwrap();
    records.write(&(130..180).map(flow).collect::<Vec<_>>()).unwrap();
    // The kill: no destructor, and half a part under its temporary name.
    std::mem::forget(records);
    fs::write(dir.0.join("flows-00002.parquet.tmp"), b"PAR1 half").unwrap();
    assert_eq!(Manifest::read(&dir.0).unwrap().status, Status::Running);
    assert_eq!(read::<FlowRow>(&dir.0).unwrap().len(), 130);
    // Killed between a part and the manifest that lists it: the part counts.
    fs::remove_file(dir.0.join("manifest.json")).unwrap();
    assert_eq!(read::<FlowRow>(&dir.0).unwrap().len(), 130);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_named_and_leaves_earlier_parts() {
    let dir = Dir::new("records-full");
    let mut records = RecordWriter::create(&dir.0, run(), Options { part_rows: 50, csv: false }).unwrap();
    // /dev/full accepts an open and answers every write with "no space left on device".
    std::os::unix::fs::symlink("/dev/full", dir.0.join("flows-00001.parquet.tmp")).unwrap();
    let error = records.write(&(0..120).map(flow).collect::<Vec<_>>()).unwrap_err().to_string();
    assert!(error.contains("flows-00001.parquet: cannot write: No space left on device"), "{error}");
    assert_eq!(read::<FlowRow>(&dir.0).unwrap().len(), 50);
    assert!(!dir.0.join("flows-00001.parquet").exists());
    // The last manifest is written into reserved disk space.
    let why = RecordError::io(&dir.0, "write")(std::io::Error::other("the disk is full"));
    records.write(&[pause(0)]).unwrap();
    records.give_up(&why);
    let status = Manifest::read(&dir.0).unwrap().status.to_string();
    assert!(status.starts_with("failed: ") && status.ends_with("the disk is full"), "{status}");
    assert_eq!(read::<PauseRow>(&dir.0).unwrap().len(), 1);
}

#[test]
fn damage_is_named_and_never_a_panic() {
    let dir = Dir::new("records-damage");
    write_sample(&dir.0, Options { part_rows: 100, csv: false });
    let path = dir.0.join("flows-00001.parquet");
    let whole = fs::read(&path).unwrap();
    let error = |dir: &Path| read::<FlowRow>(dir).unwrap_err().to_string();

    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(error(&dir.0).contains("flows-00001.parquet: damaged"), "{}", error(&dir.0));
    fs::remove_file(&path).unwrap();
    assert!(error(&dir.0).contains("flows-00001.parquet: this part is missing"), "{}", error(&dir.0));
    fs::rename(dir.0.join("flows-00002.parquet"), &path).unwrap();
    assert!(error(&dir.0).contains("manifest.json: lists 3 parts of table flows, found 2"), "{}", error(&dir.0));

    // An unreadable manifest is an error, not a missing manifest.
    fs::write(dir.0.join("manifest.json"), [0xff, 0xfe]).unwrap();
    assert!(error(&dir.0).contains("manifest.json: cannot read"), "{}", error(&dir.0));

    // Without the manifest's checksum, damaged bytes must be refused or read as some value, without a panic.
    fs::remove_file(dir.0.join("manifest.json")).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(error(&dir.0).contains("flows-00001.parquet: not a readable part"), "{}", error(&dir.0));
    fs::copy(dir.0.join("pauses-00000.parquet"), &path).unwrap();
    assert!(error(&dir.0).contains("the columns are not those of table flows"), "{}", error(&dir.0));
}

#[test]
fn mutated_parts_never_panic() {
    let dir = Dir::new("records-mutated");
    write_sample(&dir.0, Options { part_rows: 100, csv: false });
    let whole = fs::read(dir.0.join("flows-00001.parquet")).unwrap();
    let before = crate::peak_rss_bytes();
    let mut rng = Rng::from_words(&[44]);
    let mut refused = 0;
    for _ in 0..3000 {
        refused += part::decode(tables::TABLES[0], mutated(&whole, &[], &mut rng)).is_err() as u32;
    }
    assert!(refused > 2000, "{refused}");
    assert!(crate::peak_rss_bytes() - before < 1 << 28, "a length in a file was believed");
}

#[test]
fn a_result_is_not_overwritten_by_accident() {
    let dir = Dir::new("records-claim");
    let (run, other) = (run(), RunInfo { seed: 8, ..run() });
    assert_eq!(claim(&dir.0.join("new"), &run, Existing::Refuse).unwrap(), Found::Ready);
    fs::write(dir.0.join("notes.txt"), "mine").unwrap();
    fs::write(dir.0.join("flows-1.parquet"), "also mine").unwrap();
    assert_eq!(claim(&dir.0, &run, Existing::Refuse).unwrap(), Found::Ready, "other files are no result");

    let manifest = write_sample(&dir.0, Options::default());
    let refused = claim(&dir.0, &run, Existing::Refuse).unwrap_err().to_string();
    assert!(refused.contains("the result of incast (seed 7, complete)") && refused.contains("--force"), "{refused}");
    assert!(RecordWriter::create(&dir.0, run.clone(), Options::default()).is_err(), "parts of two runs never mix");
    assert_eq!(claim(&dir.0, &run, Existing::Resume).unwrap(), Found::Complete(Box::new(manifest)));
    assert!(claim(&dir.0, &other, Existing::Resume).is_err(), "another seed is another result");

    assert_eq!(claim(&dir.0, &other, Existing::Force).unwrap(), Found::Ready);
    assert!(dir.0.join("notes.txt").exists() && dir.0.join("flows-1.parquet").exists());
    assert!(!dir.0.join("manifest.json").exists() && !dir.0.join("flows-00000.parquet").exists());

    // An unfinished result of the same run is replaced.
    drop(RecordWriter::create(&dir.0, run.clone(), Options::default()).unwrap());
    assert_eq!(claim(&dir.0, &run, Existing::Resume).unwrap(), Found::Ready);
}

#[test]
fn the_first_difference_of_two_runs_is_named() {
    let with = |settings: serde_json::Value, input: &[u8]| RunInfo {
        scenario_sha256: sha256_hex(&[settings.to_string().as_bytes(), input].concat()),
        inputs: vec![Input::of("sizes.txt", input)],
        settings,
        ..run()
    };
    let a = with(json!({ "switch": { "buffer": "1 B" }, "workload": [{ "src": 0 }] }), b"x");
    let delayed = json!({ "switch": { "buffer": "1 B", "delay": "1 ps" }, "workload": [{ "src": 0 }] });
    for (b, difference) in [
        (with(delayed, b"x"), "switch.delay is not set there and 1 ps here"),
        (
            with(json!({ "switch": { "buffer": "1 B" }, "workload": [{ "src": 1 }] }), b"x"),
            "workload.0.src is 0 there and 1 here",
        ),
        (
            with(json!({ "switch": { "buffer": "1 B" }, "workload": [] }), b"x"),
            "workload is a list of 1 there and a list of 0 here",
        ),
        (with(a.settings.clone(), b"y"), "sizes.txt has other content"),
    ] {
        assert_eq!(a.difference(&b), Some(format!("another scenario: {difference}")));
    }
    assert_eq!(a.difference(&a.clone()), None);
    // A manifest without settings is of another scenario, and nothing is known of it.
    let old = RunInfo { settings: serde_json::Value::Null, scenario_sha256: String::new(), ..a.clone() };
    assert_eq!(old.difference(&a), Some("another scenario".into()));
}

#[test]
fn diff_finds_the_first_difference_whatever_the_parts() {
    let (a, b, c) = (Dir::new("records-diff-a"), Dir::new("records-diff-b"), Dir::new("records-diff-c"));
    write_sample(&a.0, Options { part_rows: 64, csv: false });
    write_sample(&b.0, Options { part_rows: 100, csv: false });
    let same = diff(&a.0, &b.0).unwrap();
    assert!(same.is_identical());
    assert_eq!(same.to_string(), "identical: 500 rows in 9 tables\n");

    let mut records = RecordWriter::create(&c.0, run(), Options::default()).unwrap();
    for i in 0..249 {
        let timeouts = if i == 200 { 3 } else { 0 };
        records.write(&[FlowRow { timeouts, ..flow(i) }]).unwrap();
    }
    records.write(&(0..250).map(pause).collect::<Vec<_>>()).unwrap();
    records.finish(Status::Complete).unwrap();
    let differs = diff(&a.0, &c.0).unwrap();
    let flows = &differs.tables[0];
    assert_eq!(flows.rows, (250, 249));
    let first = FirstDifference { row: 200, column: "timeouts", a: "0".into(), b: "3".into() };
    assert_eq!(flows.first, Some(first));
    assert!(flows.columns.iter().any(|c| c.column == "timeouts" && c.mean_b == 3.0 / 249.0));
    let name = |c: &str| c.ends_with("_id") || c.ends_with("_host") || c == "priority";
    assert!(!flows.columns.iter().any(|c| name(c.column)), "{:?}", flows.columns);
    assert!(differs.tables[1..].iter().all(|t| t.first.is_none()));
}

#[test]
fn a_directory_is_one_writers_at_a_time() {
    let dir = Dir::new("records-lock");
    let first = lock(&dir.0).unwrap();
    let refused = lock(&dir.0).unwrap_err().to_string();
    assert!(refused.contains("another run or sweep is writing"), "{refused}");
    drop(first);
    lock(&dir.0).unwrap();
}

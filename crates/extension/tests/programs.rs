//! Programs in C and in Rust, loaded and called.

use sluicenet_extension::{Called, Library, LoadError, QueueState};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::netbump::{Port, Verdict, VirtualQueue};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_testkit::{Dir, netbump_program, repository};
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};

const PORT: Port = Port { rate: Rate::gbps(1), buffer_bytes: None };

/// A UDP frame of 1,514 bytes that supports ECN.
fn frame() -> Vec<u8> {
    let mut bytes = vec![0; 1_514];
    let (destination, source) = (MacAddress::local(2), MacAddress::local(1));
    ethernet::Repr { destination, source, ethertype: EtherType::IPV4 }.emit(&mut bytes);
    let header = ipv4::Repr {
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        protocol: Protocol::UDP,
        dscp: 0,
        ecn: Ecn::Ect0,
        identification: 7,
        dont_fragment: true,
        ttl: 64,
        payload_len: 1_480,
    };
    header.emit(&mut bytes[14..]);
    bytes
}

/// A program with one virtual queue.
struct Bump {
    library: Library,
    state: QueueState,
    queue: VirtualQueue,
    sent: Vec<(u16, Vec<u8>)>,
}

impl Bump {
    fn new(bytes: &[u8], arguments: &[&str]) -> Bump {
        let library = Library::load(bytes, arguments, 1).unwrap();
        Bump { state: library.init(0, PORT), library, queue: VirtualQueue::new(PORT.rate, None), sent: Vec::new() }
    }

    /// Passes a frame through; returns the decision and the frame.
    fn pass(&mut self, now: Instant, mut bytes: Vec<u8>) -> (Verdict, Vec<u8>) {
        let len = bytes.len() as u32;
        bytes.resize(2_048, 0);
        let mut called = Called { buffer: &mut bytes, len, wire_bytes: len + 24, port: 0, mapped: Some(0), now };
        let Bump { library, state, queue, sent } = self;
        let mut send = |port: u16, frame: &[u8]| {
            sent.push((port, frame.to_vec()));
            true
        };
        let outcome = library.process(&mut called, (state, queue), true, &mut send);
        bytes.truncate(outcome.len as usize);
        (outcome.verdict, bytes)
    }

    /// Frames that come at once: how many are marked and how many dropped.
    fn burst(&mut self, frames: usize) -> (usize, usize) {
        let outcomes: Vec<_> = (0..frames).map(|_| self.pass(Instant::ZERO, frame())).collect();
        let is_marked = |bytes: &Vec<u8>| ipv4::Repr::parse(&bytes[14..]).unwrap().0.ecn == Ecn::Ce;
        let forwarded = outcomes.iter().filter(|o| o.0 == Verdict::Forward);
        let dropped = outcomes.iter().filter(|o| matches!(o.0, Verdict::Drop(_))).count();
        (forwarded.filter(|o| is_marked(&o.1)).count(), dropped)
    }
}

fn compiled(dir: &Dir, name: &str, body: &str) -> Vec<u8> {
    let source = format!("#include <netbump.h>\nNETBUMP_PROGRAM\n{body}\n");
    std::fs::read(netbump_program(dir, name, &source)).unwrap()
}

fn example(dir: &Dir, name: &str) -> Vec<u8> {
    let source = std::fs::read_to_string(repository(&format!("crates/netbump/examples/{name}.c"))).unwrap();
    std::fs::read(netbump_program(dir, name, &source)).unwrap()
}

/// The example in Rust. Cargo has built it beside this test if it tests the whole workspace.
fn in_rust() -> Vec<u8> {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().parent().unwrap().join("examples/libnetbump_dctcp.so");
    if !example.exists() {
        let build = ["build", "--quiet", "--locked", "-p", "sluicenet-extension", "--example", "netbump_dctcp"];
        let built = std::process::Command::new(env!("CARGO")).args(build).current_dir(repository("")).status();
        assert!(built.unwrap().success());
    }
    std::fs::read(example).unwrap()
}

#[test]
fn dctcp_in_c_and_in_rust_marks_as_ours_does() {
    let dir = Dir::new("extension-dctcp");
    for program in [example(&dir, "dctcp"), in_rust()] {
        // 20 frames of 1,538 B on the wire exceed 30,360 B; checksums of marked headers are right, or they could not be read.
        assert_eq!(Bump::new(&program, &[]).burst(40), (21, 0));
        assert_eq!(Bump::new(&program, &["3100"]).burst(40), (38, 0));
        assert!(matches!(Library::load(&program, &["1", "2"], 1), Err(LoadError::Refused(1))));
    }
}

#[test]
fn red_in_c_drops_above_its_maximum_threshold_and_takes_the_packet_out() {
    let dir = Dir::new("extension-red");
    let mut bump = Bump::new(&example(&dir, "red"), &["1000", "30000", "1", "0.5"]);
    let (marked, dropped) = bump.burst(100);
    assert!((1..17).contains(&marked) && dropped == 81, "{marked} {dropped}");
    // 19 frames fit below 30,000 B.
    assert_eq!(bump.queue.bytes(Instant::ZERO), 19 * 1_538);
    // Draws are the same in every run.
    assert_eq!(Bump::new(&example(&dir, "red"), &["1000", "30000", "1", "0.5"]).burst(100), (marked, dropped));
}

#[test]
fn a_program_without_calls_only_estimates() {
    let dir = Dir::new("extension-empty");
    let mut bump = Bump::new(&compiled(&dir, "empty", ""), &[]);
    assert_eq!(bump.burst(10), (0, 0));
    let later = Instant::ZERO + Duration::from_us(12);
    assert_eq!(bump.library.estimate_qlen(later, (&bump.state, &bump.queue)), 15_380 - 1_500);
    let mut bytes = frame();
    let mut called = Called { buffer: &mut bytes, len: 1_514, wire_bytes: 1_538, port: 3, mapped: Some(0), now: later };
    let rng = &mut bump.library.rng();
    let queue = bump.library.classify(&mut called, rng, 1);
    assert_eq!((queue, bump.library.forward(&mut called, rng, 4)), (Some(0), 2));
}

#[test]
fn a_program_can_have_every_call_of_its_own() {
    let dir = Dir::new("extension-own");
    let body = "
        int netbump_classify(Packet *p) { return p->data[5] == 9 ? NETBUMP_NO_QUEUE : p->data[5] == 8 ? 77 : 0; }
        void netbump_vaqm(Packet *p, vQueue *vq) { vq->tokens += 2 * p->wire_bytes; vq->lastUpdate = p->timestamp; }
        uint64_t netbump_estimate_qlen(const vQueue *vq, uint64_t now) { return vq->tokens + now % 7; }
        int netbump_process(Packet *p, vQueue *vq)
        {
            static const uint8_t own[60] = { 1, 2, 3 };
            if (vq->tokens > 10000)
                return NETBUMP_DROP;
            netbump_send(p, 1, own, sizeof own);
            p->data[0] = 0xFF;
            p->len -= 14;
            return p->data[5] == 7 ? NETBUMP_CONSUME : NETBUMP_FORWARD;
        }
        int netbump_forward(const Packet *p) { return p->data[5]; }";
    let mut bump = Bump::new(&compiled(&dir, "own", body), &[]);
    let (verdict, bytes) = bump.pass(Instant::ZERO, frame());
    assert_eq!((verdict, bytes.len(), bytes[0]), (Verdict::Forward, 1_500, 0xFF));
    assert_eq!(bump.sent.len(), 1);
    assert!(bump.sent[0].0 == 1 && bump.sent[0].1[..3] == [1, 2, 3] && bump.sent[0].1.len() == 60);
    assert_eq!(bump.library.estimate_qlen(Instant(5), (&bump.state, &bump.queue)), 2 * 1_538 + 5);
    assert_eq!(bump.queue.bytes(Instant::ZERO), 0, "the program has an estimate of its own");
    let mut consumed = frame();
    consumed[5] = 7;
    assert_eq!(bump.pass(Instant::ZERO, consumed).0, Verdict::Consume);
    bump.pass(Instant::ZERO, frame());
    assert_eq!(bump.pass(Instant::ZERO, frame()).0, Verdict::Drop(DropReason::Extension));
    // Queues and ports that do not exist.
    for (byte, queue, port) in [(9, None, 0), (8, None, 0), (1, Some(0), 1), (3, Some(0), 3), (4, Some(0), 0)] {
        let mut bytes = frame();
        bytes[5] = byte;
        let mut called =
            Called { buffer: &mut bytes, len: 1_514, wire_bytes: 1_538, port: 1, mapped: None, now: Instant::ZERO };
        let rng = &mut bump.library.rng();
        assert_eq!(bump.library.classify(&mut called, rng, 1), queue, "{byte}");
        assert_eq!(bump.library.forward(&mut called, rng, 4), port, "{byte}");
    }
}

#[test]
fn choices_of_the_same_packet_draw_other_random_numbers() {
    let dir = Dir::new("extension-draws");
    let body = "
        int netbump_classify(Packet *p) { return (int)(1000 * netbump_random(p)); }
        int netbump_forward(const Packet *p) { return (int)(1000 * netbump_random(p)); }";
    let library = Library::load(&compiled(&dir, "draws", body), &[], 1).unwrap();
    let draws = || -> Vec<(Option<u16>, u16)> {
        let rng = &mut library.rng();
        let one = |_| {
            let mut bytes = frame();
            let (buffer, now) = (&mut bytes[..], Instant::ZERO);
            let mut called = Called { buffer, len: 1_514, wire_bytes: 1_538, port: 0, mapped: None, now };
            let queue = library.classify(&mut called, rng, 1_000);
            (queue, library.forward(&mut called, rng, 1_000))
        };
        (0..50).map(one).collect()
    };
    let all = draws();
    let different: std::collections::BTreeSet<_> = all.iter().flat_map(|&(a, b)| [a.unwrap(), b]).collect();
    assert!(different.len() > 80, "{different:?}");
    assert_eq!(draws(), all, "the same in every run");
}

/// Lets a program end the process if another test has started this one; otherwise there is nothing to test.
#[test]
fn end_by_a_program() {
    let Some(bytes) = std::env::var_os("SLUICENET_TEST_ENDS") else { return };
    let bytes = std::fs::read(bytes).unwrap();
    let library = Library::load_named("the program `mine.so`", &bytes, &[], 1).unwrap();
    let mut bump = Bump { state: library.init(0, PORT), library, ..Bump::new(&bytes, &[]) };
    bump.pass(Instant::ZERO, frame());
}

#[test]
fn a_program_that_calls_exit_is_named_and_ends_the_run_as_a_failure() {
    let dir = Dir::new("extension-exit");
    let exits = "#include <stdlib.h>
        int netbump_process(Packet *p, vQueue *vq) { (void)p; (void)vq; exit(0); }";
    let path = dir.0.join("copy.so");
    std::fs::write(&path, compiled(&dir, "exits", exits)).unwrap();
    let mut run = std::process::Command::new(std::env::current_exe().unwrap());
    run.args(["--exact", "end_by_a_program", "--nocapture"]).env("SLUICENET_TEST_ENDS", &path);
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("the program `mine.so` has called exit"), "{output:?}");
}

#[test]
fn a_frame_grows_no_longer_than_its_buffer_and_unknown_decisions_drop() {
    let dir = Dir::new("extension-long");
    let body =
        "int netbump_process(Packet *p, vQueue *vq) { (void)vq; p->len = 1u << 30; return p->data[5] == 1 ? 42 : 0; }";
    let mut bump = Bump::new(&compiled(&dir, "long", body), &[]);
    assert_eq!(bump.pass(Instant::ZERO, frame()).1.len(), 2_048);
    let mut odd = frame();
    odd[5] = 1;
    assert_eq!(bump.pass(Instant::ZERO, odd).0, Verdict::Drop(DropReason::Extension));
}

#[test]
fn each_loaded_program_has_variables_of_its_own() {
    let dir = Dir::new("extension-twice");
    let body = "static int seen; int netbump_process(Packet *p, vQueue *vq) { (void)p; (void)vq; return ++seen > 1; }";
    let bytes = compiled(&dir, "twice", body);
    let (mut a, mut b) = (Bump::new(&bytes, &[]), Bump::new(&bytes, &[]));
    assert_eq!([a.burst(1).1, b.burst(1).1, a.burst(1).1], [0, 0, 1]);
}

#[test]
fn what_is_no_program_is_refused() {
    let dir = Dir::new("extension-refused");
    let load = |bytes: &[u8], arguments: &[&str]| Library::load(bytes, arguments, 1).map(drop).unwrap_err().to_string();
    assert!(load(b"no library", &[]).contains("the file: file too short"), "{}", load(b"no library", &[]));
    let none = std::fs::read(netbump_program(&dir, "none", "int x;\n")).unwrap();
    assert!(load(&none, &[]).contains("NETBUMP_PROGRAM"));
    let other = "#include <stdint.h>\nconst uint32_t netbump_version = 9;\n";
    let other = std::fs::read(netbump_program(&dir, "other", other)).unwrap();
    assert!(load(&other, &[]).contains("version 9"));
    assert!(load(&compiled(&dir, "plain", ""), &["x"]).contains("refuses its arguments"));
    assert!(load(&compiled(&dir, "plain", ""), &["x\0y"]).contains("zero byte"));
}

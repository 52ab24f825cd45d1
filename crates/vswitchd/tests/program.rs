//! Programs from outside in a bump between programs in shared memory: good ones, and hostile ones in processes of their own.
//!
//! Each bump has two virtual queues: the hostile program does harm in that of station 2, and frames to station 1 must not
//! notice. The processes run this test program, whose test `serve_a_program` serves them.

use sluicenet_dataplane::bump::program::{LaneReport, Mode, Safe, Starter};
use sluicenet_dataplane::bump::{Loop, Settings, loops_with, number_of};
use sluicenet_dataplane::port::{BrokenPort, Delivery, Descriptor, Offload, Segmentation};
use sluicenet_dataplane::shm::Client;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::netbump::{Map, Port};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_testkit::{Dir, netbump_program, repository};
use sluicenet_vswitchd::bump::program::{InProcess, serve, starter};
use sluicenet_wire::checksum::checksum;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use std::sync::Arc;
use std::time::Instant;

/// Longest wait for an event.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
/// A deadline that a good program keeps on a busy computer.
const DEADLINE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_ms(300);

/// Serves a program if a bump of another test has started this process; otherwise there is nothing to test.
#[test]
fn serve_a_program() {
    if std::env::var_os("SLUICENET_TEST_SERVES").is_some() {
        serve(&[], 1).unwrap();
    }
}

fn mac(n: u32) -> [u8; 6] {
    MacAddress::local(n).0
}

/// A datagram to a station with a number in its payload.
fn datagram(to: u32, number: u32) -> Vec<u8> {
    let mut frame = vec![0; 200];
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(9));
    frame[12..14].copy_from_slice(&[8, 0]);
    let repr = ipv4::Repr {
        source: [10, 0, 0, 9].into(),
        destination: [10, 0, 0, to as u8].into(),
        protocol: Protocol::UDP,
        dscp: 0,
        ecn: Ecn::Ect0,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        payload_len: 166,
    };
    repr.emit(&mut frame[14..]);
    frame[100..104].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[100..104].try_into().unwrap())
}

fn compiled(dir: &Dir, body: &str) -> Vec<u8> {
    let source = format!("#include <netbump.h>\n#include <stdlib.h>\n#include <string.h>\nNETBUMP_PROGRAM\n{body}\n");
    std::fs::read(netbump_program(dir, "program", &source)).unwrap()
}

fn example(dir: &Dir) -> Vec<u8> {
    let source = std::fs::read_to_string(repository("crates/netbump/examples/dctcp.c")).unwrap();
    std::fs::read(netbump_program(dir, "dctcp", &source)).unwrap()
}

/// A bump in one link, with stations 1 and 2 behind its second end, each in the virtual queue of its number.
struct Rig {
    bump: Box<dyn Loop>,
    ends: [Client; 2],
    sent: [u32; 3],
    /// The numbers of the frames to each station that came out.
    came: [Vec<u32>; 3],
    others: Vec<Vec<u8>>,
    marked: u32,
}

impl Rig {
    fn new(mode: Mode) -> Rig {
        let map = Map::new(&[(number_of(mac(1)), 1), (number_of(mac(2)), 2)], None);
        let settings = Settings {
            links: vec![["a".into(), "b".into()]],
            maps: vec![map.clone(), map],
            mac: mac(99),
            notification_priority: 7,
            updates: None,
            started: Instant::now(),
        };
        let mut bump = loops_with(vec![mode], &ports(), vec![settings]).pop().unwrap();
        let mut open = |end| Client::open(bump.plug_shm(end, 256).unwrap().memory).unwrap();
        let ends = [open(0), open(1)];
        Rig { bump, ends, sent: [0; 3], came: Default::default(), others: Vec::new(), marked: 0 }
    }

    fn safe(program: &[u8], deadline: Duration, block: bool) -> Rig {
        let mut rig = Rig::new(Mode::Safe(safe(program, deadline, block)));
        rig.until("the programs run", |rig| rig.lanes().iter().all(|lane| lane.runs));
        rig
    }

    fn lanes(&self) -> Vec<LaneReport> {
        self.bump.report().lanes
    }

    fn lane(&self, queue: u16) -> LaneReport {
        self.lanes().into_iter().find(|lane| lane.queue == Some(queue)).unwrap()
    }

    fn round(&mut self) {
        let moved = self.bump.round();
        let mut into = [0; 2048];
        while let Some(len) = self.ends[1].receive(&mut into).unwrap() {
            let frame = &into[..len];
            match (1..=2).find(|&n| len == 200 && frame[..6] == mac(n)) {
                Some(n) => {
                    self.came[n as usize].push(number(frame));
                    self.marked += u32::from(ipv4::Repr::parse(&frame[14..]).unwrap().0.ecn == Ecn::Ce);
                }
                None => self.others.push(frame.to_vec()),
            }
        }
        let _ = self.ends[1].publish();
        if moved == 0 {
            std::thread::yield_now();
        }
    }

    fn until(&mut self, what: &str, mut is_true: impl FnMut(&mut Rig) -> bool) {
        let started = Instant::now();
        while !is_true(self) {
            assert!(started.elapsed() < PATIENCE, "{what}: {:?}", self.bump.report());
            self.round();
        }
    }

    fn send(&mut self, to: u32) {
        let frame = datagram(to, self.sent[to as usize]);
        self.until("the bump takes a frame", |rig| {
            let sent = rig.ends[0].send(&frame).unwrap();
            let _ = rig.ends[0].publish();
            sent
        });
        self.sent[to as usize] += 1;
    }

    /// Sends frames to station 1, at most 16 at once, until something happens; all come unharmed and in order.
    fn good_until(&mut self, what: &str, mut is_true: impl FnMut(&Rig) -> bool) {
        let started = Instant::now();
        loop {
            for _ in 0..16 {
                self.send(1);
            }
            self.until("frames of the other queue come", |rig| rig.came[1].len() as u32 == rig.sent[1]);
            if is_true(self) {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{what}: {:?}", self.bump.report());
        }
        assert_eq!(self.came[1], (0..self.sent[1]).collect::<Vec<u32>>());
        let good = self.lane(1).counts;
        assert_eq!((good.crashes, good.timeouts, good.broke_rules, good.overrun, good.bypassed), (0, 0, 0, 0, 0));
        assert_eq!((good.starts, good.called), (1, u64::from(self.sent[1])));
    }

    fn dropped(&self) -> u64 {
        self.bump.report().ends[0].counts.dropped.frames(DropReason::Extension)
    }
}

/// How this test program serves a program.
fn served(program: &[u8]) -> Starter {
    let Starter { program, command, said } = starter(program, &["--exact", "serve_a_program", "--nocapture"], &[], 1);
    let with_variable = move |lane| {
        let mut command = command(lane);
        command.env("SLUICENET_TEST_SERVES", "1");
        command
    };
    Starter { program, command: Arc::new(with_variable), said }
}

fn safe(program: &[u8], deadline: Duration, block: bool) -> Safe {
    let starter = served(program);
    Safe { chooses: starter.try_out().unwrap(), starter, deadline, block, ports: ports(), in_use: vec![1, 2] }
}

fn ports() -> Vec<Port> {
    vec![Port { rate: Rate(100), buffer_bytes: None }; 3]
}

#[test]
fn a_good_program_marks_as_in_the_bumps_own_process() {
    let dir = Dir::new("program-good");
    let program = example(&dir);
    let fast = Rig::new(Mode::Fast(Box::new(InProcess::load(&program, &[], 1).unwrap())));
    for mut rig in [fast, Rig::safe(&program, DEADLINE, false)] {
        // 135 frames of 224 bytes on the wire fit below 30,360 bytes.
        for n in 0..200 {
            rig.send(1 + n % 2);
            rig.until("it comes", |rig| (rig.came[1].len() + rig.came[2].len()) as u32 == n + 1);
        }
        assert_eq!(rig.came[1], (0..100).collect::<Vec<u32>>());
        assert_eq!(rig.marked, 0);
        for _ in 0..100 {
            rig.send(1);
        }
        rig.until("all come", |rig| rig.came[1].len() == 200);
        // 65 less those for which the queue has drained meanwhile.
        assert!((60..=65).contains(&rig.marked), "{}", rig.marked);
        let queues = rig.bump.report_queues();
        assert_eq!((queues[1].counts.packets, queues[1].counts.marked), (200, rig.marked.into()));
        assert!((190 * 224..=200 * 224).contains(&queues[1].bytes));
        assert_eq!(rig.bump.report().ledger(), [300, 300, 0, 0]);
    }
}

#[test]
fn a_program_that_crashes_harms_only_its_queue_and_is_started_again() {
    let dir = Dir::new("program-crash");
    let body = "int netbump_process(Packet *p, vQueue *vq)
        { if (p->data[5] == 2 && p->data[103] == 20) *(volatile int *)0 = 1; (void)vq; return 0; }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, false);
    for _ in 0..100 {
        rig.send(2);
    }
    rig.good_until("it crashes", |rig| rig.lane(2).counts.crashes == 1);
    // Its frames have passed without it, in order.
    rig.until("its frames come", |rig| rig.came[2].len() == 100);
    assert_eq!(rig.came[2], (0..100).collect::<Vec<u32>>());
    rig.good_until("it runs again", |rig| rig.lane(2).runs);
    rig.send(2);
    rig.until("it is called again", |rig| rig.came[2].len() == 101);
    assert_eq!(rig.lane(2).counts.starts, 2);
    assert!(rig.lane(2).counts.bypassed > 0 && rig.dropped() == 0);
}

#[test]
fn a_program_that_loops_is_killed_at_its_deadline() {
    let dir = Dir::new("program-loop");
    let body = "int netbump_process(Packet *p, vQueue *vq)
        { (void)vq; while (p->data[5] == 2 && *(volatile uint8_t *)&p->data[103] == 3) ; return 0; }";
    let mut rig = Rig::safe(&compiled(&dir, body), SHORT, false);
    for _ in 0..10 {
        rig.send(2);
        rig.send(1);
    }
    rig.until("it is killed", |rig| rig.lane(2).counts.timeouts == 1);
    rig.until("all frames come", |rig| rig.came[1].len() + rig.came[2].len() == 20);
    assert_eq!((&rig.came[1], &rig.came[2]), (&(0..10).collect(), &(0..10).collect()));
    rig.until("it runs again", |rig| rig.lane(2).runs);
}

#[test]
fn a_blocked_queue_drops_its_frames_and_no_others() {
    let dir = Dir::new("program-block");
    let body = "int netbump_process(Packet *p, vQueue *vq)
        { if (p->data[5] == 2) abort(); (void)vq; return 0; }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, true);
    for _ in 0..30 {
        rig.send(2);
    }
    rig.good_until("its frames are dropped", |rig| rig.dropped() == 30);
    assert!(rig.came[2].is_empty() && rig.lane(2).counts.blocked == 30);
}

#[test]
fn a_slow_program_loses_frames_of_its_own_queue_only() {
    let dir = Dir::new("program-slow");
    let body = "#include <stdio.h>
        int netbump_process(Packet *p, vQueue *vq)
        { (void)vq; while (p->data[5] == 2) ; return 0; }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, false);
    for _ in 0..300 {
        rig.send(2);
    }
    // The lane holds 128 frames.
    rig.good_until("the others are dropped", |rig| rig.lane(2).counts.overrun == 172);
    assert_eq!((rig.dropped(), rig.lane(2).inside), (172, 128));
}

#[test]
fn a_program_that_writes_outside_of_its_frame_reaches_no_other_frame() {
    let dir = Dir::new("program-wild");
    let body = "int netbump_process(Packet *p, vQueue *vq)
        { (void)vq; if (p->data[5] == 2) memset(p->data - 65536, 0x55, 1 << 28); return 0; }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, false);
    for _ in 0..40 {
        rig.send(2);
    }
    rig.good_until("it crashes", |rig| rig.lane(2).counts.crashes >= 1);
    rig.until("its frames come", |rig| rig.came[2].len() == 40);
    assert_eq!(rig.came[2], (0..40).collect::<Vec<u32>>());
    assert!(rig.others.is_empty());
}

#[test]
fn a_gigabyte_is_refused() {
    let dir = Dir::new("program-memory");
    let body = "int netbump_process(Packet *p, vQueue *vq)
        {
            (void)vq;
            if (p->data[5] == 2) {
                char *all = malloc(1u << 30);
                if (all == NULL)
                    return NETBUMP_CONSUME;
                memset(all, 1, 1u << 30);
            }
            return 0;
        }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, false);
    for _ in 0..5 {
        rig.send(2);
    }
    rig.good_until("it gets no memory", |rig| rig.bump.report().ends[0].counts.consumed == 5);
    assert_eq!((rig.lane(2).counts.called, rig.came[2].len()), (5, 0));
}

#[test]
fn a_flood_of_own_frames_is_bounded_for_each_frame() {
    let dir = Dir::new("program-flood");
    let body = "int netbump_process(Packet *p, vQueue *vq)
        {
            static uint8_t own[60];
            (void)vq;
            for (int i = 0; p->data[5] == 2 && i < 100000; i++)
                netbump_send(p, (uint16_t)(i % 2 ? 1 : 77), own, sizeof own);
            return 0;
        }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, false);
    for _ in 0..3 {
        rig.send(2);
    }
    rig.good_until("its frames have passed", |rig| rig.came[2].len() == 3);
    let report = rig.bump.report();
    let own = report.ends[1].counts.own + report.ends[1].counts.own_lost;
    assert!((1..=3 * 16).contains(&own) && rig.others.len() as u64 == report.ends[1].counts.own, "{own}");
    assert!(rig.lane(2).counts.own_refused > 0);
}

#[test]
fn nonsense_is_checked() {
    let dir = Dir::new("program-nonsense");
    let body = "int netbump_process(Packet *p, vQueue *vq)
        {
            (void)vq;
            if (p->data[5] != 2)
                return 0;
            switch (p->data[103]) {
            case 0: p->len = 0; return 0;
            case 1: p->len = 13; return 0;
            case 2: p->len = 1u << 31; return 0;
            case 3: return 4711;
            case 4: return -1;
            case 5: p->data = NULL; return 0;
            default: return 0;
            }
        }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, false);
    for _ in 0..7 {
        rig.send(2);
    }
    rig.good_until("the last frame comes", |rig| rig.came[2].last() == Some(&6));
    // Too short twice, longer than a buffer of the port once, and two verdicts that do not exist.
    let dropped = rig.bump.report().ends[0].counts.dropped;
    assert_eq!((dropped.frames(DropReason::Extension), dropped.frames(DropReason::TooBig)), (4, 1));
    assert_eq!((rig.lane(2).counts.damaged, rig.came[2].clone()), (2, vec![5, 6]));
}

#[test]
fn a_program_with_a_classifier_has_one_process_for_all_frames() {
    let dir = Dir::new("program-classify");
    let body = "int netbump_classify(Packet *p) { return p->data[5] == 1 ? 2 : NETBUMP_NO_QUEUE; }
        int netbump_process(Packet *p, vQueue *vq) { (void)p; (void)vq; return 0; }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, false);
    for _ in 0..5 {
        rig.send(1);
        rig.send(2);
    }
    rig.until("all come", |rig| rig.came[1].len() + rig.came[2].len() == 10);
    let queues = rig.bump.report_queues();
    assert_eq!((queues[1].counts.packets, queues[2].counts.packets), (0, 5));
    assert!((4 * 224..=5 * 224).contains(&queues[2].bytes));
    assert_eq!(rig.lanes().len(), 1);
}

#[test]
fn what_is_no_program_is_refused_before_the_bump_starts() {
    let why = served(b"no library").try_out().unwrap_err().to_string();
    assert!(why.contains("file too short"), "{why}");
}

#[test]
fn a_program_cannot_kill_those_of_other_queues() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give each process a user of its own");
        return;
    }
    let dir = Dir::new("program-kills");
    // Everything that its user may kill, except itself.
    let body = "#include <signal.h>
        #include <sys/types.h>
        #include <unistd.h>
        int kill(pid_t process, int signal);
        int netbump_process(Packet *p, vQueue *vq)
        {
            (void)vq;
            if (getuid() < (1u << 31) || getgid() != getuid())
                return NETBUMP_DROP;
            if (p->data[5] == 2)
                kill(-1, SIGKILL);
            return 0;
        }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, false);
    for _ in 0..5 {
        rig.send(2);
    }
    rig.until("its frames come", |rig| rig.came[2].len() == 5);
    rig.good_until("the other one is called", |rig| rig.sent[1] >= 160);
    assert_eq!((rig.lane(2).counts.called, rig.dropped()), (5, 0));
}

#[test]
fn a_program_has_neither_children_nor_threads() {
    let dir = Dir::new("program-forks");
    let body = "#include <pthread.h>
        #include <unistd.h>
        static void *run(void *p) { return p; }
        int netbump_process(Packet *p, vQueue *vq)
        {
            pthread_t thread;
            pid_t child;
            (void)vq;
            if (p->data[5] != 2)
                return 0;
            if (p->data[103] % 2)
                return pthread_create(&thread, NULL, run, NULL) == 0 ? NETBUMP_DROP : NETBUMP_CONSUME;
            child = fork();
            if (child == 0)
                _exit(0);
            return child > 0 ? NETBUMP_DROP : NETBUMP_CONSUME;
        }";
    let mut rig = Rig::safe(&compiled(&dir, body), DEADLINE, false);
    for _ in 0..6 {
        rig.send(2);
    }
    rig.good_until("both are refused", |rig| rig.lane(2).counts.called == 6);
    assert_eq!((rig.bump.report().ends[0].counts.consumed, rig.dropped()), (6, 0));
}

#[test]
fn a_program_writes_lines_and_no_file_of_the_bump() {
    let dir = Dir::new("program-says");
    let body = "#include <stdio.h>
        #include <sys/stat.h>
        int netbump_process(Packet *p, vQueue *vq)
        {
            struct stat file;
            (void)vq;
            if (p->data[5] == 2) {
                if (fstat(2, &file) != 0 || !S_ISFIFO(file.st_mode))
                    return NETBUMP_DROP;
                for (int i = 0; i < 1000; i++)
                    fprintf(stderr, \"frame %d\\t%0300d\\n\", p->data[103], i);
                abort();
            }
            return 0;
        }";
    let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut safe = safe(&compiled(&dir, body), DEADLINE, false);
    let known = Arc::clone(&lines);
    safe.starter.said = Arc::new(move |line: &str| known.lock().unwrap().push(line.to_owned()));
    let mut rig = Rig::new(Mode::Safe(safe));
    rig.until("the programs run", |rig| rig.lanes().iter().all(|lane| lane.runs));
    rig.send(2);
    rig.good_until("it has said everything", |rig| rig.lane(2).counts.crashes == 1);
    assert_eq!(rig.dropped(), 0);
    let lines = lines.lock().unwrap();
    assert!(lines[0].starts_with("frame 0 000") && lines.iter().all(|line| line.len() <= 200), "{lines:?}");
    // Each line is there or counted.
    let left_out = |line: &String| line.strip_prefix('(')?.split(' ').next()?.parse::<usize>().ok();
    let sum: usize = lines.iter().map(|line| left_out(line).unwrap_or(1)).sum();
    assert_eq!(sum, 1_000);
    assert!(lines.len() < 1_000, "{}", lines.len());
}

/// A port that holds frames for the bump, and takes two frames a round without any offload.
struct Plain {
    frames: Vec<(Vec<u8>, Offload)>,
    room: u32,
    out: std::sync::mpsc::Sender<Vec<u8>>,
    lent: u32,
}

impl sluicenet_dataplane::port::Port for Plain {
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        Ok(self.frames.first().map(|(frame, _)| Descriptor { buffer: 0, len: frame.len() as u32 }))
    }
    fn first_bytes(&self, _: u32) -> [u64; 2] {
        [0; 2]
    }
    fn accept(&mut self) {
        self.lent += 1;
    }
    fn read(&self, _: u32, into: &mut [u8]) {
        into.copy_from_slice(&self.frames[0].0[..into.len()]);
    }
    fn offload(&self, _: u32) -> Offload {
        self.frames[0].1
    }
    fn give_back(&mut self, _: u32) {
        self.lent -= 1;
        self.frames.remove(0);
    }
    fn lent(&self) -> u32 {
        self.lent
    }
    fn max_frame(&self) -> u32 {
        1_514
    }
    fn reserve(&mut self, _: u32, _: &Offload) -> Result<bool, BrokenPort> {
        Ok(self.room > 0)
    }
    fn deliver(&mut self, frame: &Delivery<'_>) {
        assert!(frame.offload.is_none());
        self.room -= 1;
        self.out.send(frame.bytes.to_vec()).unwrap();
    }
    fn publish(&mut self) -> Result<(), BrokenPort> {
        self.room = 2;
        Ok(())
    }
    fn fall_asleep(&mut self, _: bool) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn wake_up(&mut self) {}
    fn wakers<'a>(&'a self, _: &mut Vec<rustix::event::PollFd<'a>>) {}
    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

#[test]
fn a_program_sees_segments_with_checksums_and_each_is_accounted_for() {
    let dir = Dir::new("program-offload");
    // The first of the segments is dropped, the second one is consumed, and each grows by a byte.
    let body = "int netbump_process(Packet *p, vQueue *vq)
        {
            static int n;
            (void)vq;
            p->data[p->len++] = 0xEE;
            return ++n == 1 ? NETBUMP_DROP : n == 2 ? NETBUMP_CONSUME : NETBUMP_FORWARD;
        }";
    let program = compiled(&dir, body);
    let mut large = vec![0x5A; 54 + 5_000];
    large[..200].copy_from_slice(&datagram(2, 0));
    large[16..18].copy_from_slice(&5_040u16.to_be_bytes());
    large[23] = Protocol::TCP.0;
    large[24..26].fill(0);
    large[46] = 0x50;
    let sum = checksum(&large[14..34]);
    large[24..26].copy_from_slice(&sum.to_be_bytes());
    let offload = Offload {
        checksum: Some((34, 16)),
        segmentation: Segmentation::Tcp4,
        segment: 1_000,
        headers: 54,
        verified: false,
    };
    let fast = Mode::Fast(Box::new(InProcess::load(&program, &[], 1).unwrap()));
    for mode in [fast, Mode::Safe(safe(&program, DEADLINE, false))] {
        let mut rig = Rig::new(mode);
        rig.until("the programs run", |rig| rig.lanes().iter().all(|lane| lane.runs));
        let (out, came) = std::sync::mpsc::channel();
        let port = |frames| Box::new(Plain { frames, room: 0, out: out.clone(), lent: 0 });
        assert!(rig.bump.unplug(0) && rig.bump.unplug(1));
        // Behind it one that is longer than its output takes.
        let long = [&datagram(2, 1)[..], &[0; 1_500]].concat();
        rig.bump.plug(0, port(vec![(large.clone(), offload), (long, Offload::NONE)])).unwrap();
        rig.bump.plug(1, port(vec![])).unwrap();
        let started = Instant::now();
        while rig.bump.report().ledger() != [6, 3, 1, 2] {
            assert!(started.elapsed() < PATIENCE, "{:?}", rig.bump.report());
            rig.bump.round();
            std::thread::yield_now();
        }
        let all: Vec<Vec<u8>> = came.try_iter().collect();
        assert_eq!(all.len(), 3);
        for frame in all {
            assert_eq!((frame.len(), frame[1_054], checksum(&frame[14..34])), (1_055, 0xEE, 0));
            // The pseudo header of TCP: addresses, protocol and length.
            let pseudo = [&frame[26..34], &[0, 6], &1_020u16.to_be_bytes(), &frame[34..1_054]].concat();
            assert_eq!(checksum(&pseudo), 0);
        }
    }
}

use super::*;

fn turn(gbps: f64, cpu_s: f64, bytes: u64) -> Turn {
    Turn { moved: Moved { gbps, cpu_s, bytes, ..Moved::default() }, ..Turn::default() }
}

#[test]
fn a_spread_is_the_least_the_middle_and_the_most() {
    let of = |values: &[f64]| spread(values.iter().copied());
    assert_eq!(of(&[3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
    assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), Spread { min: 1.0, median: 2.5, max: 4.0 });
    assert_eq!(of(&[7.0]), Spread { min: 7.0, median: 7.0, max: 7.0 });
}

/// The ratio is taken in each turn by itself: other work of the machine in a turn affects both.
#[test]
fn a_ratio_is_taken_turn_by_turn() {
    let base = [turn(1.0, 4.0, 1_000_000_000), turn(2.0, 4.0, 2_000_000_000), turn(4.0, 4.0, 4_000_000_000)];
    let own = [turn(2.0, 2.0, 1_000_000_000), turn(3.0, 4.0, 2_000_000_000), turn(4.0, 1.0, 4_000_000_000)];
    let Ratio { throughput, less_cpu } = ratio(&own, &base);
    assert_eq!(throughput, Spread { min: 1.0, median: 1.5, max: 2.0 });
    assert_eq!(less_cpu, Spread { min: 1.0, median: 2.0, max: 4.0 });
}

#[test]
fn a_turn_beside_something_else_is_seen() {
    let beside = |machine_s| {
        let moved = Moved { gbps: 8.0, cpu_s: 2.0, machine_s, bytes: 1_000_000_000, ..Moved::default() };
        Single::of(&Turn { moved, lost: [("here".to_owned(), 3), ("there".to_owned(), 4)].into(), resent: 5 })
    };
    let quiet = beside(2.2);
    assert_eq!((quiet.cpu_s_per_gb, quiet.machine_s_per_gb, quiet.lost, quiet.resent), (2.0, 2.2, 7, 5));
    assert!(!quiet.disturbed && beside(2.4).disturbed);
}

#[test]
fn what_is_left_out_is_not_measured() {
    let what = |guests: &[Guest], hypervisors: &[Hypervisor]| Sockets {
        time: Duration::ZERO,
        turns: 1,
        streams: 1,
        delays: vec![Duration::ZERO, Duration::from_micros(50)],
        placements: vec![Placement::Servers],
        guests: guests.to_vec(),
        hypervisors: hypervisors.to_vec(),
        scratch: PathBuf::new(),
    };
    assert_eq!(cases(&what(&[Guest::Tcplight], &[Hypervisor::Lossy])), []);
    let both = cases(&what(&[Guest::Tcplight, Guest::Tcp], &[Hypervisor::Lossy, Hypervisor::Zfabric]));
    let names: Vec<_> = both.iter().map(|c| (c.delay.as_micros(), c.guest, c.hypervisor)).collect();
    use Guest::{Tcp, Tcplight};
    use Hypervisor::{Lossy, Zfabric};
    let at = |us| [(us, Tcp, Lossy), (us, Tcp, Zfabric), (us, Tcplight, Zfabric)];
    assert_eq!(names, [at(0), at(50)].concat());
}

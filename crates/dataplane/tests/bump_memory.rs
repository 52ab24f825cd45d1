//! A bump and a million forged flows. The test is alone in its process, so that the process's memory is the bump's.

use sluicenet_dataplane::bump::{Settings, loops, number_of};
use sluicenet_dataplane::shm::Client;
use sluicenet_proto::netbump::{BumpCongestionPoint, BumpReactionPoint, Filter, Map, Port, Stock};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::qcn;

#[test]
fn a_million_forged_flows_and_notifications_use_no_more_memory_than_a_few() {
    let map = Map::new(&[(number_of(MacAddress::local(1).0), 1)], Some(0));
    let settings = Settings {
        links: vec![["a".into(), "b".into()]],
        maps: vec![map.clone(), map],
        mac: MacAddress::local(9).0,
        notification_priority: 7,
        updates: None,
        started: std::time::Instant::now(),
    };
    let applications = vec![
        (Stock::CongestionPoint(BumpCongestionPoint::alfares2012(1, 1)), Filter::default()),
        (Stock::ReactionPoint(BumpReactionPoint::alfares2012(1)), Filter::default()),
    ];
    let ports = [Port { rate: Rate::gbps(1), buffer_bytes: None }; 2];
    let mut bump = loops(applications, &ports, vec![settings]).pop().unwrap();
    let mut ends = [0, 1].map(|end| Client::open(bump.plug_shm(end, 64).unwrap().memory).unwrap());
    let mut rng = Rng::from_words(&[3]);
    let (mut memory, mut into) = (0, [0; 2048]);
    for n in 0..1_000_000u32 {
        let mut any = || MacAddress(rng.next_u64().to_be_bytes()[..6].try_into().unwrap());
        let (from, to) = (any(), any());
        let mut frame = vec![0; 64];
        if n % 2 == 0 {
            frame[..6].copy_from_slice(&to.0);
            frame[6..12].copy_from_slice(&from.0);
            frame[12..14].copy_from_slice(&[8, 0]);
        } else {
            let message = qcn::Repr::of(u64::from(n), ((n % 64) as u8, -70_000, 9_000_000), 3, from);
            let cnm = qcn::Frame { destination: to, source: from, priority: 7, flow: Some(n as u16), message };
            cnm.emit(&mut frame);
        }
        let _ = ends[n as usize % 2].send(&frame).unwrap();
        let _ = ends[n as usize % 2].publish();
        bump.round();
        for end in &mut ends {
            while end.receive(&mut into).unwrap().is_some() {}
            let _ = end.publish();
        }
        if n == 10_000 {
            memory = resident_bytes();
        }
    }
    assert!(resident_bytes() < memory + (1 << 20), "{memory} {}", resident_bytes());
    let limited = bump.report_queues()[0].gauges.iter().find(|g| g.0 == "limited_flows").unwrap().1;
    assert!(limited <= 64.0, "{limited}");
    let [all, out, consumed, dropped] = bump.report().ledger();
    assert_eq!(all, out + consumed + dropped);
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

//! Datagrams for groups: in a lossless class they wait with their sender until every port admits its copy.

use super::{open, plug, received};
use sluicenet_dataplane::engine::{Access, Engine};
use sluicenet_dataplane::port::{BrokenPort, Candidate, Delivery, Descriptor, Offload, Port};
use sluicenet_node::vale::{Ports, ValeConfig, WatchdogConfig};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port that admits this number of datagrams for groups, and counts the frames that it gets.
struct Gate {
    admits: Arc<AtomicU32>,
    got: Arc<AtomicU32>,
}

impl Port for Gate {
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        Ok(None)
    }
    fn first_bytes(&self, _buffer: u32) -> [u64; 2] {
        unreachable!("it sends nothing")
    }
    fn accept(&mut self) {}
    fn read(&self, _buffer: u32, _into: &mut [u8]) {}
    fn give_back(&mut self, _buffer: u32) {}
    fn lent(&self) -> u32 {
        0
    }
    fn max_frame(&self) -> u32 {
        1_514
    }
    fn admits_group(&mut self, _frame: Candidate, _read: &dyn Fn(&mut [u8])) -> Result<bool, BrokenPort> {
        let left = self.admits.load(Ordering::Relaxed);
        self.admits.store(left.saturating_sub(1), Ordering::Relaxed);
        Ok(left > 0)
    }
    fn reserve(&mut self, _len: u32, _offload: &Offload) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn deliver(&mut self, _frame: &Delivery<'_>) {
        self.got.fetch_add(1, Ordering::Relaxed);
    }
    fn publish(&mut self) -> Result<(), BrokenPort> {
        Ok(())
    }
    fn fall_asleep(&mut self, _blocked: bool) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn wake_up(&mut self) {}
    fn wakers<'a>(&'a self, _fds: &mut Vec<rustix::event::PollFd<'a>>) {}
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

/// A datagram to 239.1.1.1, or with another type of frame something else for all stations.
fn for_all(ethertype: u16) -> Vec<u8> {
    let mut frame = vec![0x01, 0, 0x5e, 1, 1, 1, 2, 0, 0, 0, 0, 0];
    frame.extend(ethertype.to_be_bytes());
    frame.extend([0x45, 0, 0, 36, 0, 7, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 239, 1, 1, 1]);
    frame.extend([0x10, 0x00, 0x1b, 0x58, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    frame.resize(60, 0);
    frame
}

fn gate(engine: &mut Engine, k: usize) -> (Arc<AtomicU32>, Arc<AtomicU32>) {
    let (admits, got) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let port = Gate { admits: admits.clone(), got: got.clone() };
    engine.plug(k, &format!("gate-{k}"), Box::new(port), Access::default()).unwrap();
    (admits, got)
}

#[test]
fn a_datagram_waits_with_its_sender_until_every_port_admits_it() {
    let config = ValeConfig { watchdog: WatchdogConfig::OFF, ..ValeConfig::default() };
    let mut engine = Engine::new(4, config);
    let mut clients = [0, 1].map(|k| open(plug(&mut engine, k, 64)));
    let [(one, at_one), (two, at_two)] = [2, 3].map(|k| gate(&mut engine, k));
    let [sender, other] = &mut clients;
    let rounds = |engine: &mut Engine| (0..5).for_each(|_| _ = engine.round());
    for _ in 0..3 {
        assert!(sender.send(&for_all(0x0800)).unwrap());
    }
    let _ = sender.publish();
    rounds(&mut engine);
    let got = |at: &AtomicU32| at.load(Ordering::Relaxed);
    assert_eq!((got(&at_one), got(&at_two), received(other)), (0, 0, None), "nobody gets a part");
    let report = engine.report(0).unwrap();
    assert_eq!(
        (report.waits_for, report.counters.held_back),
        ([2].into_iter().collect(), 1),
        "who waits for whom is said"
    );
    // One of the two is not enough.
    one.store(1, Ordering::Relaxed);
    rounds(&mut engine);
    assert_eq!((got(&at_one), got(&at_two)), (0, 0));
    assert_eq!(engine.report(0).unwrap().waits_for, [3].into_iter().collect());
    one.store(100, Ordering::Relaxed);
    two.store(2, Ordering::Relaxed);
    rounds(&mut engine);
    assert_eq!((got(&at_one), got(&at_two)), (2, 2));
    assert_eq!(std::iter::from_fn(|| received(other)).count(), 2);
    two.store(1, Ordering::Relaxed);
    rounds(&mut engine);
    assert_eq!((got(&at_one), got(&at_two), engine.queued()), (3, 3, 0));
    assert_eq!(engine.report(0).unwrap().waits_for, Ports::NONE);
    // ARP and the like ask nobody.
    one.store(0, Ordering::Relaxed);
    assert!(sender.send(&for_all(0x0806)).unwrap());
    let _ = sender.publish();
    rounds(&mut engine);
    assert_eq!((got(&at_one), got(&at_two)), (4, 4));
    engine.ledger();
}

#[test]
fn in_a_lossy_class_only_the_copy_without_room_is_dropped() {
    let config = ValeConfig { lossless: PrioritySet::NONE, watchdog: WatchdogConfig::OFF, ..ValeConfig::default() };
    let mut engine = Engine::new(3, config);
    let mut client = open(plug(&mut engine, 0, 64));
    let [(_, at_one), (two, at_two)] = [1, 2].map(|k| gate(&mut engine, k));
    two.store(100, Ordering::Relaxed);
    assert!(client.send(&for_all(0x0800)).unwrap());
    let _ = client.publish();
    engine.round();
    assert_eq!((at_one.load(Ordering::Relaxed), at_two.load(Ordering::Relaxed)), (0, 1));
    assert_eq!(engine.report(1).unwrap().counters.dropped.frames(DropReason::FloodNoRoom), 1);
    engine.ledger();
}

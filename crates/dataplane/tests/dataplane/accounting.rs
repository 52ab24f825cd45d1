//! The switch also accounts for frames after they were handed to a port.

use sluicenet_dataplane::engine::Engine;
use sluicenet_dataplane::port::{BrokenPort, Delivery, Descriptor, Inside, Offload, Port};
use sluicenet_dataplane::shm::Client;
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_proto::loss::{DropReason, Drops};
use std::sync::{Arc, Mutex};

fn mac(n: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, n as u8]
}

fn frame(from: usize, to: [u8; 6]) -> Vec<u8> {
    [&to[..], &mac(from), &[0x88, 0xb5], &[0; 50]].concat()
}

/// A port that takes every frame and keeps it until the test decides its fate.
struct Keeper(Arc<Mutex<Inside>>);

impl Port for Keeper {
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
    fn reserve(&mut self, _len: u32, _offload: &Offload) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn deliver(&mut self, _frame: &Delivery<'_>) {
        self.0.lock().unwrap().waiting += 1;
    }
    fn publish(&mut self) -> Result<(), BrokenPort> {
        Ok(())
    }
    fn fall_asleep(&mut self, _blocked: bool) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn wake_up(&mut self) {}
    fn wakers<'a>(&'a self, _fds: &mut Vec<rustix::event::PollFd<'a>>) {}
    fn inside(&self) -> Inside {
        *self.0.lock().unwrap()
    }
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

fn switch(config: ValeConfig) -> (Engine, Client, Arc<Mutex<Inside>>) {
    let mut engine = Engine::new(3, config);
    let client = Client::open(engine.plug_shm(0, "program", 64).unwrap().memory).unwrap();
    let inside = Arc::new(Mutex::new(Inside::default()));
    plug(&mut engine, &inside);
    (engine, client, inside)
}

fn plug(engine: &mut Engine, inside: &Arc<Mutex<Inside>>) {
    engine.plug(1, "keeper", Box::new(Keeper(inside.clone())), Default::default()).unwrap();
    assert!(engine.give(mac(1), 0, 1));
}

fn patient() -> ValeConfig {
    ValeConfig { watchdog: WatchdogConfig::OFF, ..ValeConfig::default() }
}

fn send(engine: &mut Engine, client: &mut Client, frames: usize) {
    for _ in 0..frames {
        assert!(client.send(&frame(0, mac(1))).unwrap());
        let _ = client.publish();
        engine.round();
    }
}

#[test]
fn what_waits_in_a_port_is_queued_and_what_it_gives_up_is_dropped() {
    let (mut engine, mut client, inside) = switch(patient());
    send(&mut engine, &mut client, 100);
    assert_eq!((engine.ledger(), engine.queued(), engine.inside()), ((100, 0, 0), 0, 100));
    let report = engine.report(1).unwrap();
    assert_eq!((report.inside, report.counters.delivered, report.counters.dropped.total_frames()), (100, 0, 0));
    // Of them 30 go out, 20 are given up.
    {
        let mut inside = inside.lock().unwrap();
        inside.waiting -= 50;
        inside.lost.count_many(DropReason::Watchdog, 15, 0);
        inside.lost.count_many(DropReason::NoSocket, 5, 0);
        inside.refused.count_many(DropReason::Malformed, 3, 0);
    }
    assert_eq!((engine.ledger(), engine.inside()), ((100, 30, 20), 50));
    let report = engine.report(1).unwrap().counters;
    assert_eq!((report.delivered, report.dropped.frames(DropReason::Watchdog)), (30, 15));
    assert_eq!((report.dropped.frames(DropReason::NoSocket), report.refused.frames(DropReason::Malformed)), (5, 3));
    // The port goes, with the frames in it; its counters stay in the ledger.
    engine.unplug(1);
    assert_eq!((engine.ledger(), engine.inside()), ((100, 30, 70), 0));
    let gone = engine.gone();
    assert_eq!((gone.delivered, gone.dropped.frames(DropReason::PortGone)), (30, 50));
    assert_eq!((gone.dropped.frames(DropReason::Watchdog), gone.refused.frames(DropReason::Malformed)), (15, 3));
    // Another port comes, and goes.
    *inside.lock().unwrap() = Inside::default();
    plug(&mut engine, &inside);
    assert_eq!(engine.report(1).unwrap().counters, Default::default());
    send(&mut engine, &mut client, 10);
    assert_eq!((engine.ledger(), engine.inside()), ((110, 30, 70), 10));
    assert_eq!(engine.gone().dropped.total_frames(), 70);
    engine.unplug(1);
    assert_eq!(engine.ledger(), (110, 30, 80));
    assert_eq!(engine.gone().dropped.frames(DropReason::PortGone), 60);
}

#[test]
#[should_panic(expected = "a port has more frames inside than it received")]
fn a_port_that_says_more_than_it_was_handed_is_found() {
    let (mut engine, mut client, inside) = switch(patient());
    send(&mut engine, &mut client, 3);
    let mut lost = Drops::default();
    lost.count_many(DropReason::Watchdog, 4, 0);
    *inside.lock().unwrap() = Inside { lost, ..Inside::default() };
    engine.ledger();
}

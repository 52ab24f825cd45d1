//! A traffic class of a tenant that has to wait stops no other class.

use crate::kernel::harness::{possible, wait_for};
use rustix::event::PollFd;
use sluicenet_dataplane::engine::{Access, Engine};
use sluicenet_dataplane::kernel::lan::{DEVICE, Lan, Wiring};
use sluicenet_dataplane::kernel::packet::PacketDevice;
use sluicenet_dataplane::kernel::tap::{TapConfig, TapPort};
use sluicenet_dataplane::kernel::valve::{ValveConfig, ValvePort};
use sluicenet_dataplane::port::{BrokenPort, Delivery, Descriptor, Offload, Port};
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_proto::frame::PrioritySet;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// A port that sends nothing and takes the given classes.
struct Taker {
    takes: Arc<AtomicU8>,
    got: Arc<Mutex<Vec<u32>>>,
}

impl Port for Taker {
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        Ok(None)
    }
    fn first_bytes(&self, _: u32) -> [u64; 2] {
        unreachable!()
    }
    fn accept(&mut self) {}
    fn read(&self, _: u32, _: &mut [u8]) {}
    fn give_back(&mut self, _: u32) {}
    fn lent(&self) -> u32 {
        0
    }
    fn takes(&mut self) -> PrioritySet {
        PrioritySet(self.takes.load(Ordering::Relaxed))
    }
    fn max_frame(&self) -> u32 {
        1518
    }
    fn reserve(&mut self, _: u32, _: &Offload) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn deliver(&mut self, frame: &Delivery<'_>) {
        let number = u32::from_be_bytes(frame.bytes[18..22].try_into().unwrap());
        self.got.lock().unwrap().push(u32::from(frame.priority) << 24 | number);
    }
    fn publish(&mut self) -> Result<(), BrokenPort> {
        Ok(())
    }
    fn fall_asleep(&mut self, _: bool) -> Result<bool, BrokenPort> {
        Ok(true)
    }
    fn wake_up(&mut self) {}
    fn wakers<'a>(&'a self, _: &mut Vec<PollFd<'a>>) {}
    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

fn a_class_waits_alone(tag: &str, open: impl FnOnce(&Lan) -> Box<dyn Port>) {
    const WAITING: u32 = 300;
    const OTHERS: u32 = 3_000;
    let lan = Lan::create(tag, 1, Wiring::Bare).unwrap();
    let port = open(&lan);
    lan.configure(0).unwrap();
    // Queues far shorter than the number of frames, so that frames wait at the port.
    let vale = ValeConfig { slots: 32, watchdog: WatchdogConfig::OFF, ..ValeConfig::default() };
    let mut engine = Engine::new(2, vale);
    let (takes, got) = (Arc::new(AtomicU8::new(0)), Arc::new(Mutex::new(Vec::new())));
    takes.store(!(1 << 3), Ordering::Relaxed);
    engine.plug(0, "tenant", port, Access::default()).unwrap();
    engine.plug(1, "taker", Box::new(Taker { takes: takes.clone(), got: got.clone() }), Access::default()).unwrap();
    let station = [2, 0, 0, 0, 0, 9];
    assert!(engine.give(station, 0, 1));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let remote = engine.remote().unwrap();
        let running = scope.spawn(|| engine.run(&stop).map(|()| engine.ledger()));
        let mut sender = PacketDevice::open(lan.tenant(0), DEVICE, 256).unwrap();
        let mut send = |priority: u8, number: u32| {
            let mut frame = [0; 100];
            frame[..6].copy_from_slice(&station);
            frame[6..12].copy_from_slice(&Lan::mac(0));
            frame[12..18].copy_from_slice(&[0x81, 0, priority << 5, 0, 0x88, 0xb5]);
            frame[18..22].copy_from_slice(&number.to_be_bytes());
            assert!(sender.send(&frame));
            while sender.waiting() > 0 {
                sender.flush().unwrap();
            }
        };
        let of = |priority: u32| -> Vec<u32> {
            let all = got.lock().unwrap();
            all.iter().filter(|&&n| n >> 24 == priority).map(|n| n & 0xff_ffff).collect()
        };
        (0..WAITING).for_each(|n| send(3, n));
        (0..OTHERS).for_each(|n| send(5, n));
        // The class that waits is before them all, and stops none of them.
        wait_for(|| of(5).len() == OTHERS as usize);
        assert!(of(3).is_empty());
        takes.store(0xff, Ordering::Relaxed);
        wait_for(|| of(3).len() == WAITING as usize);
        assert!(of(3).into_iter().eq(0..WAITING) && of(5).into_iter().eq(0..OTHERS), "out of order");
        stop.store(true, Ordering::Relaxed);
        let _ = remote.post(|_| ());
        running.join().unwrap().unwrap();
    });
}

#[test]
fn at_a_valve() {
    if possible() {
        a_class_waits_alone("class", |lan| {
            lan.veth(0).create(Lan::mac(0), 1500).unwrap();
            Box::new(ValvePort::open(lan.veth(0), &ValveConfig::default()).unwrap())
        });
    }
}

#[test]
fn at_a_tap() {
    if possible() {
        a_class_waits_alone("classtap", |lan| {
            let port = TapPort::create(lan.tenant(0), DEVICE, Lan::mac(0), 1500, &TapConfig::default());
            Box::new(port.unwrap())
        });
    }
}

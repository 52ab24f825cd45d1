//! Every order in which a producer and a consumer can run: no entry is lost or torn, no wake-up missed.
//! `RUSTFLAGS="--cfg loom" cargo test -p sluicenet-ring --test loom --release`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use sluicenet_ring::{Cells, Consumer, Producer};

struct Heap {
    words: [AtomicU32; 3],
    entries: [AtomicU64; 2],
}

#[derive(Clone)]
struct Shared(Arc<Heap>);

impl Cells for Shared {
    fn produced(&self) -> &AtomicU32 {
        &self.0.words[0]
    }
    fn consumed(&self) -> &AtomicU32 {
        &self.0.words[1]
    }
    fn asleep(&self) -> &AtomicU32 {
        &self.0.words[2]
    }
    fn entry(&self, i: u32) -> &AtomicU64 {
        &self.0.entries[(i & 1) as usize]
    }
    fn mask(&self) -> u32 {
        1
    }
}

fn ring() -> (Producer<Shared>, Consumer<Shared>) {
    let words = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)];
    let shared = Shared(Arc::new(Heap { words, entries: [AtomicU64::new(0), AtomicU64::new(0)] }));
    (Producer::new(shared.clone()), Consumer::new(shared))
}

/// A model of an eventfd: a counter to wait for.
#[derive(Default)]
struct Event(Mutex<u32>, Condvar);

impl Event {
    fn signal(&self) {
        *self.0.lock().unwrap() += 1;
        self.1.notify_one();
    }
    fn wait(&self) {
        let mut count = self.0.lock().unwrap();
        while *count == 0 {
            count = self.1.wait(count).unwrap();
        }
        *count -= 1;
    }
}

#[test]
fn a_consumer_that_sleeps_is_woken_for_every_entry() {
    // A missed wake-up leaves the consumer waiting for ever, which loom reports as a deadlock.
    loom::model(|| {
        let (mut producer, mut consumer) = ring();
        let event = Arc::new(Event::default());
        let bell = event.clone();
        let thread = loom::thread::spawn(move || {
            for entry in 1..=2u64 {
                producer.push(entry);
                if producer.publish() {
                    bell.signal();
                }
            }
        });
        let mut expected = 1;
        while expected <= 2 {
            match consumer.pop().unwrap() {
                Some(entry) => {
                    assert_eq!(entry, expected);
                    expected += 1;
                    consumer.publish();
                }
                None => {
                    if consumer.fall_asleep().unwrap() {
                        event.wait();
                    }
                }
            }
        }
        thread.join().unwrap();
    });
}

#[test]
fn a_full_ring_overwrites_nothing() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring();
        let thread = loom::thread::spawn(move || {
            let mut sent = 0u64;
            for _ in 0..4 {
                if producer.room().unwrap() > 0 {
                    sent += 1;
                    producer.push(sent);
                    let _ = producer.publish();
                }
            }
            sent
        });
        let mut expected = 1;
        for _ in 0..3 {
            if let Some(entry) = consumer.pop().unwrap() {
                assert_eq!(entry, expected);
                expected += 1;
            }
            consumer.publish();
        }
        let sent = thread.join().unwrap();
        while let Some(entry) = consumer.pop().unwrap() {
            assert_eq!(entry, expected);
            expected += 1;
        }
        assert_eq!(expected, sent + 1);
    });
}

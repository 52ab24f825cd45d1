//! A guest's memory of any content: its chains are walked, read, written and given back within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sluicenet_dataplane::vhost::memory::{Layout, Memory, Ring};
use sluicenet_dataplane::vhost::queue::{MAX_CHAIN, MAX_CHAIN_BYTES, Queue, Setup, Spans, Walked};
use std::cell::RefCell;
use std::sync::Arc;

const BYTES: u64 = 0x2000;

thread_local! {
    static MEMORY: Arc<Memory> = {
        let file = |len| {
            let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, len).unwrap();
            file
        };
        let first = Layout { guest: 0, user: 0x10000, len: BYTES, offset: 0 };
        let second = Layout { guest: BYTES, user: 0x20000, len: BYTES, offset: 0 };
        let memory = Memory::default().with(first, file(BYTES)).unwrap();
        Arc::new(memory.with(second, file(BYTES)).unwrap())
    };
    static SPANS: RefCell<Spans> = RefCell::default();
}

fuzz_target!(|bytes: &[u8]| {
    MEMORY.with(|memory| {
        let whole = memory.find(0, BYTES as u32).unwrap();
        memory.write(whole, 0, &[0; BYTES as usize]);
        memory.write(whole, 0, &bytes[..bytes.len().min(BYTES as usize)]);
        let Some(ring) = Ring::new(memory, 16, 0x10000, 0x10100, 0x10140) else { return };
        let (call, kick, error, record) = (None, None, None, None);
        let setup = Setup { ring, next: 0, call, kick, error, event_idx: true, indirect: true, enabled: true, record };
        let mut queue = Queue::new(setup);
        SPANS.with_borrow_mut(|spans| {
            for write in [false, true] {
                let Ok(waiting) = queue.waiting(0) else { return };
                assert!(waiting <= 16);
                for _ in 0..waiting {
                    let Ok(head) = queue.head(0) else { return };
                    let Ok(Walked { bytes, cost }) = queue.walk(memory, head, write, spans) else { return };
                    // A piece for each region that a descriptor reaches into.
                    assert!(cost <= 2 * MAX_CHAIN);
                    // Of a longer one walking ends half-way.
                    if bytes <= MAX_CHAIN_BYTES {
                        let mut copy = vec![0; bytes as usize];
                        spans.read(memory, &mut copy);
                        if write {
                            spans.write(memory, 0, &copy);
                        }
                    }
                    queue.next = queue.next.wrapping_add(1);
                    queue.give_back(head, bytes as u32);
                }
                let _ = queue.publish();
                let _ = queue.want_kicks(0);
            }
        });
    });
});

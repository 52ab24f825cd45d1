//! Updates between bumps of any bytes, merged into a virtual queue: whatever a neighbour sends, the queue stays within its
//! buffer and is empty again after the time that a full buffer takes to drain.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_proto::netbump::{Receiver, VirtualQueue};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_wire::bump::{Forwarded, LEN_MAX, Repr, Update, is_update};

/// The buffer of the port behind the queue.
const BUFFER: u64 = 40_000;

fuzz_target!(|bytes: &[u8]| {
    let mut receiver = Receiver::new(Duration::from_us(5), Duration::from_ms(1));
    let mut queue = VirtualQueue::new(Rate::gbps(1), Some(BUFFER));
    let mut now = Instant::ZERO + Duration::from_secs(1);
    for chunk in bytes.chunks(LEN_MAX) {
        // The fields alone, too: random bytes seldom have type and magic.
        let mut typed = chunk.to_vec();
        if typed.len() >= 19 {
            typed[12..19].copy_from_slice(&[0x88, 0xB6, b's', b'l', b'n', b'b', 1]);
        }
        for frame in [chunk, &typed] {
            let Ok(update) = Update::parse(frame) else { continue };
            assert!(is_update(frame));
            let packets: Vec<Forwarded> = update.packets().collect();
            let mut again = vec![0; Repr::emitted_len(packets.len())];
            update.repr.emit(&packets, &mut again, |signed| {
                assert_eq!(signed.len() + update.tag.len(), update.signed.len() + 16);
                *update.tag
            });
            assert_eq!(Update::parse(&again).unwrap().repr, update.repr);
            receiver.merge_frame(now, &update, |port, at, wire_bytes| {
                assert!(at <= now);
                queue.arrive_late(now, at, wire_bytes);
                port & 1 == 0
            });
            // Rounding: a byte.
            assert!(queue.bytes(now) <= BUFFER + 1, "{}", queue.bytes(now));
        }
        now += Duration::from_us(1 + u64::from(chunk[0]));
        queue.arrive(now, 84);
    }
    assert_eq!(queue.bytes(now + Duration::from_ms(1)), 0);
});

//! What a guest may say as its agent, to a port that hands it frames: parsed, believed, bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_proto::agent::lease::{Lease, ROOM_MAX};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::agent::{LEN, Message, Repr};

fuzz_target!(|bytes: &[u8]| {
    let (mut lease, mut now, mut handed) = (Lease::new(0), Instant::ZERO, 0u64);
    for step in bytes.chunks(LEN + 1) {
        let Some((&time, frame)) = step.split_first() else { return };
        now = now.saturating_add(Duration::from_ms(time.into()));
        if let Ok(repr) = Repr::parse(frame) {
            assert_eq!(Repr::parse(&repr.emit()), Ok(repr));
            if let Message::Grant { number, lifetime_ms, room } = repr.message {
                lease.on_grant(now, number, room, Duration::from_ms(lifetime_ms.into()));
            }
        }
        lease.poll(now, handed);
        if lease.wants_mark(now, handed) {
            lease.mark(now, handed);
        }
        if let Some(granted) = lease.granted(handed) {
            assert!(granted <= u64::from(ROOM_MAX));
            handed += granted.min(time.into());
        } else {
            handed += u64::from(time);
        }
    }
});

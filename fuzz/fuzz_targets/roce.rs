//! RoCE packets of any bytes, and a queue pair that takes those that can be read: whatever comes, its packets are valid, its rate
//! stays between the lowest and the highest one, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::transport::roce::{Config, Data, Packet, QueuePair, Reply, dcqcn};
use sluicenet_proto::units::Rate;
use sluicenet_wire::roce::{Extension, Repr};

/// A packet as a queue pair sees it.
fn packet(repr: &Repr, payload: &[u8]) -> Packet {
    let (offset, message) = match repr.extension {
        Extension::Notification => return Packet::Notification,
        Extension::Acknowledge { is_sequence_error, msn } => {
            return Packet::Reply(Reply { psn: repr.psn, is_sequence_error, msn });
        }
        Extension::Write { address, length, .. } => (address, length),
        Extension::None => (0, 0),
    };
    Packet::Data(Data {
        psn: repr.psn,
        is_first: repr.opcode.is_first(),
        is_last: repr.opcode.is_last(),
        ack_request: repr.ack_request,
        len: payload.len() as u16,
        offset,
        message,
    })
}

fuzz_target!(|bytes: &[u8]| {
    let (dcqcn, line) = (dcqcn::Config::ZHU_2015, Rate::gbps(40));
    let config = Config { mtu: 1024, ack_every: 4, timeout: Duration::from_us(500), dcqcn: Some(dcqcn) };
    let (mut pair, mut now) = (QueuePair::new(line), Instant::ZERO);
    pair.post(1 << 20);
    for chunk in bytes.chunks(40) {
        if let Ok((repr, payload)) = Repr::parse(chunk) {
            let mut again = vec![0; repr.len(payload.len())];
            let at = repr.opcode.header_len();
            again[at..at + payload.len()].copy_from_slice(payload);
            repr.emit(&mut again, payload.len());
            assert_eq!(Repr::parse(&again), Ok((repr, payload)));
            let heard = pair.receive(&config, now, &packet(&repr, payload), chunk[0] & 1 == 1);
            assert!(usize::from(heard.fresh) <= payload.len());
        }
        if let Some(sent) = pair.poll_transmit(&config, now) {
            if let Packet::Data(data) = sent {
                assert!(data.psn < 1 << 24 && data.len > 0 && data.len <= config.mtu);
                pair.on_transmit(&config, now, u32::from(data.len) + 80);
            }
        }
        if let Some(limiter) = pair.limiter(&config, now) {
            assert!(limiter.current_rate() >= dcqcn.rpg_min_rate && limiter.current_rate() <= line);
        }
        now = Instant(now.0 + u64::from(chunk[0]) * 1_000_000);
        pair.handle_timeout(&config, now);
    }
});
